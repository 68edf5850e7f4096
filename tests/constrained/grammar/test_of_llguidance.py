"""Bounds in braces are llguidance's own; its other additions are refused by name. Lark itself reads none of them."""

from __future__ import annotations

import random

import lark
import pytest

from ramiform.constrained import Grammar, GrammarError, Vocabulary, compile_constraint
from ramiform.tests.constrained.tags.naive_tags import token_vocabulary

REFUSED = [
    ('start: "a" %json {"type": "integer"}', "%json: llguidance's", 11),
    ('start: A\nA: %regex {"substring_words": "a b c"}', "%regex: llguidance's", 12),
    ('start: "a" %lark { start: "b" }', "a nested grammar", 11),
    ('%llguidance {"no_forcing": true}\nstart: "a"', "a nested grammar or an option", 0),
    ('start: "a" <[257]>', "tokens in angle brackets", 11),
    ('start: "a"{2,}', "bounds in braces", 10),
    ("start: A{}\nA: /a/", "bounds in braces", 8),
    ("start: A\nA: /[ab]+/ & /[bc]+/", "& and ~", 20),
    ("start: A\nA: ~/a+/", "& and ~", 12),
    ("start: x\nx[lazy]: /a+/", "attributes of a rule", 9),
    ('start: x\nx[stop=","]: /[a-z]+/', "attributes of a rule", 9),
    ('start: x\nx[suffix=","]: /[a-z]+/', "attributes of a rule", 9),
    ("start: x\nx[capture]: /[a-z]+/", "attributes of a rule", 9),
    ("start: x\nx[temperature=0.5]: /[a-z]+/", "attributes of a rule", 9),
    ("start: x\nx[max_tokens=5]: /[a-z]+/", "attributes of a rule", 9),
    ('start: x::0\nx::_: "a"', "parameters of a rule", 8),
]


@pytest.mark.parametrize(("text", "name", "position"), REFUSED)
def test_what_llguidance_adds_is_refused_by_name(text: str, name: str, position: int) -> None:
    with pytest.raises((lark.exceptions.LarkError, AssertionError, ValueError)):
        lark.Lark(text, lexer="dynamic")
    with pytest.raises(GrammarError) as error:
        compile_constraint(Grammar(text, "lark"), token_vocabulary())
    assert name in str(error.value)
    assert error.value.position == position


def test_other_mistakes_keep_their_own_message() -> None:
    with pytest.raises(GrammarError, match="not Lark's syntax"):
        compile_constraint(Grammar('start: "a" )', "lark"), token_vocabulary())


def bounded_grammar(draw: random.Random) -> str:
    """Return a grammar with bounds on literals, terminals, rules and groups."""

    def bounds(lowest: int) -> str:
        least = lowest + draw.randrange(3)
        most = max(1, least) + draw.randrange(3)
        open_below = [f"{{,{most}}}"] if lowest == 0 else []
        return draw.choice([f"{{{max(1, least)}}}", f"{{{least},{most}}}", f"{{ {least} , {most} }}", *open_below])

    parts = ['"a"', "B", "c", '("d" | "{1}")', '("a" c)']
    items = " ".join(draw.choice(parts) + bounds(0) for _ in range(draw.randrange(1, 4)))
    return f'start: "<" {items} ">"\nB: "b"{bounds(1)}\nc: "c"{bounds(1)}\n'


def test_llguidance_reads_bounds_alike() -> None:
    pytest.importorskip("llguidance", exc_type=ImportError)  # the extra `backends`
    from ramiform.tests.constrained.oracle_llguidance import Judge, llguidance

    letters = b"abcd<>{1}"
    vocabulary = Vocabulary.from_tokens([*(bytes([letter]) for letter in letters), None], [len(letters)])
    judge = Judge(vocabulary, lambda text: [letters.index(byte) for byte in text.encode()])
    draw, num_steps = random.Random(11), 0
    for _ in range(40):
        text = bounded_grammar(draw)
        grammar = compile_constraint(Grammar(text, "lark"), vocabulary)
        judged = llguidance.LLMatcher.grammar_from_lark(text)
        num_steps += sum(judge.walk(grammar, judged, draw, 30) for _ in range(3))
    assert num_steps > 400
