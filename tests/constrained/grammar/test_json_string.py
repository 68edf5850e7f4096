"""A JSON string of a grammar holds the texts that Lark parses, and one of a pattern those that `re` matches."""

from __future__ import annotations

import json
import random
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lark import Lark

from ramiform.constrained import CompiledGrammar, Grammar, GrammarError, JsonString, Regex, compile_constraint
from ramiform.tests.constrained.walks import accepts, byte_vocabulary, sample, shared_vocabulary

from .test_grammars import mutated, parses, texts_of
from .texts import LARK

AROUND = ('{"input": "', '"}')
OWN = r"""
start: line+
line: NAME "=" value "\n"
value: "\"" /[^"\\\n]+/? "\"" | /\d+\/?/ | "é" | "😀"
NAME: /[a-z]+/
%ignore " "
%ignore /\t+/
"""
OWN_TEXTS = ['a="x y"\n', "b =12/\n", ' a = ""\n b\t=é\n', "c=😀 \n\t", "a=1", "\t", 'a="\\"\n']
PATTERNS = [r'[a-z"\\/\n]*', "é|😀+", r"(\d{3}-)?\d{4}", "", r"\s+x"]


@cache
def judge(text: str) -> Lark:
    return Lark(text, parser="earley", lexer="dynamic")


@cache
def in_string(text: str) -> CompiledGrammar:
    return compile_constraint(JsonString(Grammar(text), *AROUND), byte_vocabulary())


def spellings(text: str) -> list[bytes]:
    """The string as JSON writers write it."""
    return [json.dumps({"input": text}, ensure_ascii=is_ascii).encode() for is_ascii in (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", LARK)
@given(data=st.data())
@settings(max_examples=5)
def test_the_strings_are_those_that_lark_parses(name: str, data: st.DataObject) -> None:
    text = data.draw(mutated(*texts_of("lark", name)))
    expected = parses(judge(LARK[name][0]), text)
    for written in spellings(text):
        assert accepts(in_string(LARK[name][0]), written) == expected, text


@pytest.mark.slow
@given(mutated(OWN_TEXTS, 'abc="\\ \t\n1/é😀'))
def test_what_has_to_be_escaped_is(text: str) -> None:
    expected = parses(judge(OWN), text)
    for written in spellings(text):
        assert accepts(in_string(OWN), written) == expected, text


@pytest.mark.slow
@given(st.sampled_from(PATTERNS), st.text(st.sampled_from('ab"\\/\n é😀0123-x'), max_size=9))
def test_a_pattern_matches_the_whole_string(pattern: str, text: str) -> None:
    grammar = compile_constraint(JsonString(Regex(pattern), *AROUND), byte_vocabulary())
    expected = re.fullmatch(pattern, text, re.ASCII) is not None
    assert [accepts(grammar, written) for written in spellings(text)] == [expected] * 2


def test_what_is_drawn_is_a_string_of_the_grammar() -> None:
    text = r'start: /[a-c"\\\n]{1,8}/ ("é" | "😀" start)'
    grammar = compile_constraint(JsonString(Grammar(text), *AROUND), shared_vocabulary())
    for seed in range(8):
        assert parses(judge(text), json.loads(sample(grammar, random.Random(seed)))["input"])


@pytest.mark.parametrize("content", [Grammar("start: x"), Grammar('root ::= "a"', "gbnf"), Regex("("), Regex(r"(a)\1")])
def test_what_cannot_be_enforced_is_refused(content: Grammar | Regex) -> None:
    with pytest.raises(GrammarError):
        compile_constraint(JsonString(content), byte_vocabulary())
