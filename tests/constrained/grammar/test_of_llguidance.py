"""Lark grammars with llguidance's additions are refused by name. Judge: Lark itself reads none of them."""

from __future__ import annotations

import lark
import pytest

from ramiform.constrained import Grammar, GrammarError, compile_constraint
from ramiform.tests.constrained.tags.naive_tags import token_vocabulary

REFUSED = [
    ('start: "a" %json {"type": "integer"}', "%json: llguidance's", 11),
    ('start: A\nA: %regex {"substring_words": "a b c"}', "%regex: llguidance's", 12),
    ('start: "a" %lark { start: "b" }', "a nested grammar", 11),
    ('%llguidance {"no_forcing": true}\nstart: "a"', "a nested grammar or an option", 0),
    ('start: "a" <[257]>', "tokens in angle brackets", 11),
    ('start: "a"{2,5}', "bounds in braces", 10),
    ("start: A{2}\nA: /a/", "bounds in braces", 8),
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
