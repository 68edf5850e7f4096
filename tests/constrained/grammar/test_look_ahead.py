r"""Terminals that end in `(?!...)` or `\b`, and Lark's own with look-around, judged by Lark's Earley parser."""

from __future__ import annotations

import random

import pytest
from lark import Lark
from lark.exceptions import LarkError

from ramiform.constrained import Grammar, GrammarError, compile_constraint
from ramiform.tests.constrained.walks import accepts, byte_vocabulary

# Each with the pieces of random texts, and True if the judge may accept texts that are refused here: a match that what
# follows spoils is no shorter one.
GRAMMARS = {
    "python": (
        'start: (STRING | LONG_STRING | "+")+\n%import python.STRING\n%import python.LONG_STRING\n%ignore " "',
        ['"', '"', "'", '""', '"""', "'''", "\\", "a", "b", "r", "+", " ", '"a"', "'b'", '"""c"""', '\\"', "\n"],
    ),
    "lark": (
        'start: (REGEXP | OP | "x")+\n%import lark.REGEXP\n%import lark.OP',
        ["/", "/a/", "\\", "+", "*", "?", "?x", "x", "i", "//", "\\/", "/b/i"],
    ),
    "words": (
        'start: (KEY | NAME | "(" | ")")+\nKEY: /if\\b/\nNAME: /[a-z]+(?![(é])/\n%ignore " "',
        ["if", "i", "f", "a", "(", ")", " ", "if ", "ab ", "é"],
    ),
    "number": (
        'start: (INT | RANGE | "-")+\nINT: /\\d+(?!\\.\\.é)/\nRANGE: "..é"',
        ["1", "2", "..", "é", "..é", "-", "."],
    ),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_random_texts_agree_with_lark(name: str) -> None:
    text, pieces = GRAMMARS[name]
    grammar, judge = compile_constraint(Grammar(text), byte_vocabulary()), Lark(text, parser="earley", lexer="dynamic")
    rng, num_accepted = random.Random(name), 0
    for _ in range(160):
        written = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 6)))
        try:
            judge.parse(written)
            expected = True
        except LarkError:
            expected = False
        found = accepts(grammar, written.encode())
        num_accepted += found
        # A match that its look-ahead refuses is not tried shorter, so some texts are not generated.
        assert found == expected or (name in ("words", "number") and expected), written
    assert num_accepted > 20


@pytest.mark.parametrize("pattern", [r"a(?=b)", r"(?<!a)b", r"\bif", r"-\b", r"(?!a)[a-z]+"])
def test_other_look_around_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="look-around"):
        compile_constraint(Grammar(f"start: A\nA: /{pattern}/"), byte_vocabulary())
