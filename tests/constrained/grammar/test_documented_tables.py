"""The tables of grammars' dialects in docs/use/constrained.md say what is so: each row has examples that are compiled.

An example is a grammar with a text of it, or what its refusal says. A row is there for each example, and the other way.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ramiform
from ramiform.constrained import Grammar, GrammarError, compile_constraint
from ramiform.runtime.frontend.api.constraints import lazy_grammar
from ramiform.tests.constrained.grammar.test_of_llguidance import reads
from ramiform.tests.constrained.tags.naive_tags import SPECIAL, token_vocabulary

PAGE = Path(ramiform.__file__).parent / "docs/use/constrained.md"
A = SPECIAL["<|a|>"]
Example = tuple[str, str | None, str | None]  # a grammar, a text of it, what its refusal says
LISTED = '{"grammars": [{"lark_grammar": "start: \\"a\\" @b"}, {"name": "b", "json_schema": {"const": 1}}]}'

GBNF: dict[str, list[Example]] = {
    "rules `name": [
        ('# c\nroot ::= a | # c\n b\na ::= (\n"a")\nb ::= "b"', "b", None),
        ('root ::= "a"\nroot ::= "b"', None, "twice"),
    ],
    '`"text"`': [
        (r'root ::= "a\n\x62\u0063\U00000064\"" [a-c] [^\n] . "\\"', 'a\nbcd"axy\\', None),
        (r'root ::= "\q"', None, "escape"),
    ],
    "sequences": [
        ('root ::= ("a" | "b")* "c"+ "d"? "e"{2} "f"{1,} "g"{1,2}', "abceefg", None),
        ('root ::= "a"{1,10001}', None, "beyond"),
    ],
    "left recursion": [('root ::= root "a" | "b"', "baa", None)],
    "`<name>`": [("root ::= <|a|> <[98]>", A + "b", None), ("root ::= <|no|>", None, "no token")],
    "`!<name>`": [("root ::= !<[97]> !<|b|>", "b" + A, None)],
    "special tokens": [('root ::= "<|a|>"', "<|a|>", None)],
    "`Token(id": [("root ::= Token(97, 98)", "b", None)],
    "`ExcludeToken": [("root ::= ExcludeToken(97)", "b", None)],
    "`TagDispatch": [('root ::= TagDispatch(("<", x))\nx ::= "1>"', "a<1>b", None)],
    "`TokenTagDispatch": [('root ::= TokenTagDispatch((97, x))\nx ::= "1>"', "ba1>b", None)],
    "`Regex": [('root ::= Regex("[ab]+")', "ab", None), ('root ::= Regex("a(?=b)")', None, "look-around")],
    "`Substring": [('root ::= Substring("a", "b", "c")', "bc", None)],
    "look-ahead": [('root ::= "a" (="b")', None, "look-ahead is not supported")],
    "`grammar_lazy`": [
        (lazy_grammar('root ::= "<" "1"', ['"<"', 'Regex("[{]")']), "a<1", None),
        (lazy_grammar("root ::= <|a|>", ["<|a|>"]), "b" + A, None),
        ('root ::= Lazy(Regex("^a"), x)\nx ::= "a"', None, "has no ^"),
    ],
}
BEHIND_FREE_TEXT = {GBNF["`TagDispatch"][0][0]: "a<1><", GBNF["`TokenTagDispatch"][0][0]: "ba1>ba"}
L = "%llguidance {}\n"
LARK: dict[str, list[Example]] = {
    "rules, terminals": [
        (L + 'start: A "b"i "a".."c" ("x" | "y")* ["z"] "q"~2..5 -> name\nA: /[a]/i', "ABcxyzqq", None)
    ],
    "`x{2,5}`": [('start: "a"{2,5} "b"{2} "c"{,5} "d"{2,}', "aabbdd", None)],
    "comments": [(L + 'start: a-b // c\n# d\na-b: "x"', "x", None)],
    "`%import": [
        (L + "%import common.INT\nstart: INT", "12", None),
        (L + "%import python.STRING\nstart: STRING", None, "common only"),
    ],
    "`%ignore`": [(L + '%ignore " "\nstart: "a" "b"', "a b", None)],
    "`%llguidance": [
        ('%llguidance {"no_forcing": true}\nstart: "a"', "a", None),
        ('%llguidance {"no_backtrack": true}\nstart: "a"', None, "not supported"),
    ],
    "`%json": [
        ('start: %json {"type": "object"}', '{"x":1}', None),
        ('start: %json {"x-guidance": {"lenient": true}}', None, "only whitespace_flexible"),
    ],
    "`%regex": [('start: A\nA: %regex {"substring_words": "a b"}', "a ", None)],
    "`%lark": [('start: %lark {\nstart: "a"\n} "b"', "ab", None), (LISTED, "a1", None)],
    "`<name>`": [("start: <|a|> <[97]> <[98-99]> <[^97]> <[*]>", A + "abba", None)],
    "`&`": [("start: A\nA: /[ab]+/ & ~/a+/", "ab", None)],
    "`[lazy]`": [('start: x y "."\nx[lazy]: /a+b/\ny[suffix="!"]: /.*/', "aabc!.", None)],
    "`[max_tokens": [('start: x "."\nx[max_tokens=2]: /a+/', "aa.", None)],
    "rules with": [
        ('start: x::1\nx::_: "a" x::decr(_) %if gt(_, 0) | "b"', "ab", None),
        ('start: x::0\nx::_: "a" x::incr(_) | ""', None, "more than 20000"),
    ],
    "`[stop=": [('start: x\nx[stop="b"]: /a+/', None, "stop hides text")],
    "`[temperature": [('start: x "."\nx[temperature=0.7]: /a+/', "aa.", None)],
    "`[capture]`": [('start: x "."\nx[capture, suffix="b", stop_capture="s"]: /a+/', "aab.", None)],
    "templates": [
        (L + "x{a}: a\nstart: x{B}\nB: /b/", None, "templates"),
        (L + "A.2: /a/\nstart: A", None, "priorities"),
        (L + "%declare A\nstart: A", None, "expected"),
        (L + "start: /a(?=b)/", None, "look-around"),
        (L + "start: /a+?/", None, "lazy repeats"),
    ],
}


def rows_of(heading: str) -> list[str]:
    """Return the first cells of the table below a heading."""
    text = PAGE.read_text("utf-8").partition(f"### {heading}\n")[2]
    table = re.search(r"\|---\|---\|\n((?:\|.*\n)+)", text)
    assert table is not None
    return [line[2:] for line in table[1].splitlines()]


@pytest.mark.parametrize(
    ("heading", "examples"), [("GBNF, feature by feature", GBNF), ("Lark of llguidance, feature by feature", LARK)]
)
def test_every_row_has_examples(heading: str, examples: dict[str, list[Example]]) -> None:
    rows = rows_of(heading)
    assert len(rows) == len(examples)
    for row, begin in zip(rows, examples, strict=True):
        assert row.startswith(begin), (row, begin)
        here = row.split(" | ", 1)[1].replace("(llama.cpp refuses it)", "")
        wrongs = [wrong for _, _, wrong in examples[begin]]
        assert here.startswith("refused by name") == (None not in wrongs), row
        assert "refused" not in here or any(wrongs), row


@pytest.mark.parametrize(
    ("syntax", "example"),
    [(syntax, each) for syntax, table in (("gbnf", GBNF), ("lark", LARK)) for row in table.values() for each in row],
)
def test_examples_are_what_the_row_says(syntax: str, example: Example) -> None:
    text, accepted, wrong = example
    grammar = Grammar(text, "gbnf" if syntax == "gbnf" else "lark")
    if wrong is not None:
        with pytest.raises(GrammarError, match=re.escape(wrong)):
            compile_constraint(grammar, token_vocabulary())
        return
    assert accepted is not None
    assert reads(compile_constraint(grammar, token_vocabulary(), whitespace="compact"), accepted)
    rejected = BEHIND_FREE_TEXT.get(text, accepted + "\x00")
    assert not reads(compile_constraint(grammar, token_vocabulary(), whitespace="compact"), rejected)
