"""Formats of whole tokens, and budgets of tokens, beyond the random ones of `test_differential_tags.py`."""

from __future__ import annotations

from typing import Any

import pytest

from ramiform.constrained import CompiledGrammar, GrammarError, StructuralTag, Vocabulary, compile_constraint
from ramiform.constrained.automaton.generation import Generation
from ramiform.tests.constrained.tags.naive_tags import END, token_number, token_vocabulary
from ramiform.tests.constrained.walks import BYTES, allowed

A, B = token_number("\ue000"), token_number("\ue001")
OBJECT = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {
    "type": "tag",
    "begin": {"type": "token", "token": "<|a|>"},
    "content": OBJECT,
    "end": {"type": "token", "token": "<|b|>"},
}


def compiled(**format: Any) -> CompiledGrammar:
    return compile_constraint(StructuralTag({"format": format}), token_vocabulary(), whitespace="compact")


def test_special_tokens_begin_and_end_calls_in_free_tokens() -> None:
    grammar = compiled(type="token_triggered_tags", trigger_tokens=["<|a|>"], tags=[CALL])
    matcher = grammar.matcher()
    assert allowed(matcher, token_vocabulary()) == [*range(B - 1), A, END]  # no special token but the trigger
    for token in (ord("x"), A, token_number('{"a":'), ord("7"), ord("}")):
        assert matcher.accept(token)
    assert allowed(matcher, token_vocabulary()) == [B]
    assert not matcher.is_accepting()
    assert matcher.forced() == b""
    assert matcher.accept(B)
    assert matcher.is_accepting()
    matcher.rollback(2)
    assert not matcher.accept(B)
    assert matcher.accept(ord("}"))
    assert matcher.accept(B)
    assert matcher.accept(ord("y"))
    assert matcher.accept(END)


def test_an_output_of_special_tokens_moves_to_a_fresh_generation() -> None:
    grammar = compiled(type="token_triggered_tags", trigger_tokens=["<|a|>"], tags=[CALL])
    matcher = grammar.matcher()
    tokens = (ord("x"), A, ord("{"), ord("}"), B, A)
    assert all(map(matcher.accept, tokens))
    assert matcher._move(Generation(grammar._make_start, grammar.vocabulary))
    assert matcher.forced() == b"{"
    matcher.rollback(1)
    assert matcher.is_accepting()


@pytest.mark.parametrize("budget", [1, 2, 3, 40])
def test_a_budget_of_tokens_forces_the_end_and_leaves_no_empty_mask(budget: int) -> None:
    """However a text is divided: characters of several bytes take a token a byte here."""
    text = {"type": "tag", "begin": "<", "content": {"type": "any_text", "max_tokens": budget}, "end": ">>"}
    vocabulary = Vocabulary.from_tokens([*BYTES, b">>", None], [257])
    matcher = compile_constraint(StructuralTag({"format": text}), vocabulary).matcher()
    assert matcher.accept(ord("<"))
    tokens = 0
    for token in "🙂é🙂".encode() * 20:
        masked = allowed(matcher, vocabulary)
        assert masked
        if token not in masked:
            break
        assert matcher.accept(token)
        tokens += 1
    assert tokens == min({1: 0, 2: 0, 3: 0}.get(budget, budget), budget)
    while matcher.accept(ord("x")):
        tokens += 1
    assert tokens == budget
    assert set(allowed(matcher, vocabulary)) == {ord(">"), 256}


def test_a_token_that_is_text_too_is_read_both_ways() -> None:
    grammar = compiled(
        type="or",
        elements=[
            {
                "type": "sequence",
                "elements": [{"type": "token", "token": "12"}, {"type": "const_string", "value": "x"}],
            },
            {"type": "json_schema", "json_schema": {"type": "integer"}},
        ],
    )
    matcher = grammar.matcher()
    assert matcher.accept(token_number("12"))
    assert matcher.is_accepting()
    assert {ord("x"), ord("3")} <= {*allowed(matcher, token_vocabulary())}
    matcher.rollback(1)
    assert matcher.accept(ord("1"))
    assert matcher.accept(ord("2"))
    assert ord("x") not in allowed(matcher, token_vocabulary())


@pytest.mark.parametrize(
    ("format", "pointer", "words"),
    [
        ({"type": "token", "token": "<|c|>"}, "/format/token", "no token '<|c|>'"),
        ({"type": "token", "token": 10**6}, "/format/token", "no token"),
        ({"type": "token", "token": END}, "/format/token", "ends an output"),
        ({"type": "token", "token": True}, "/format/token", "number or its text"),
        ({"type": "any_tokens", "exclude_tokens": ["a", "<|c|>"]}, "/format/exclude_tokens/1", "no token"),
        ({"type": "any_tokens", "max_tokens": -1}, "/format/max_tokens", "at least 0"),
        ({"type": "token_dispatch", "rules": [["<|c|>", OBJECT]]}, "/format/rules/0/0", "no token"),
        ({"type": "token_triggered_tags", "trigger_tokens": [], "tags": [CALL]}, "/format/trigger_tokens", "empty"),
        (
            {"type": "token_triggered_tags", "trigger_tokens": ["<|b|>"], "tags": [CALL]},
            "/format/tags/0/begin",
            "no trigger",
        ),
        (
            {"type": "triggered_tags", "triggers": ["<"], "tags": [CALL]},
            "/format/tags/0/begin",
            "must be a text",
        ),
        ({**CALL, "end": {"type": "any_tokens"}}, "/format/end", "'token'"),
    ],
)
def test_tokens_that_are_none_are_refused_with_their_pointer(format: Any, pointer: str, words: str) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(**format)
    assert caught.value.pointer == pointer, str(caught.value)
    assert words in str(caught.value)


def test_a_trigger_is_found_by_its_number_and_by_its_name() -> None:
    grammar = compiled(type="token_triggered_tags", trigger_tokens=[A], tags=[CALL], stop_after_first=True)
    matcher = grammar.matcher()
    assert all(map(matcher.accept, (A, ord("{"), ord("}"), B)))
    assert allowed(matcher, token_vocabulary()) == [END]
