"""Values that `enum` and `const` list, of any type and number: all of them are accepted, and nothing else.

`jsonschema` judges. Work is bounded in states, never in seconds.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import GrammarError, PropertyOrder, SchemaOptions
from ramiform.constrained.schema.listed.values import given_value, json_value
from ramiform.tests.constrained.strategies import SEEDS, shuffled
from ramiform.tests.constrained.walks import EOS, accepts, allowed, shared_vocabulary

from ..oracle_jsonschema import (
    Whitespace,
    is_valid,
    judge,
    spelled,
)
from .given_values import GIVEN, MANY, ORDERS, WHITESPACE, changed, compiled, compiler_of


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [65, 90, 700])
def test_each_of_many_objects_is_accepted(order: PropertyOrder, number: int) -> None:
    values = [{"id": n, "name": f"tool_{n}", "at": [n % 7, {"x": n // 7}]} for n in range(number)]
    grammar = compiled({"enum": values}, order)
    assert [value for value in values if not accepts(grammar, json.dumps(value).encode())] == []
    assert not accepts(grammar, json.dumps({**values[3], "id": 4}).encode())
    assert not accepts(grammar, json.dumps({**values[3], "more": 4}).encode())


@pytest.mark.exhaustive
def test_each_of_many_values_of_any_type_is_accepted() -> None:
    values: list[Any] = [None, True, False]
    for n in range(300):
        values += [n, n + 0.5, f"text {n}", [n], [n, "x"], {"a": n}, {"a": [n], "b": None}]
    grammar = compiled({"enum": values})
    rng = random.Random(3)
    for value in rng.sample(values, 300):
        assert accepts(grammar, spelled(value, "bounded", rng).encode()), value
    for value in ([300], [1, 2], {"a": 300}, {"b": None}, 300, "text 300", [], {}):
        assert not accepts(grammar, json.dumps(value).encode()), value


@pytest.mark.exhaustive
@MANY
@given(
    values=st.lists(GIVEN, min_size=1, max_size=12),
    whitespace=WHITESPACE,
    closed=st.booleans(),
    digits=st.booleans(),
    seed=SEEDS,
)
def test_listed_values_are_accepted_in_every_spelling_and_no_others(
    values: list[Any], whitespace: Whitespace, closed: bool, digits: bool, seed: int
) -> None:
    schema = {"enum": values}
    rng, judged = random.Random(seed), judge(schema)
    options = SchemaOptions("closed" if closed else "schema", "digits" if digits else "schema")
    compiler = compiler_of(True)
    separators = (",", ":") if whitespace == "compact" else (", ", ": ")
    # Of equal values the first one gives the order of the members.
    written = [json.dumps(json_value(given_value(compiler, value)), separators=separators) for value in values]
    for order in ORDERS:
        grammar = compiled(schema, order, whitespace, options)
        assert [text for text in written if not accepts(grammar, text.encode())] == []
        for value in [*values, *(changed(rng.choice(values), rng) for _ in range(12))]:
            text = spelled(value, whitespace, rng)
            if accepts(grammar, text.encode()):
                assert is_valid(judged, text), text
            elif is_valid(judged, text):
                assert order == "schema" or closed or digits, text  # only then is a spelling refused


def test_numbers_are_spelled_as_decimals_and_as_json_writes_them() -> None:
    grammar = compiled({"enum": [[1e22, 1e-7, 1.5, 10, 1.05, 100]]})
    for number in ("1e22", "2", "1.6", "1.050e0"):
        assert not accepts(grammar, f"[1e+22, 1e-07, {number}, 10, 1.05, 100]".encode())
    for text in (
        "[1e+22, 1e-07, 1.5, 10, 1.05, 100]",
        "[10000000000000000000000, 0.00000010, 1.500, 10.0, 1.050, 100]",
    ):
        assert accepts(grammar, text.encode()), text
    digits = compiled({"enum": [[1, 1.5]]}, options=SchemaOptions(integers="digits"))
    assert accepts(digits, b"[1, 1.50]")
    assert not accepts(digits, b"[1.0, 1.5]")


def test_true_is_not_one_and_one_is_one_point_zero() -> None:
    grammar = compiled({"enum": [[1.0, True], {"a": 0}]})
    for text, expected in {"[1, true]": 1, "[1.0, true]": 1, "[true, 1]": 0, "[1, 1]": 0, '{"a": 0.0}': 1}.items():
        assert accepts(grammar, text.encode()) == bool(expected), text
    assert not accepts(grammar, b'{"a": false}')


def test_members_come_in_the_order_of_the_given_object() -> None:
    schema = {"enum": [{"b": 1, "a": [{"y": 1, "x": 2}]}, {"b": 2, "a": []}]}
    for grammar in (compiled(schema, "schema"), compiled(schema, options=SchemaOptions("closed"))):
        assert accepts(grammar, b'{"b": 1, "a": [{"y": 1, "x": 2}]}')
        assert not accepts(grammar, b'{"a": []')
        assert not accepts(grammar, b'{"b": 1, "a": [{"x": 2, "y": 1}]}')
    assert accepts(compiled(schema), b'{"a": [{"x": 2, "y": 1}], "b": 1}')


def test_a_text_that_utf8_cannot_spell_leaves_the_other_values() -> None:
    grammar = compiled({"enum": [{"a": "\ud800"}, {"\ud800": 1}, ["\ud800"], {"a": "b"}]})
    assert accepts(grammar, b'{"a": "b"}')
    assert not accepts(grammar, b"[")


@pytest.mark.parametrize("schema", [{}, {"$ref": "#/$defs/tree"}])
def test_deep_values_are_read_and_compared(schema: Any) -> None:
    value: Any = []
    for _ in range(50):
        value = [{"a": value}]
    tree = {"items": {"properties": {"a": {"$ref": "#/$defs/tree"}}, "required": ["a"]}, "minItems": 0}
    grammar = compiled({"$defs": {"tree": tree}, "const": value, **schema})
    assert accepts(grammar, json.dumps(value).encode())
    assert not accepts(grammar, json.dumps(value[0]["a"]).encode())


def test_values_nested_too_deep_are_refused_with_their_pointer() -> None:
    value: Any = []
    for _ in range(250):
        value = [value]
    with pytest.raises(GrammarError, match="nested deeper") as raised:
        compiled({"items": {"const": value}})
    assert raised.value.pointer == "/items"


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("number", [500, 2000])
def test_the_states_are_linear_in_the_size_of_the_values(number: int, order: PropertyOrder) -> None:
    values = [{"kind": f"k{n % 5}", "id": n, "at": [n, {"x": n % 10}]} for n in range(number)]
    grammar = compiled({"enum": values}, order)
    rng = random.Random(5)
    texts = [json.dumps(shuffled(value, rng) if order == "any" else value) for value in values[:: number // 100]]
    before = grammar.generation.automaton.tables.num_states
    assert all(accepts(grammar, text.encode()) for text in texts)
    size = len(json.dumps(values))
    assert before <= 4 * size
    assert grammar.generation.automaton.tables.num_states - before <= 200 * len(texts)


@pytest.mark.exhaustive
def test_the_states_are_linear_in_the_number_of_members() -> None:
    names = [f"{'key é' if n % 3 else 'other'}{n}" for n in range(400)]
    values = [{name: n % 7 for n, name in enumerate(names)}, {name: n % 5 for n, name in enumerate(names[:200])}]
    grammar = compiled({"enum": values})
    rng = random.Random(2)
    for value in values:
        for _ in range(3):
            text = json.dumps(shuffled(value, rng), ensure_ascii=rng.random() < 0.5)
            assert accepts(grammar, text.encode())
    size = len(json.dumps(values))
    assert grammar.generation.automaton.tables.num_states < 20 * size
    missing = {name: value for name, value in values[1].items() if name != names[50]}
    assert not accepts(grammar, json.dumps(missing).encode())
    twice = json.dumps(values[1])[:-1] + f', "{names[0]}": 0}}'
    assert not accepts(grammar, twice.encode())
    matcher, vocabulary = grammar.matcher(), shared_vocabulary()
    for byte in json.dumps(shuffled(values[1], rng)).encode():
        assert byte in allowed(matcher, vocabulary)
        assert matcher.accept(byte)


@pytest.mark.slow
def test_walks_that_prefer_to_repeat_never_meet_an_empty_mask() -> None:
    vocabulary = shared_vocabulary()
    values = [{"a": n % 3, "b": [n % 2] * (n % 4), "ab": {"a": n}} for n in range(40)] + [[n, [n]] for n in range(9)]
    schemas_: list[Any] = [
        {"enum": values},
        {"type": "array", "items": {"enum": values[:6]}, "uniqueItems": True, "maxItems": 4},
        {"properties": {"a": {"enum": values}, "b": {"enum": values}}, "required": ["a"]},
    ]
    for schema in schemas_:
        judged = judge(schema)
        for order in ORDERS:
            grammar = compiled(schema, order, "compact")
            for seed in range(8):
                rng, matcher, output = random.Random(seed), grammar.matcher(), b""
                while len(output) < 400:
                    tokens = allowed(matcher, vocabulary)
                    assert tokens, output
                    assert matcher.is_accepting() == (EOS in tokens)
                    if tokens == [EOS]:
                        assert is_valid(judged, output.decode())
                        break
                    tokens = [token for token in tokens if token != EOS]
                    repeating = [t for t in tokens if (vocabulary.tokens[t] or b"") in output[-60:]]
                    token = rng.choice(repeating if repeating and rng.random() < 0.8 else tokens)
                    assert matcher.accept(token)
                    output += vocabulary.tokens[token] or b""
