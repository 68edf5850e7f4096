"""Given values together with other keywords and with other schemas of the same value. `jsonschema` judges."""

from __future__ import annotations

import json
import random
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ramiform.constrained import GrammarError, PropertyOrder, SchemaOptions
from ramiform.constrained.schema.listed.evaluation import satisfies
from ramiform.constrained.schema.listed.values import given_value
from ramiform.tests.constrained.strategies import SEEDS, many
from ramiform.tests.constrained.walks import accepts

from ..oracle_jsonschema import (
    Draft,
    Guesser,
    has_reference_cycle,
    in_draft,
    is_valid,
    judge,
    schemas,
    spelled,
)
from .given_values import GIVEN, MANY, ORDERS, changed, compiled, compiler_of


@pytest.mark.slow
@pytest.mark.parametrize("number", [65, 200])
def test_more_than_64_combinations_of_truths_are_told_apart(number: int) -> None:
    tools = [
        {"properties": {"tool": {"const": f"tool_{n}"}, "n": {"const": n}}, "required": ["tool", "n"]}
        for n in range(number)
    ]
    grammar = compiled({"type": "object", "anyOf": tools})
    for n in range(number):
        assert accepts(grammar, json.dumps({"tool": f"tool_{n}", "n": n}).encode()), n
        assert not accepts(grammar, json.dumps({"tool": f"tool_{n}", "n": n + 1}).encode()), n


@pytest.mark.exhaustive
@MANY
@given(schema=schemas(), seed=SEEDS, draft=st.sampled_from(get_args(Draft)))
def test_whether_a_value_satisfies_a_schema_is_decided_as_by_jsonschema(schema: Any, seed: int, draft: Draft) -> None:
    assume(not has_reference_cycle(schema))
    schema = in_draft(schema, draft)
    rng, judged = random.Random(seed), judge(schema, draft)
    try:
        compiler = compiler_of(schema)
        goal = compiler.goal(compiler.document.start)
        guesser = Guesser(schema, rng)
        values = [json.loads(json.dumps(guesser.guess())) for _ in range(12)]
        found = [satisfies(compiler, goal, given_value(compiler, value)) for value in values]
    except GrammarError:
        assume(False)
        raise
    expected = [is_valid(judged, json.dumps(value)) for value in values]
    assert [
        value for value, ours, theirs in zip(values, found, expected, strict=True) if ours not in (theirs, None)
    ] == []


@pytest.mark.exhaustive
@MANY
@given(
    schema=schemas(),
    values=st.lists(GIVEN, max_size=5),
    keyword=st.sampled_from(["allOf", "anyOf", "oneOf", "not", "if"]),
    order=st.sampled_from(ORDERS),
    seed=SEEDS,
)
def test_given_values_combine_with_other_schemas(
    schema: Any, values: list[Any], keyword: str, order: PropertyOrder, seed: int
) -> None:
    assume(not has_reference_cycle(schema) and '"$ref": "#"' not in json.dumps(schema))
    rng = random.Random(seed)
    guesser = Guesser(schema, rng)
    values = [*values, *(json.loads(json.dumps(guesser.guess())) for _ in range(4))]
    definitions = {"$defs": schema["$defs"]} if isinstance(schema, dict) and "$defs" in schema else {}
    listed = {"enum": values}
    combined: dict[str, Any] = {
        "allOf": {"allOf": [schema, listed]},
        "anyOf": {"anyOf": [schema, listed]},
        "oneOf": {"oneOf": [schema, listed]},
        "not": {"allOf": [schema, {"not": listed}]},
        "if": {"if": schema, "then": listed},
    }[keyword] | definitions
    judged = judge(combined)
    try:
        grammar = compiled(combined, order, "compact")
    except GrammarError as error:
        assume("no text at all" in str(error))
        for value in values:
            assert not is_valid(judged, json.dumps(value)), value
        return
    for value in [*values, *(changed(rng.choice(values), rng) for _ in range(6))]:
        text = spelled(value, "compact", rng)
        found = accepts(grammar, text.encode())
        if found:
            assert is_valid(judged, text), text
        elif order == "any":
            assert not is_valid(judged, text), text


@pytest.mark.parametrize("order", ORDERS)
def test_members_with_given_values_decide_how_an_object_goes_on(order: PropertyOrder) -> None:
    places = [{"x": n % 9, "y": [n // 9]} for n in range(80)]
    schema = {
        "type": "object",
        "properties": {"at": {"enum": places}, "n": {"type": "integer"}},
        "required": ["at", "n"],
        "allOf": [
            {
                "if": {"properties": {"at": {"enum": places[:40]}}, "required": ["at"]},
                "then": {"properties": {"n": {"maximum": 10}}},
                "else": {"properties": {"n": {"minimum": 11}}},
            }
        ],
    }
    grammar = compiled(schema, order)
    for n, place in enumerate(places):
        for number in (10, 11):
            text = json.dumps({"at": place, "n": number}).encode()
            assert accepts(grammar, text) == ((n < 40) == (number == 10)), text


def test_unique_items_of_given_objects_run_out() -> None:
    values = [{"a": 1}, {"a": 2, "b": []}, [1]]
    grammar = compiled({"type": "array", "items": {"enum": values}, "uniqueItems": True, "minItems": 2})
    for items in ([0, 1], [2, 1, 0], [0, 2]):
        assert accepts(grammar, json.dumps([values[n] for n in items]).encode())
    for items in ([0], [0, 0], [1, 2, 1]):
        assert not accepts(grammar, json.dumps([values[n] for n in items]).encode())
    assert not accepts(grammar, b'[{"a": 1}, {"a": 1')


def test_too_many_given_objects_beside_other_objects_are_refused_with_their_pointer() -> None:
    values = [{"id": n} for n in range(200)]
    schemas_with_pointers: list[tuple[Any, str]] = [
        ({"anyOf": [{"enum": values}, {"required": ["x"]}], "type": "object"}, "/anyOf/0/enum"),
        ({"type": "object", "not": {"enum": values}}, "/not/enum"),
        ({"properties": {"a": {"items": {"not": {"enum": values}}}}}, "/properties/a/items/not/enum"),
    ]
    both = [{"a": {"enum": values}, "b": {"const": 1}}, {"a": {"required": ["id", "z"]}, "b": {"const": 2}}]
    schemas_with_pointers.append(
        (
            {"type": "object", "anyOf": [{"properties": each, "required": ["a", "b"]} for each in both]},
            "/anyOf/0/properties/a/enum",
        )
    )
    for schema, pointer in schemas_with_pointers:
        with pytest.raises(GrammarError, match="given objects") as raised:
            compiled(schema)
        assert raised.value.pointer == pointer


def test_given_objects_that_other_schemas_allow_or_refuse_anyway_are_no_burden() -> None:
    values = [{"id": n} for n in range(200)]
    grammar = compiled({"type": "object", "anyOf": [{"enum": values}, {"minProperties": 1}]})
    assert accepts(grammar, b'{"id": 7}')
    assert accepts(grammar, b'{"x": 7}')
    assert not accepts(grammar, b"{}")
    grammar = compiled({"type": "object", "not": {"enum": values}, "required": ["x"]})
    assert accepts(grammar, b'{"x": 7}')
    assert not accepts(grammar, b'{"id": 7}')


@pytest.mark.exhaustive
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_alternatives_of_one_object_each_are_as_given_values(keyword: str) -> None:
    branches: list[Any] = []
    for n in range(120):
        properties = {"a": {"const": n}, "b": {"enum": [f"text {n}"], "type": "string"}, "c": {"const": {"d": [n]}}}
        branches.append({"properties": properties, "required": ["b", "a", "c"], "additionalProperties": False})
    schema = {"type": "object", keyword: [*branches, branches[7]]}
    judged = judge(schema)
    for options in (SchemaOptions(), SchemaOptions("closed", "digits")):
        grammar = compiled(schema, options=options)
        for n in range(0, 120, 7):
            for d in (n, n + 1):
                text = json.dumps({"a": n, "b": f"text {n}", "c": {"d": [d]}})
                assert accepts(grammar, text.encode()) == is_valid(judged, text), text
        assert grammar.generation.automaton.tables.num_states < 100 * len(branches)
        assert accepts(grammar, b'{"a": 1.0, "b": "text 1", "c": {"d": [1]}}') == (options == SchemaOptions())
        assert accepts(grammar, b'{"c": {"d": [1]}, "b": "text 1", "a": 1}') == (options == SchemaOptions())


@pytest.mark.exhaustive
@many(40)
@given(seed=SEEDS, number=st.sampled_from([2, 5, 30]))
def test_given_numbers_are_told_apart_from_others(seed: int, number: int) -> None:
    rng = random.Random(seed)
    limits = [{"type": "integer"}, {"minimum": 3}, {"multipleOf": 2}, {"maximum": 2.5}, {"type": "number"}]
    values = rng.sample([0, 1, 1.5, 2, 3, 10, 1.05, -2, 20, 100, *range(200, 250)], number)
    branches = [{"properties": {"x": {"const": v}, "y": {"const": f"is {v}"}}, "required": ["x", "y"]} for v in values]
    others = {"properties": {"x": rng.choice(limits), "y": {"const": "other"}}, "required": ["x", "y"]}
    schema = {"type": "object", rng.choice(["anyOf", "oneOf"]): [*branches, others]}
    judged = judge(schema)
    grammar = compiled(schema, rng.choice(ORDERS), "compact")
    for x in ["0", "1", "1.0", "1.5", "1.50", "2", "2.0", "3", "1.05", "1.06", "-2", "20.00", "100", "101", "210.0"]:
        for y in ("other", f"is {rng.choice(values)}", f"is {x}"):
            text = f'{{"x":{x},"y":"{y}"}}'
            assert accepts(grammar, text.encode()) == is_valid(judged, text), text
