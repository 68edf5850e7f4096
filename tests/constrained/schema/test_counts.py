"""Bounds on items and members: exact, and at a cost that does not grow with them. Work is counted in states.

Short bounds get a state for each count. The tests of random schemas lower the length from which a range of counts
shares one, so that `jsonschema` can judge values on both sides of all bounds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import (
    GrammarError,
    JsonSchema,
    PropertyOrder,
    Vocabulary,
    compile_constraint,
)
from ramiform.constrained.schema import structure_parts
from ramiform.tests.constrained.strategies import SEEDS, combined, many, some
from ramiform.tests.constrained.walks import TOKENS, accepts, allowed, compiled, compiled_or_none, shared_vocabulary

from .oracle_jsonschema import is_valid, judge

MANY = many(40)
LARGE = 100_000


@contextmanager
def long_ranges_from(length: int) -> Iterator[None]:
    before, structure_parts.LEAST_LONG = structure_parts.LEAST_LONG, length
    try:
        yield
    finally:
        structure_parts.LEAST_LONG = before


def spelled(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def members(count: int, name: str = "k{}") -> bytes:
    return spelled({name.format(number): 1 for number in range(count)})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("keywords", "most_states"),
    [
        ({"minItems": LARGE, "maxItems": LARGE + 1}, 40),
        ({"minItems": LARGE, "maxItems": LARGE + 1, "contains": {"const": 1}}, 80),
        ({"anyOf": [{"minItems": LARGE, "maxItems": LARGE + 1}, {"minItems": 2 * LARGE}]}, 80),
        ({"prefixItems": [{"const": 1}, True], "minItems": float(LARGE), "maxItems": LARGE + 1}, 80),
    ],
)
def test_a_large_bound_on_items_needs_few_states(keywords: dict[str, Any], most_states: int) -> None:
    grammar = compiled({"type": "array", "items": {"enum": [1, 2]}, **keywords})
    matcher = grammar.matcher()
    assert all(matcher.accept(byte) for byte in b"[1" + b",1" * (LARGE - 2))
    assert not matcher.accept(ord("]"))
    for _ in (LARGE, LARGE + 1):
        assert all(matcher.accept(byte) for byte in b",1]")
        assert matcher.is_accepting()
        matcher.rollback(1)
    assert not all(matcher.accept(byte) for byte in b",1]")
    assert grammar.generation.automaton.tables.num_states <= most_states


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "keywords",
    [
        {"minProperties": 1000, "maxProperties": 1001},
        {"minProperties": 1000, "maxProperties": 1001, "required": ["k7"], "properties": {"k7": {"const": 1}}},
        {
            "minProperties": 1000,
            "maxProperties": 1001,
            "patternProperties": {"^k": True},
            "additionalProperties": False,
        },
        {"minProperties": 1000, "maxProperties": 1001, "propertyNames": {"minLength": 2}},
        {"anyOf": [{"minProperties": 1000, "maxProperties": 1001}, {"required": ["x"]}]},
        {"allOf": [{"maxProperties": 1001}, {"not": {"maxProperties": 999}}]},
        {"minProperties": 1000, "not": {"minProperties": 1002}},
    ],
)
def test_a_large_bound_on_members_needs_few_states(keywords: dict[str, Any]) -> None:
    grammar = compiled({"type": "object", "additionalProperties": {"const": 1}, **keywords})
    for count, holds in ((999, False), (1000, True), (1001, True), (1002, False)):
        assert accepts(grammar, members(count)) == holds, count
    assert not accepts(grammar, members(1000)[:-1] + b',"k700":1}')
    assert grammar.generation.automaton.tables.num_states <= 250


@pytest.mark.parametrize("bound", [2**31 - 1, 2**31, 2**32 + 1, 2**63])
def test_bounds_beyond_any_output_are_enforced(bound: int) -> None:
    for schema, text in [
        ({"type": "array", "minItems": bound}, b"[1,1,1"),
        ({"type": "object", "minProperties": bound}, b'{"a":1,"b":2'),
        ({"anyOf": [{"type": "array", "minItems": bound, "maxItems": bound}, {"const": 0}]}, b"[1,1,1"),
    ]:
        matcher = compiled(schema).matcher()
        assert all(matcher.accept(byte) for byte in text)
        assert not matcher.accept(text[0] + 2)  # the closing bracket
        assert matcher.accept(ord(","))
    assert accepts(compiled({"maxItems": bound, "maxProperties": bound}), b'[{"a":[1,2]},2]')


@pytest.mark.parametrize("keyword", ["minItems", "maxItems", "minProperties", "maxProperties"])
@pytest.mark.parametrize("value", [-1, 1.5, 2**63 + 1, 1e300, True, "1"])
def test_other_bounds_are_refused_with_their_pointer(keyword: str, value: Any) -> None:
    with pytest.raises(GrammarError, match=keyword) as caught:
        compiled({"properties": {"x": {keyword: value}}})
    assert caught.value.pointer == f"/properties/x/{keyword}"


def test_counts_are_kept_in_nested_arrays_and_after_a_rollback() -> None:
    schema = {"type": "array", "minItems": 40, "maxItems": 41, "items": {"type": "array", "maxItems": 30}}
    grammar = compiled(schema)
    inner = b"[" + b",".join([b"0"] * 30) + b"]"
    matcher = grammar.matcher()
    for byte in b"[" + b",".join([inner] * 41):
        assert matcher.accept(byte)
    assert matcher.forced() == b"]"
    matcher.rollback(len(inner) + 1 + 5)  # into the last but one inner array
    assert matcher.forced() == b""
    for byte in b",[0],[":
        assert matcher.accept(byte) == (byte != ord("[") or matcher.forced() != b"]")
    grammar = compiled(schema)
    text = b"[" + b",".join([inner] * 40)
    for extra, holds in ((b"]", True), (b",[]]", True), (b",[],[]]", False)):
        assert accepts(grammar, text + extra) == holds
    assert not accepts(grammar, text.replace(b"[0,0,", b"[0,0,0,", 1) + b"]")


def test_a_token_may_write_several_items_up_to_the_bound() -> None:
    """Masks are cached by state; near a bound they depend on the count."""
    tokens: list[bytes | None] = [b"[", b"]", b"1", b",", b",1", b",1,1", b",1,1,1]", b",1]", b'":1}', b"</s>"]
    vocabulary = Vocabulary.from_tokens(tokens, [len(tokens) - 1])
    schema = {"type": "array", "items": {"const": 1}, "minItems": 98, "maxItems": 100}
    grammar = compile_constraint(JsonSchema(schema), vocabulary, whitespace="compact")
    for _ in range(2):  # the second output finds the masks cached
        matcher = grammar.matcher()
        assert matcher.accept(0)
        assert matcher.accept(2)
        for count in range(1, 101):
            found = {tokens[token] for token in allowed(matcher, vocabulary)}
            expected = {b"]"} if count >= 98 else set()
            expected |= {token for token, more in ((b",", 1), (b",1", 1), (b",1,1", 2)) if count + more <= 100}
            expected |= {token for token, more in ((b",1]", 1), (b",1,1,1]", 3)) if 98 <= count + more <= 100}
            assert found == expected, count
            assert matcher.accept(4) == (count < 100)


_bound = st.integers(0, 14)
_item: st.SearchStrategy[Any] = st.sampled_from(
    [True, True, {"const": 0}, {"enum": [0, 1]}, {"not": {"const": 1}}, {"type": "integer"}, False]
)


ARRAYS = combined(
    some(
        {
            "items": _item,
            "prefixItems": st.lists(_item, min_size=1, max_size=2),
            "contains": _item,
            "minContains": st.integers(0, 2),
            "maxContains": st.integers(0, 2),
            "minItems": _bound,
            "maxItems": _bound,
        },
        1,
        4,
    ),
    3,
)
_names = st.lists(st.sampled_from(["a", "b", "k0"]), max_size=2, unique=True)
OBJECTS = combined(
    some(
        {
            "properties": st.dictionaries(st.sampled_from(["a", "b"]), _item, min_size=1, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^k", "^k1.$", "^[ak]$"]), _item, max_size=2),
            "additionalProperties": _item,
            "required": _names,
            "propertyNames": st.sampled_from([{"pattern": "^k"}, {"maxLength": 2}, {"enum": ["a", "b"]}]),
            "dependentRequired": st.dictionaries(st.sampled_from(["a", "k1"]), _names, min_size=1, max_size=2),
            "minProperties": _bound,
            "maxProperties": _bound,
        },
        1,
        4,
    ),
    3,
)


@pytest.mark.exhaustive
@MANY
@given(schema=ARRAYS.map(lambda s: {**s, "type": "array"}), seed=SEEDS)
def test_arrays_around_their_bounds_are_accepted_exactly_when_they_are_valid(schema: Any, seed: int) -> None:
    rng, validator = random.Random(seed), judge(schema)
    with long_ranges_from(1):
        grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary(), "compact")
        for _ in range(60):
            often = rng.choice([0, 1, "a"])
            value = [often if rng.random() < 0.8 else rng.choice([0, 1, "a"]) for _ in range(rng.randrange(17))]
            text = spelled(value)
            assert accepts(grammar, text) == is_valid(validator, text.decode()), value


@pytest.mark.exhaustive
@MANY
@given(
    schema=OBJECTS.map(lambda s: {**s, "type": "object"}),
    seed=SEEDS,
    order=st.sampled_from(["any", "any", "schema"]),
)
def test_objects_around_their_bounds_are_accepted_exactly_when_they_are_valid(
    schema: Any, seed: int, order: Any
) -> None:
    rng, validator = random.Random(seed), judge(schema)
    names = ["a", "b", *(f"k{number}" for number in range(16))]
    with long_ranges_from(1):
        grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary(), "compact", order)
        for _ in range(40):
            often = rng.choice([0, 1])
            chosen = rng.sample(names, rng.randrange(len(names)))
            value = {name: often if rng.random() < 0.8 else rng.choice([0, 1, "a"]) for name in chosen}
            text = spelled(value)
            if order == "any":
                assert accepts(grammar, text) == is_valid(validator, text.decode()), value
            elif accepts(grammar, text):
                assert is_valid(validator, text.decode()), value


@pytest.mark.exhaustive
@MANY
@given(schema=(ARRAYS | OBJECTS), seed=SEEDS, order=st.sampled_from(["any", "schema"]))
def test_masks_near_bounds_are_never_empty_and_agree_with_steps(schema: Any, seed: int, order: Any) -> None:
    """Long outputs: a walk that prefers one more item or member, and closes at random."""
    rng, vocabulary, schema = random.Random(seed), shared_vocabulary(), {**schema, "type": ["array", "object"]}
    with long_ranges_from(1):
        grammar = compiled_or_none(JsonSchema(schema), vocabulary, "compact", order)
        if grammar is None:
            return
        matcher, output = grammar.matcher(), b""
        for number in range(400):
            tokens = allowed(matcher, vocabulary)
            assert tokens, output
            for token in rng.sample(range(len(TOKENS)), 12):
                assert matcher.accept(token) == (token in tokens), (output, TOKENS[token])
                if token in tokens:
                    matcher.rollback(1)
            wanted = [b",", b'"k%d":' % number, b"0", b"1", b"{", b"[", b'"a":', b'"b":', b'"', b"}", b"]"]
            if rng.random() < 0.1:
                rng.shuffle(wanted)
            if not any(_takes(matcher, move) and (moved := move) for move in wanted):
                moved = TOKENS[rng.choice(tokens)] or b""
                if moved == b"</s>":
                    break
                assert _takes(matcher, moved)
            output += moved
            if matcher.is_accepting():
                assert is_valid(judge(schema), output.decode()), output
                break


def _takes(matcher: Any, data: bytes) -> bool:
    for count, byte in enumerate(data):
        if not matcher.accept(byte):
            matcher.rollback(count)
            return False
    return True


@pytest.mark.parametrize("keyword", ["minContains", "maxContains"])
def test_large_counts_of_contained_items_are_refused_with_their_pointer(keyword: str) -> None:
    with pytest.raises(GrammarError, match=keyword) as caught:
        compiled({"items": {"contains": {"const": 1}, keyword: 1001}})
    assert caught.value.pointer == f"/items/{keyword}"
    assert accepts(compiled({"contains": {"const": 1}, "maxContains": 5000, "maxItems": 5000}), b"[1,1]")
    assert not accepts(compiled({"contains": {"const": 1}, "minContains": 3}), b"[1,1]")


INTEGER_A: Any = {"properties": {"a": {"type": "integer"}}}
INTEGERS: Any = {"items": {"type": "integer"}}


@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize(
    "schema",
    [
        {"maxProperties": 2, "anyOf": [{"minProperties": 3}, INTEGER_A]},
        {"allOf": [{"maxProperties": 1}, {"anyOf": [{"minProperties": 2}, INTEGER_A]}]},
        {
            "anyOf": [
                {"required": ["b"], "maxProperties": 2, "dependentSchemas": {"b": {"minProperties": 3}}},
                INTEGER_A,
            ]
        },
        {"allOf": [{"maxItems": 2}, {"anyOf": [{"minItems": 3}, INTEGERS]}]},
        {"anyOf": [{"minItems": 3, "prefixItems": [True, True, False]}, INTEGERS]},
        {"anyOf": [{"minItems": 3, "prefixItems": [True, True], "items": False}, INTEGERS]},
    ],
)
def test_an_alternative_that_no_number_of_members_satisfies_is_not_begun(schema: Any, order: PropertyOrder) -> None:
    kind = "array" if "Items" in json.dumps(schema) else "object"
    vocabulary = shared_vocabulary()
    grammar = compile_constraint(JsonSchema({"type": kind, **schema}), vocabulary, whitespace="compact", order=order)
    valid = {"object": '{"a":1}', "array": "[1]"}[kind]
    for text in ('{"a":1}', '{"a":true}', "[1]", "[[]]"):
        assert accepts(grammar, text.encode()) == (text == valid)
    matcher = grammar.matcher()
    for byte in b'{"a":' if kind == "object" else b"[":
        assert allowed(matcher, vocabulary)
        assert matcher.accept(TOKENS.index(bytes([byte])))
    assert not matcher.accept(TOKENS.index(b"t"))
