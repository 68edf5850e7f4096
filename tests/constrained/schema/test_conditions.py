"""Conditions on the members of one object: hundreds of them lose no value, judged by `jsonschema`, and cost no search.

Those that cannot be told apart are refused before the first token.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Literal

import pytest

from ramiform.constrained import (
    GrammarError,
    JsonSchema,
    PropertyOrder,
    SchemaOptions,
    compile_constraint,
)
from ramiform.constrained.schema.alternatives.object_search import ObjectEndSearch
from ramiform.constrained.schema.end_search import EndSearch
from ramiform.tests.constrained.walks import accepts, compiled, shared_vocabulary, text_of

from .oracle_jsonschema import is_valid, judge


def switch(count: int, *, required: bool = True, tag: Callable[[int], Any] = lambda n: {"const": f"t{n}"}) -> Any:
    """Return conditions on one member, each of which requires another."""
    condition = {"required": ["tag"]} if required else {}
    return {
        "type": "object",
        "allOf": [
            {
                "if": {"properties": {"tag": tag(number)}, **condition},
                "then": {"properties": {f"v{number}": {"type": "integer"}}, "required": [f"v{number}"]},
            }
            for number in range(count)
        ],
    }


def independent(count: int, letter: str = "a") -> Any:
    """Return conditions on different members."""
    return {
        "type": "object",
        "allOf": [
            {
                "if": {"properties": {f"{letter}{n}": {"const": 1}}, "required": [f"{letter}{n}"]},
                "then": {"required": [f"b{n}"]},
            }
            for n in range(count)
        ],
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize("required", [True, False])
def test_three_hundred_conditions_on_one_tag(required: bool) -> None:
    schema = switch(300, required=required)
    grammar = compiled(schema)
    values = [{"tag": "t7", "v7": 1}, {"tag": "t7", "v8": 1}, {"v299": 1, "tag": "t299"}, {"tag": "x"}, {}, {"v1": "x"}]
    values += [{f"v{n}": 1 for n in range(300)}, {"v1": "x", "tag": "t2", "v2": 1}]
    for value in values:
        assert accepts(grammar, text_of(value)) == is_valid(judge(schema), text_of(value).decode()), value


@pytest.mark.exhaustive
def test_three_hundred_conditions_on_different_members() -> None:
    grammar = compiled(independent(300))
    both = {f"a{n}": 1 for n in range(300)} | {f"b{n}": [] for n in range(300)}
    for value in ({}, {"a7": 1, "b7": 0}, {"b299": 1, "a299": 1}, {"a7": 2}, both):
        assert accepts(grammar, text_of(value))
    del both["b150"]
    for value in ({"a7": 1}, {"a299": 1, "b7": 0}, both):
        assert not accepts(grammar, text_of(value))


def flags(count: int, kind: str) -> Any:
    """Return conditions on many different members of one object, each of which lists or requires another."""
    listed = {f"{letter}{n}": {"type": "boolean"} for n in range(count) for letter in "fv"}
    on = [{"properties": {f"f{n}": {"const": True}}, "required": [f"f{n}"]} for n in range(count)]
    then = [{"properties": {f"v{n}": {"const": False}}, "required": [f"v{n}"]} for n in range(count)]
    cases = [{"if": a, "then": b} for a, b in zip(on, then, strict=True)]
    match kind:
        case "closed":
            return {"properties": listed, "additionalProperties": False, "allOf": cases}
        case "unevaluated":
            flagged = {name: value for name, value in listed.items() if name.startswith("f")}
            return {"properties": flagged, "unevaluatedProperties": False, "allOf": cases}
        case "anyOf":
            return {"allOf": [{"anyOf": [a, b]} for a, b in zip(on, then, strict=True)], "required": ["f0"]}
        case _:
            dependent = {f"f{n}": then[n] for n in range(count)}
            return {"properties": listed, "additionalProperties": False, "dependentSchemas": dependent}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("closed", "schema"),
        ("unevaluated", "closed"),
        ("anyOf", "schema"),
        ("anyOf", "closed"),
        ("dependent", "schema"),
    ],
)
def test_hundreds_of_conditions_on_different_members(kind: str, mode: Literal["schema", "closed"]) -> None:
    schema, rng = {"type": "object", **flags(150, kind)}, random.Random(3)
    options = SchemaOptions(mode)
    grammar = compile_constraint(JsonSchema(schema, options), shared_vocabulary(), whitespace="compact")
    judged = judge(schema)
    num_valid = 0
    for _ in range(10 if kind == "anyOf" else 100):
        value = {f"f{n}": True for n in range(150)} | {f"v{n}": False for n in range(150)} if kind == "anyOf" else {}
        for n in rng.sample(range(150), rng.randrange(4)):
            value |= rng.choice([{f"f{n}": True, f"v{n}": False}, {f"f{n}": False}, {f"v{n}": False}])
            value |= {f"v{n}": True} if rng.random() < 0.1 else {}
        text = text_of(value)
        valid = is_valid(judged, text.decode())
        num_valid += valid
        if not accepts(grammar, text):
            assert not valid or mode == "closed", text
        else:
            assert valid, text
    assert num_valid > 3


def shared_branches(depth: int, *, last: Any, keyword: str) -> Any:
    """Return references of which each applies the next one twice."""
    places = {
        f"d{n}": {
            keyword: [
                {"$ref": f"#/$defs/d{n + 1}"},
                {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"required": [f"x{n}"]}]},
            ]
        }
        for n in range(depth)
    }
    return {"$defs": {**places, f"d{depth}": last}, "$ref": "#/$defs/d0"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("more", [{}, {"unevaluatedProperties": False}])
@pytest.mark.parametrize("mode", ["schema", "closed"])
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_formula_that_doubles_at_each_reference_is_refused(
    keyword: str, mode: Literal["schema", "closed"], more: Any
) -> None:
    schema = shared_branches(40, last={"properties": {"z": {"type": "integer"}}}, keyword=keyword) | more
    with pytest.raises(GrammarError, match=r"combinations|steps") as raised:
        compile_constraint(JsonSchema(schema, SchemaOptions(mode)), shared_vocabulary())
    assert raised.value.pointer is not None


def test_choices_between_neighbours_leave_two_ways() -> None:
    """Unit propagation follows such a chain from one member to all others."""
    choices = [{"oneOf": [{"required": [f"f{n}"]}, {"required": [f"f{(n + 1) % 20}"]}]} for n in range(20)]
    names = {f"f{n}": {"const": 0} for n in range(20)}
    grammar = compiled({"type": "object", "properties": names, "additionalProperties": False, "allOf": choices})
    for first in (0, 1):
        assert accepts(grammar, text_of({f"f{n}": 0 for n in range(first, 20, 2)}))
    assert not accepts(grammar, text_of({"f0": 0, "f1": 0}))
    assert not accepts(grammar, text_of({"f0": 0}))


def chain(count: int, keyword: str = "dependentRequired") -> Any:
    """Return an object in which each name requires the next."""
    if keyword == "dependentRequired":
        return {"type": "object", keyword: {f"a{n}": [f"a{n + 1}"] for n in range(count)}}
    clauses = [{"if": {"required": [f"a{n}"]}, "then": {"required": [f"a{n + 1}"]}} for n in range(count)]
    return {"type": "object", "allOf": clauses}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("more", "keyword", "order"),
    [
        ({}, "if", "any"),
        ({}, "dependentRequired", "schema"),
        ({"maxProperties": 4}, "dependentRequired", "any"),
        ({"maxProperties": 4}, "if", "schema"),
        ({"additionalProperties": {"type": "integer"}}, "if", "any"),
        ({"additionalProperties": {"type": "integer"}}, "dependentRequired", "schema"),
    ],
)
def test_names_that_require_others_in_a_long_chain(more: Any, keyword: str, order: PropertyOrder) -> None:
    schema = chain(150, keyword) | more
    grammar = compiled(schema, order)
    for names in ([], ["x"], [149, 150], [147, 148, 149, 150], [148, 149], [0, 150], [146, 147, 148, 149, 150]):
        value = {f"a{name}": 1 for name in names}
        assert accepts(grammar, text_of(value)) == is_valid(judge(schema), json.dumps(value)), value
    whole = {f"a{n}": 1 for n in range(151)}
    assert accepts(grammar, text_of(whole)) == ("maxProperties" not in more)
    assert accepts(grammar, text_of({"a150": 1, "a149": 1})) == (order == "any")


@pytest.mark.slow
def test_a_long_chain_beside_conditions_on_other_members() -> None:
    clauses = [*chain(300, "if")["allOf"], *independent(60, "c")["allOf"]]
    random.Random(1).shuffle(clauses)
    schema = {"type": "object", "properties": {"a5": {"type": "integer"}}, "required": ["a300"], "allOf": clauses}
    grammar = compiled(schema)
    last = {"a299": 1, "a300": 1}
    for value in ({}, last, last | {"c5": 1}, {"b5": 0} | last | {"c5": 1}, last | {"a5": 1}, {"a298": 1} | last):
        assert accepts(grammar, text_of(value)) == is_valid(judge(schema), json.dumps(value)), value


@pytest.mark.parametrize(
    "inner",
    [
        {
            "allOf": [
                {"if": {"minProperties": n, "patternProperties": {"^a": {"const": n}}}, "then": {"required": [f"b{n}"]}}
                for n in range(60)
            ]
        },
        {"allOf": [{"not": {"additionalProperties": {"const": n}}} for n in range(120)]},
    ],
)
def test_conditions_that_cannot_be_told_apart_are_refused(inner: Any) -> None:
    with pytest.raises(GrammarError, match="/properties/inner"):
        compiled({"properties": {"inner": inner}})


@pytest.mark.parametrize("make", [independent, switch])
def test_work_grows_with_the_number_of_conditions_and_no_faster(make: Callable[[int], Any], monkeypatch: Any) -> None:
    steps = 0
    search = EndSearch._search

    def counted(*arguments: Any) -> int:
        nonlocal steps
        steps += 1
        return search(*arguments)

    monkeypatch.setattr(EndSearch, "_search", counted)
    found = []
    for count in (40, 80):
        steps = 0
        assert accepts(compiled(make(count)), b'{"a7":1,"b7":2,"tag":"t9","v9":1}')
        found.append(steps)
    assert found[1] <= 2.5 * found[0]


def thresholds(count: int) -> Any:
    """Return conditions on one number, each of which requires another member."""
    conditions = [{"properties": {"n": {"minimum": n}}, "required": ["n"]} for n in range(count)]
    clauses = [{"if": condition, "then": {"required": [f"p{n}"]}} for n, condition in enumerate(conditions)]
    return {"type": "object", "properties": {"n": {"type": "integer"}}, "allOf": clauses}


@pytest.mark.exhaustive
def test_many_conditions_on_one_number_or_text() -> None:
    schema = thresholds(120)
    grammar = compiled(schema)
    members = {f"p{n}": 0 for n in range(120)}
    for value in ({}, {"n": -1}, {"n": 0}, {"n": 0, "p0": 1}, {"p0": 1, "n": 1}, {"p1": 1, "n": 1, "p0": 1}):
        assert accepts(grammar, text_of(value)) == is_valid(judge(schema), json.dumps(value)), value
    for value in (members | {"n": 300}, {"n": 119} | members, members | {"n": "x"}):
        assert accepts(grammar, text_of(value)) == is_valid(judge(schema), json.dumps(value)), value
    del members["p60"]
    assert accepts(grammar, text_of(members | {"n": 59}))
    assert not accepts(grammar, text_of(members | {"n": 60}))
    for number, clause in enumerate(schema["allOf"]):
        clause["if"]["properties"]["n"] = {"pattern": f"a{number}z"}
    with pytest.raises(GrammarError, match="more than") as caught:
        compiled({"properties": {"inner": schema}})
    assert caught.value.pointer == "/properties/inner/allOf"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (chain(60), b'{"a59":1,"a60":2}'),
        (chain(60, "if"), b'{"a59":1,"a60":2}'),
        (thresholds(30), b'{"n":1,"p0":1,"p1":1}'),
        ({"properties": {f"k{n}": {"pattern": f"^{n}"} for n in range(60)}, "minProperties": 9}, None),
    ],
)
def test_names_that_are_needed_are_found_without_a_search(schema: Any, text: bytes | None, monkeypatch: Any) -> None:
    steps = 0
    found = ObjectEndSearch.steps

    def counted(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        return found(*arguments)

    monkeypatch.setattr(ObjectEndSearch, "steps", counted)
    schema = {"type": "object", "additionalProperties": text is not None} | schema
    assert accepts(compiled(schema), text or text_of({f"k{n}": str(n) for n in range(9)}))
    assert steps < 200
