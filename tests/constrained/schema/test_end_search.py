"""Objects and arrays that have begun can end: random walks over masks of schemas with conflicting constraints.

The constraints leave little room: required and forbidden names, numbers of members, dependent names, parts that must
fail. `jsonschema` validates the outputs, and lists the values that must be accepted.
"""

from __future__ import annotations

import itertools
import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, JsonSchema, PropertyOrder, Vocabulary, compile_constraint
from ramiform.tests.constrained.strategies import SEEDS, combined, many, some
from ramiform.tests.constrained.walks import allowed, compiled_or_none, shared_vocabulary

from .oracle_jsonschema import is_valid, judge

LETTERS = '{}[]",:abc01.truefalsn'
EOS = len(set(LETTERS))
NAMES = ["a", "b", "c", "ab"]
MANY = many(60)


@cache
def letters() -> Vocabulary:
    return Vocabulary.from_tokens([*(letter.encode() for letter in dict.fromkeys(LETTERS)), None], [EOS])


_count = st.integers(0, 3)
_names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)
_value: st.SearchStrategy[Any] = st.sampled_from(
    [True, True, False, {"const": 0}, {"enum": [0, 1, "a"]}, {"type": "boolean"}, {"not": {"const": 1}}]
)


def _object_keywords(value: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "properties": st.dictionaries(st.sampled_from(NAMES), value, min_size=1, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b", "^[ab]$", "^.$"]), value, max_size=2),
        "additionalProperties": value,
        "required": _names,
        "propertyNames": st.sampled_from(
            [{"pattern": "^[abc]$"}, {"enum": ["a", "ab", "ba"]}, {"maxLength": 1}, {"not": {"pattern": "b"}}]
        ),
        "minProperties": _count,
        "maxProperties": _count,
        "dependentRequired": st.dictionaries(st.sampled_from(NAMES), _names, min_size=1, max_size=2),
        "dependentSchemas": st.dictionaries(
            st.sampled_from(NAMES), _names.map(lambda n: {"required": n}) | st.just({"maxProperties": 1}), max_size=2
        ),
        "unevaluatedProperties": st.sampled_from([False, {"const": 0}]),
    }


_objects = combined(some(_object_keywords(_value), 1, 3), 4)
OBJECTS = combined(some(_object_keywords(_value | _objects.map(lambda s: {"type": "object", **s})), 2, 5), 4)


def compiled(schema: Any, order: PropertyOrder = "any") -> CompiledGrammar | None:
    """Compile a schema; None if no value is valid. None of these schemas is too complex."""
    return compiled_or_none(JsonSchema(schema), letters(), "compact", order)


def walked(grammar: CompiledGrammar, rng: random.Random, patience: int) -> str | None:
    """Walk at random, after `patience` tokens with a bias to closing ones. None if the output does not end in time."""
    matcher, output = grammar.matcher(), ""
    texts = list(dict.fromkeys(LETTERS))
    for step in range(400):
        tokens = allowed(matcher, letters())
        assert tokens, f"a mask is empty after {output}"
        assert matcher.is_accepting() == (EOS in tokens)
        if step > patience and rng.random() < 0.8:
            tokens = [t for t in tokens if t == EOS or texts[t] in '"}]'] or tokens
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token == EOS:
            return output
        output += texts[token]
    return None


def accepted(grammar: CompiledGrammar | None, text: str) -> bool:
    if grammar is None:
        return False
    matcher = grammar.matcher()
    numbers = {letter: number for number, letter in enumerate(dict.fromkeys(LETTERS))}
    return all(matcher.accept(numbers[letter]) for letter in text) and matcher.is_accepting()


@pytest.mark.exhaustive
@MANY
@given(
    schema=OBJECTS.map(lambda s: {**s, "type": "object"}),
    seed=SEEDS,
    order=st.sampled_from(["any", "any", "schema"]),
)
def test_an_object_that_has_begun_can_end(schema: Any, seed: int, order: str) -> None:
    rng, grammar, validator = random.Random(seed), compiled(schema, order), judge(schema)
    for walk in range(8):
        text = walked(grammar, rng, patience=8 * walk) if grammar is not None else None
        assert text is None or is_valid(validator, text), text


OBJECT_VALUES = [
    dict(zip(names, values, strict=True))
    for count in range(4)
    for names in itertools.combinations(["a", "b", "c", "ab", "ba"], count)
    for values in itertools.product([0, 1], repeat=count)
]


@pytest.mark.exhaustive
@MANY
@given(schema=OBJECTS.map(lambda s: {**s, "type": "object"}), seed=SEEDS)
def test_objects_are_accepted_exactly_when_they_are_valid(schema: Any, seed: int) -> None:
    rng, grammar, validator = random.Random(seed), compiled(schema), judge(schema)
    for value in rng.sample(OBJECT_VALUES, 40):
        names = rng.sample(list(value), len(value))
        text = json.dumps({name: value[name] for name in names}, separators=(",", ":"))
        assert accepted(grammar, text) == is_valid(validator, text), text


_item: st.SearchStrategy[Any] = st.sampled_from(
    [True, False, {"const": 0}, {"enum": [0, 1]}, {"type": "boolean"}, {"not": {"const": 1}}, {"enum": [1, "a", [0]]}]
)


def _array_keywords(item: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    return {
        "items": item,
        "prefixItems": st.lists(item, min_size=1, max_size=3),
        "contains": item,
        "minContains": _count,
        "maxContains": _count,
        "minItems": _count,
        "maxItems": _count,
        "uniqueItems": st.just(True),
        "unevaluatedItems": st.sampled_from([False, {"const": 0}]),
    }


_arrays = combined(some(_array_keywords(_item), 1, 3), 4)
ARRAYS = combined(some(_array_keywords(_item | _arrays.map(lambda s: {"type": "array", **s})), 2, 6), 4)
ARRAY_VALUES = [list(items) for count in range(5) for items in itertools.product([0, 1, "a", False, [0]], repeat=count)]


@pytest.mark.exhaustive
@MANY
@given(schema=ARRAYS.map(lambda s: {**s, "type": "array"}), seed=SEEDS)
def test_an_array_that_has_begun_can_end(schema: Any, seed: int) -> None:
    rng, grammar, validator = random.Random(seed), compiled(schema), judge(schema)
    for walk in range(8):
        text = walked(grammar, rng, patience=4 * walk) if grammar is not None else None
        assert text is None or is_valid(validator, text), text


@pytest.mark.exhaustive
@MANY
@given(schema=ARRAYS.map(lambda s: {**s, "type": "array"}), seed=SEEDS)
def test_arrays_are_accepted_exactly_when_they_are_valid(schema: Any, seed: int) -> None:
    rng, grammar, validator = random.Random(seed), compiled(schema), judge(schema)
    for value in rng.sample(ARRAY_VALUES, 40):
        text = json.dumps(value, separators=(",", ":"))
        assert accepted(grammar, text) == is_valid(validator, text), text


@pytest.mark.parametrize(
    ("schema", "has_values"),
    [
        ({"anyOf": [{"type": "string", "pattern": "^$", "minLength": 1}, {"enum": []}]}, False),
        ({"anyOf": [{"enum": []}, {"type": "array", "minItems": 2, "items": {"const": "a"}}]}, True),
        ({"anyOf": [{"type": "string"}], "type": "null"}, False),
        ({"anyOf": [{"type": "string"}], "not": {"type": "string"}}, False),
        ({"type": "array", "minItems": 2, "maxItems": 1}, False),
        ({"type": "array", "minItems": 1, "items": False}, False),
        ({"type": "array", "minItems": 1, "items": {"anyOf": [False, {"const": 1, "type": "string"}]}}, False),
        ({"type": "array", "minItems": 2, "items": {"const": "a"}, "uniqueItems": True}, False),
        ({"type": "array", "minItems": 3, "prefixItems": [True], "items": False}, False),
        ({"const": "a", "minLength": 2}, False),
        ({"const": "a", "enum": ["b"]}, False),
        ({"const": 2, "type": "integer"}, True),
    ],
)
def test_a_member_is_begun_only_if_its_schema_has_values(schema: dict[str, Any], has_values: bool) -> None:
    around = {"type": "object", "properties": {"a": schema}, "additionalProperties": False}
    grammar = compile_constraint(JsonSchema(around), shared_vocabulary())
    matcher = grammar.matcher()
    assert [matcher.accept(byte) for byte in b'{"'] == [True, has_values]
