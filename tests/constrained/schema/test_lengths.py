"""Bounds on the length of strings: exact in every combination, of any size, at the same number of states."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, JsonSchema, Matcher, PropertyOrder, Vocabulary, compile_constraint
from ramiform.tests.constrained.strategies import combined, many
from ramiform.tests.constrained.walks import accepts, allowed, compiled_or_none

from .oracle_jsonschema import is_valid, judge

CHUNKS = [b"aa", b"ab", b"aaaa", b"ba" * 3, b'a"', b'"a', b'",', b'":', b'x"}', "éé".encode()]
TOKENS: list[bytes | None] = [*(bytes([byte]) for byte in range(256)), *CHUNKS, None]


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])


def grammar_of(schema: Any, order: PropertyOrder = "any") -> CompiledGrammar:
    return compile_constraint(JsonSchema(schema), vocabulary(), whitespace="any", order=order)


def tagged(most: int, kind: str) -> dict[str, Any]:
    properties = {"description": {"type": "string", "maxLength": most}, "kind": {"const": kind}}
    return {"type": "object", "properties": properties, "required": ["description", "kind"]}


CONDITION = {
    "properties": {"a": {"type": "string", "maxLength": 1000}},
    "if": {"properties": {"a": {"const": "x"}}, "required": ["a"]},
    "then": {"required": ["b"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"anyOf": [tagged(1000, "a"), tagged(2000, "b")]}, {"description": "x" * 1000, "kind": "a"}, True),
        ({"anyOf": [tagged(1000, "a"), tagged(2000, "b")]}, {"description": "x" * 1001, "kind": "a"}, False),
        ({"anyOf": [tagged(1000, "a"), tagged(2000, "b")]}, {"description": "x" * 2000, "kind": "b"}, True),
        ({"anyOf": [tagged(1000, "a"), tagged(2000, "b")]}, {"description": "x" * 2001, "kind": "b"}, False),
        (CONDITION, {"a": "x", "b": 1}, True),
        (CONDITION, {"a": "x"}, False),
        (CONDITION, {"a": "xx"}, True),
        (CONDITION, {"a": "y" * 1000}, True),
        (CONDITION, {"a": "y" * 1001}, False),
        ({"anyOf": [{"type": "string", "maxLength": 5000}, {"required": ["a"]}]}, {"a": "x"}, True),
        ({"anyOf": [{"type": "string", "minLength": 5000}, {"required": ["a"]}]}, {"a": "x"}, True),
        ({"anyOf": [{"type": "string", "minLength": 5000}, {"type": "object"}]}, "x" * 5000, True),
        ({"anyOf": [{"type": "string", "minLength": 5000}, {"type": "object"}]}, "x" * 4999, False),
        ({"anyOf": [{"enum": ["k", "v" * 400]}, {"maxLength": 300}]}, "v" * 400, True),
        ({"anyOf": [{"enum": ["k", "v" * 400]}, {"maxLength": 300}]}, "v" * 300, True),
        ({"anyOf": [{"enum": ["k", "v" * 400]}, {"maxLength": 300}]}, "v" * 301, False),
        ({"pattern": "^(a|b*)$", "minLength": 5000}, "b" * 5000, True),
        ({"pattern": "^(a|b*)$", "minLength": 5000}, "a", False),
        ({"pattern": "^(aa)*$", "minLength": 3000, "maxLength": 3003}, "a" * 3002, True),
        ({"pattern": "^(aa)*$", "minLength": 3000, "maxLength": 3003}, "a" * 3003, False),
        ({"format": "uri", "minLength": 2000, "maxLength": 2**40}, "http://b/" + "a" * 1991, True),
        ({"format": "uri", "minLength": 2000, "maxLength": 2**40}, "http://b/" + "a" * 1990, False),
        ({"not": {"type": "string", "minLength": 4000}}, "é" * 3999, True),
        ({"not": {"type": "string", "minLength": 4000}}, "é" * 4000, False),
        ({"oneOf": [{"maxLength": 3000}, {"minLength": 2000}]}, "é" * 1999, True),
        ({"oneOf": [{"maxLength": 3000}, {"minLength": 2000}]}, "é" * 2000, False),
        ({"oneOf": [{"maxLength": 3000}, {"minLength": 2000}]}, "é" * 3001, True),
    ],
)
def test_large_bounds_in_combination(schema: Any, value: Any, valid: bool, order: PropertyOrder) -> None:
    assert is_valid(judge(schema), json.dumps(value)) is valid
    assert accepts(grammar_of(schema, order), json.dumps(value, ensure_ascii=False).encode()) is valid


NAMED_X = {"properties": {"x": {"const": 1}, "xy": {"const": 2}}, "patternProperties": {"^x": {"type": "integer"}}}
EITHER = {"type": "object", "properties": {"z": {"type": "number"}}, "required": ["z"]}


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"propertyNames": {"maxLength": 1024}}, [{"é" * 1024: 1}, {"a": 1, "b": 2}, {"a" * 1025: 1}]),
        ({"propertyNames": {"minLength": 2000}}, [{"a": 1}, {"a" * 2000: 1, "é" * 2000: 2}, {"a" * 1999: 1}]),
        ({"propertyNames": {"not": {"maxLength": 1024}}}, [{"a": 1}, {"a" * 1025: 1}, {"a" * 1024: 1}]),
        (
            {"patternProperties": {"^.{1,700}$": {"type": "integer"}}, "additionalProperties": False},
            [{"a" * 700: 1}, {"a": 1, "b": 2}, {"a" * 701: 1}, {"": 1}, {"a": "b"}],
        ),
        (
            {"anyOf": [{"type": "object", "propertyNames": {"maxLength": 1024}}, EITHER]},
            [{"a" * 1024: 1}, {"a" * 1025: 1}, {"z": 1, "a" * 1025: 1}, {"z": "a"}],
        ),
        (
            {"anyOf": [{"propertyNames": {"maxLength": 1500}}, {"propertyNames": {"minLength": 1400}}]},
            [{"a" * 1500: 1, "b": 2}, {"a" * 1501: 1}, {"a" * 1501: 1, "b": 2}, {"a" * 1400: 1, "b" * 1700: 2}],
        ),
        (
            {"propertyNames": {"pattern": "^[a-y]+$", "maxLength": 1024}, **NAMED_X},
            [{"x": 1, "x" + "a" * 1023: 3}, {"xy": 3}, {"x" * 1025: 1}, {"xya": "a"}, {"a" * 1024: "a"}, {"z": 1}],
        ),
        ({"propertyNames": {"pattern": "^a+$", "maxLength": 1500}, "minProperties": 2}, [{"a" * 1500: 1, "a": 2}]),
        ({"propertyNames": {"pattern": "^é+$", "maxLength": 2}, "minProperties": 2}, [{"éé": 1, "é": 2}, {"é": 1}]),
    ],
)
def test_lengths_of_names(schema: Any, values: list[Any], order: PropertyOrder) -> None:
    grammar, oracle = grammar_of(schema | {"type": "object"}, order), judge(schema | {"type": "object"})
    for value in values:
        text = json.dumps(value, ensure_ascii=False)
        assert accepts(grammar, text.encode()) is is_valid(oracle, text), text[:50]


def test_a_name_that_has_come_is_no_way_to_an_end() -> None:
    most = {"type": "object", "propertyNames": {"pattern": "^a+$", "minLength": 1, "maxLength": 3}}
    grammar = grammar_of(most | {"minProperties": 3})
    assert accepts(grammar, b'{"aa":1,"aaa":2,"a":3}')
    matcher = Matcher(grammar)
    for byte in b'{"aaa":1,"aa':
        assert matcher.accept(byte)
    assert ord("a") not in allowed(matcher, vocabulary())


@pytest.mark.parametrize("bound", [2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63])
def test_bounds_beyond_any_output(bound: int) -> None:
    assert accepts(grammar_of({"type": "string", "maxLength": bound}), b'"abc"')
    assert not accepts(grammar_of({"type": "string", "minLength": bound}), b'"abc"')
    assert accepts(grammar_of({"not": {"type": "string", "minLength": bound}}), b'"abc"')
    assert not accepts(grammar_of({"not": {"type": "string", "maxLength": bound}}), b'"abc"')


@pytest.mark.parametrize(
    "schema",
    [
        {"maxLength": 0},
        {"minLength": 0},
        {"minLength": 0, "maxLength": 0, "pattern": "^(ab)*c?$"},
        {"anyOf": [tagged(0, "a"), {"properties": {"description": {"minLength": 0, "pattern": "a$"}}}]},
        {"anyOf": [{"enum": ["abab", "b"]}, {"type": "string", "maxLength": 0}]},
    ],
)
def test_states_do_not_grow_with_bounds(schema: Any) -> None:
    def num_states(bound: int) -> int:
        text = json.dumps(schema).replace('Length": 0', f'Length": {bound}')
        grammar = grammar_of(text)
        matcher = grammar.matcher()
        for byte in b'{"description": "abababab' if "anyOf" in schema and '"a' in text else b'"abababab':
            matcher.accept(byte)
            allowed(matcher, vocabulary())
        return grammar.generation.automaton.tables.num_states

    assert num_states(1000) == num_states(2_000_000) >= num_states(2**63)  # which no text exceeds


_bound = st.integers(0, 6)
_leaf = st.one_of(
    _bound.map(lambda bound: {"maxLength": bound}),
    _bound.map(lambda bound: {"minLength": bound}),
    st.tuples(_bound, _bound).map(lambda pair: {"minLength": min(pair), "maxLength": max(pair)}),
    st.sampled_from(["^a", "b$", "^(aa)*$", "^a{0,3}$", "ab", "^(a|b{4})$", "^(a|b*)$", "^.b{2,}"]).map(
        lambda pattern: {"pattern": pattern}
    ),
    st.lists(st.sampled_from(["", "a", "b", "ab", "abab", "bbbbb"]), min_size=1, max_size=3).map(
        lambda texts: {"enum": texts}
    ),
)


@pytest.mark.exhaustive
@given(combined(_leaf, 5))
@many(30)
def test_short_strings_are_accepted_exactly_if_valid(part: dict[str, Any]) -> None:
    """Every text of up to seven letters; and masks on the way, which agree with steps and are never empty."""
    schema = {"allOf": [{"type": "string"}, part]}
    grammar, validator = compiled_or_none(JsonSchema(schema), vocabulary()), judge(schema)
    texts = ["".join(letters) for length in range(8) for letters in itertools.product("ab", repeat=length)]
    valid = {text for text in texts if is_valid(validator, json.dumps(text))}
    if grammar is None:
        assert not valid
        return
    begun = {'"' + text[:length] for text in valid for length in range(len(text) + 1)}
    for text in sorted(texts, key=lambda text: (len(text), text)):
        matcher = grammar.matcher()
        for byte in f'"{text}'.encode():
            if not matcher.accept(byte):
                assert f'"{text}' not in begun
                break
        else:
            tokens = allowed(matcher, vocabulary())
            assert tokens, f"no token may follow {text!r}"
            assert (ord('"') in tokens) is (text in valid)
            for token in (ord("a"), ord("b"), ord('"'), *range(256, 256 + len(CHUNKS))):
                assert matcher.accept(token) is (token in tokens), (text, TOKENS[token])
                if token in tokens:
                    matcher.rollback(1)


@pytest.mark.parametrize("order", ["any", "schema"])
def test_lengths_that_decide_between_alternatives_are_followed_before_the_first_token(order: PropertyOrder) -> None:
    """The patterns are too complex together to be left to the first text that reaches them."""
    patterns = [{"pattern": f"^{letter}[0-9]{{2,10}}$"} for letter in "ABCDEFGHIJKLMN"]
    schema = {
        "properties": {"a": {"type": "string", "maxLength": 100}, "b": {"anyOf": patterns}},
        "not": {"properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": ["A12"]}}},
    }
    grammar = grammar_of(schema, order)
    grammar, oracle = grammar_of(schema, order), judge(schema)
    for value in ({"a": "12345", "b": "A12"}, {"a": "123456", "b": "A12"}, {"a": "12345", "b": "B12"}):
        text = json.dumps(value)
        assert accepts(grammar, text.encode()) is is_valid(oracle, text), text
