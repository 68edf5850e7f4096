"""No value is lost among many alternatives: large unions, conditions and patterns of names against `jsonschema`.

A compiled schema accepts every valid value, with its members in any order, and no other. What is too complex is refused
before the first token.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import (
    CompiledGrammar,
    GrammarError,
    JsonSchema,
    PropertyOrder,
    compile_constraint,
)
from ramiform.tests.constrained.strategies import many, shuffled
from ramiform.tests.constrained.walks import accepts, allowed, compiled, compiled_or_none, shared_vocabulary, text_of

from .oracle_jsonschema import is_valid, judge

Made = tuple[Any, list[Any]]  # a schema, and values that may be valid


def tools(count: int, keyword: str = "anyOf", **more: Any) -> Any:
    """Return a union of objects that a constant member tells apart."""
    return {
        keyword: [
            {
                "type": "object",
                "properties": {
                    "name": {"const": f"tool_{number}"},
                    "arguments": {
                        "type": "object",
                        "properties": {f"a{number}": {"type": "integer"}, "q": {"type": "string"}},
                        "required": [f"a{number}"],
                    },
                },
                "required": ["name", "arguments"],
                **more,
            }
            for number in range(count)
        ]
    }


def recursive(count: int, keyword: str = "oneOf") -> Any:
    """Return a union of objects told apart by their tag, each of which may hold another one, or null."""
    node = {"required": ["tag"], "additionalProperties": False, "type": "object"}
    to_node = {"$ref": "#/$defs/node"}
    inner: list[Any] = [to_node, {"anyOf": [to_node, {"type": "null"}], "title": "T"}, {"allOf": [to_node]}]
    nodes = [
        node | {"properties": {"tag": {"const": f"t{n}"}, "next": inner[n % 3], f"v{n}": True}} for n in range(count)
    ]
    names = {f"n{number}": node for number, node in enumerate(nodes)}
    union = {keyword: [{"$ref": f"#/$defs/{name}"} for name in names]}
    return {"$defs": {**names, "node": union}, "$ref": "#/$defs/node"}


def bounded(count: int) -> Any:
    """Return a union of objects that bound one member and require another one."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {f"v{n}": True, "z": {"type": "integer", "minimum": n, "exclusiveMaximum": 3 * n + 0.5}},
                "required": [f"v{n}"],
                "additionalProperties": False,
            }
            for n in range(count)
        ]
    }


@pytest.mark.slow
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_recursive_union_writes_each_alternative_in_each_other(keyword: str) -> None:
    schema = recursive(9, keyword)
    grammar, judged = compiled(schema), judge(schema)
    values = [{"tag": "t7", "next": {"next": {"tag": "t8", "v8": 1}, "tag": "t0"}}, {"next": {"tag": "t8"}}]
    values += [{"tag": "t7", "next": {"next": {"tag": "t8", "v6": 1}, "tag": "t0"}}, {"tag": "t9"}]
    values += [{"tag": f"t{n}", "next": None} for n in (0, 1, 2, 4)]
    values += [{"next": {"tag": "t3"}, "tag": "t3"}, {"next": {"tag": "t3", "v8": 1}, "tag": "t3"}]
    for value in values:
        assert accepts(grammar, text_of(value)) == is_valid(judged, text_of(value).decode()), value


@pytest.mark.slow
def test_alternatives_are_told_apart_by_the_bounds_of_a_number() -> None:
    schema = bounded(70)
    grammar, judged = compiled(schema), judge(schema)
    for number in (0, 24, 69):
        for value in (-1, 0, 1, 23, 24, 72, 73, 69, 207, 208, 25.0, 25.5):
            for text in (text_of({"z": value, f"v{number}": 1}), text_of({f"v{number}": 1, "z": value})):
                assert accepts(grammar, text) == is_valid(judged, text.decode()), text


@pytest.mark.slow
@pytest.mark.parametrize("make", [recursive, bounded, tools])
def test_work_grows_with_the_number_of_alternatives_and_no_faster(make: Callable[[int], Any]) -> None:
    accepts(compiled(make(20)), b"{}")  # makes what all of them share
    found = []
    for count in (100, 200):
        schema, calls = make(count), 0

        def called(*_: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(called)
        try:
            accepts(compiled(schema), b'{"tag":"t7","next":{"tag":"t8"}}')
        finally:
            sys.setprofile(None)
        found.append(calls)
    assert found[1] <= 2.5 * found[0]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
@pytest.mark.parametrize("order", ["any", "schema"])
@pytest.mark.parametrize("more", [{}, {"additionalProperties": False}])
def test_a_union_of_many_tools_writes_each_of_them(keyword: str, order: PropertyOrder, more: Any) -> None:
    grammar = compiled(tools(150, keyword, **more), order)
    for number in (0, 7, 70, 149):
        name, arguments = {"name": f"tool_{number}"}, {"arguments": {f"a{number}": 3}}
        assert accepts(grammar, text_of(name | arguments))
        assert accepts(grammar, text_of(arguments | name)) == (order == "any")
        assert not accepts(grammar, text_of(name | {"arguments": {f"a{number + 1}": 3}}))
        assert not accepts(grammar, text_of({"arguments": {f"a{number + 1}": 3}} | name))


@pytest.mark.slow
def test_a_thousand_alternatives_by_a_number() -> None:
    numbers = {
        "anyOf": [{"properties": {"x": {"const": n}, f"k{n}": {"const": n}}, "required": ["x"]} for n in range(1000)]
    }
    grammar = compiled(numbers)
    for value in ({"x": 999, "k999": 999}, {"k5": 0, "x": 999}, {"x": 70}):
        assert accepts(grammar, text_of(value))
    for value in ({"x": 999, "k999": 9}, {"k5": 0, "x": 5}, {"x": 1000}):
        assert not accepts(grammar, text_of(value))


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"type": "array"}, {"type": ["array", "string"]}])
def test_too_many_contains_are_refused_whatever_else_is_allowed(more: Any) -> None:
    schema = more | {"allOf": [{"contains": {"const": n}} for n in range(33)]}
    with pytest.raises(GrammarError) as caught:
        compiled(schema)
    assert caught.value.pointer == "/allOf"
    with pytest.raises(GrammarError) as caught:
        compiled({"anyOf": [{"type": "string"}, {"properties": {"x": schema}}]})
    assert caught.value.pointer == "/anyOf/1/properties/x/allOf"
    schema["allOf"].pop()
    assert accepts(compiled(schema), text_of(list(range(32))))


@pytest.mark.slow
def test_too_many_divisors_or_patterns_are_refused_whatever_else_is_allowed() -> None:
    for parts in (
        [{"multipleOf": prime} for prime in (997, 991, 983, 977)],
        [{"pattern": f"{letter}.{{9}}z"} for letter in "abcd"],
    ):
        with pytest.raises(GrammarError, match="too complex") as caught:
            compiled({"properties": {"x": {"allOf": parts}}})
        assert str(caught.value.pointer).startswith("/properties/x")


@pytest.mark.parametrize("count", [10, 11])
def test_overlapping_patterns_of_names_work_or_are_refused_in_their_place(count: int) -> None:
    patterns = {chr(97 + n): {"maximum": 100 - n} for n in range(count)}
    schema = {"type": "object", "patternProperties": patterns}
    if count > 10:
        with pytest.raises(GrammarError) as caught:
            compiled(schema)
        assert caught.value.pointer == "/patternProperties"
        return
    grammar = compiled(schema)
    for value in ({"ab": 99}, {"ab": 100}, {"abcdefghij": 91, "z": "z"}, {"jihgfedcba": 92}):
        assert accepts(grammar, text_of(value)) is is_valid(judge(schema), json.dumps(value))


@pytest.mark.parametrize("count", [20, 32])
def test_patterns_of_names_work_or_are_refused(count: int) -> None:
    apart = {"type": "object", "patternProperties": {f"^{chr(97 + n)}": {"minimum": n} for n in range(26)}}
    grammar = compiled(apart | {"additionalProperties": False})
    assert accepts(grammar, text_of({"az": 0, "zz": 25}))
    assert not accepts(grammar, text_of({"az": 0, "zz": 24}))
    overlapping = {chr(97 + n % 26) + "_" * (n // 26): {"minimum": n} for n in range(count)}
    schema = {"properties": {"inner": {"type": "object", "patternProperties": overlapping}}}
    with pytest.raises(GrammarError, match="/properties/inner"):
        compiled(schema)


# Random schemas.


def _scalar(rng: random.Random) -> Any:
    return rng.choice([0, 1, 2, "x", "y", True, None])


def _goal(rng: random.Random) -> Any:
    value = _scalar(rng)
    return rng.choice(
        [{"const": value}, {"enum": [value, _scalar(rng)]}, {"type": ["integer", "null"]}, {"not": {"const": value}}]
    )


def _random_union(rng: random.Random) -> Made:
    count, keyword = rng.choice([2, 5, 20, 70]), rng.choice(["anyOf", "oneOf"])
    kind: Callable[[int], Any] = rng.choice([lambda n: f"k{n}", lambda n: n, lambda n: [f"k{n}", n]])  # type: ignore[misc]
    tagged = rng.random() < 0.8
    branches, values = [], list[Any]()
    for number in range(count):
        tag = kind(number)
        tags = tag if isinstance(tag, list) else [tag]
        goal, value = _goal(rng), _scalar(rng)
        structure = {"properties": {f"n{number % 7}": goal}, "required": rng.choice([[], [f"n{number % 7}"]])}
        branch: Any = {
            "properties": {"v": goal, "o": structure},
            "required": rng.choice([[], ["v"], ["o"], ["v", "o"]]),
        }
        if tagged:
            branch["properties"]["tag"] = {"enum": tags}
            branch["required"] = ["tag", *branch["required"]]
        if rng.random() < 0.3:
            branch["additionalProperties"] = rng.choice([False, {"type": "integer"}])
        branches.append(branch)
        values.append({"tag": rng.choice(tags), "v": value, "o": {f"n{number % 7}": _scalar(rng)}, "z": 1})
    return {"type": "object", keyword: branches}, values


def _random_conditions(rng: random.Random) -> Made:
    count, spread = rng.choice([1, 3, 12, 40]), rng.choice([1, 3, 50])
    clauses = []
    for number in range(count):
        name = f"c{number % spread}"
        condition: Any = {"properties": {name: {"const": number} if rng.random() < 0.7 else _goal(rng)}}
        if rng.random() < 0.8:
            condition["required"] = [name]
        clause: Any = {"if": condition, "then": {"required": [f"r{number}"]}}
        if rng.random() < 0.3:
            clause["then"] = {"properties": {f"r{number % 5}": _goal(rng)}}
        if count < 12 and rng.random() < 0.3:
            clause["else"] = {"required": [f"e{number % 3}"]}
        clauses.append(clause)
    schema: Any = {"type": "object", "allOf": clauses}
    if rng.random() < 0.5:
        schema["required"] = ["c0"]
    if rng.random() < 0.5:
        schema["properties"] = {"c0": {"type": "integer"}, "r1": {"type": ["integer", "null"]}}
    names = [f"{letter}{number}" for letter in "cr" for number in range(count)] + ["e0", "e1", "e2"]
    values: list[Any] = []
    for _ in range(12):
        value = {name: _scalar(rng) for name in rng.sample(names, min(len(names), rng.randint(0, 6)))}
        number = rng.randrange(count)
        values += [
            value,
            value | {f"c{number % spread}": number},
            value | {f"c{number % spread}": number, f"r{number}": 1},
        ]
    values.append({f"r{number}": 1 for number in range(count)} | {"c0": 0, "e0": 0, "e1": 0, "e2": 0})
    return schema, values


def _random_patterns(rng: random.Random) -> Made:
    patterns = rng.sample(
        ["^a", "^b", "a$", "b", "^ab", "c", "^[a-c]+$", "^d", "^e", "d", "^.$", "aa"], rng.randint(1, 9)
    )
    schema: Any = {"type": "object", "patternProperties": {pattern: _goal(rng) for pattern in patterns}}
    if rng.random() < 0.5:
        schema["additionalProperties"] = rng.choice([False, _goal(rng)])
    if rng.random() < 0.3:
        schema["properties"] = {"ab": _goal(rng), "q": _goal(rng)}
    if rng.random() < 0.3:
        schema = {rng.choice(["anyOf", "oneOf", "allOf"]): [schema, _random_patterns(rng)[0]]}
    names = ["a", "b", "ab", "ba", "aa", "abc", "d", "cd", "e", "q", "aab"]
    return schema, [{name: _scalar(rng) for name in rng.sample(names, rng.randint(0, 3))} for _ in range(30)]


def check_random_schema(seed: int) -> None:
    rng = random.Random(seed)
    schema, values = rng.choice([_random_union, _random_conditions, _random_patterns])(rng)
    if rng.random() < 0.2:
        schema, values = {"properties": {"in": schema}}, [{"in": value} for value in values]
    validator = judge(schema)
    try:
        grammar = compiled_or_none(JsonSchema(schema), shared_vocabulary(), "compact")
    except GrammarError:
        return  # too complex
    if grammar is None:
        assert not any(is_valid(validator, text_of(value).decode()) for value in values), schema
        return
    values += [{name: value[name] for name in list(value)[:-1]} for value in values]
    for value in rng.sample(values, min(len(values), 60)):
        text = text_of(shuffled(value, rng))
        assert accepts(grammar, text) == is_valid(validator, text.decode()), (json.dumps(schema), text)
    walk(grammar, rng)


def walk(grammar: CompiledGrammar, rng: random.Random) -> None:
    """Follow the masks for some tokens. There is always one that may come."""
    matcher = grammar.matcher()
    for _ in range(40):
        tokens = allowed(matcher, shared_vocabulary())
        assert tokens
        token = rng.choice(tokens)
        assert matcher.accept(token)
        if token in shared_vocabulary().eos_ids:
            break


@pytest.mark.exhaustive
@many(8)
@given(seed=st.integers(0, 2**32))
def test_a_compiled_schema_loses_no_value(seed: int) -> None:
    check_random_schema(seed)


def far_from_the_end(letter: str) -> str:
    return f"^.*{letter}.{{9}}$"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"patternProperties": {far_from_the_end(c): {"type": "integer"} for c in "abc"}}, {"zz": 1}),
        (
            {"oneOf": [{"properties": {"a": {"pattern": far_from_the_end(c)}}, "required": ["a"]} for c in "abc"]},
            {"a": "a" + 9 * "z"},
        ),
        (
            {
                "type": "object",
                "allOf": [
                    {"if": {"properties": {"a": {"multipleOf": n}}, "required": ["a"]}, "then": {"required": [f"m{n}"]}}
                    for n in (97, 89, 83)
                ],
            },
            {"a": 5},
        ),
        ({"type": "array", "allOf": [{"contains": {"multipleOf": n}} for n in (97, 89, 83)]}, [97, 89, 83]),
        ({"type": "array", "allOf": [{"contains": {"const": n}} for n in range(35)]}, list(range(35))),
        ({"allOf": [{"properties": {"a": {"type": "integer", "multipleOf": n}}} for n in (97, 89, 83)]}, {"a": 716539}),
    ],
    ids=["names", "oneOf", "if", "contains", "many contains", "divisors"],
)
def test_constraints_that_are_too_complex_together_are_refused_and_not_left_out(schema: Any, value: Any) -> None:
    assert judge(schema).is_valid(value)
    inside = {"type": "object", "properties": {"o": {"anyOf": [{"type": "null"}, schema]}}}
    with pytest.raises(GrammarError, match=r"too complex|more than 32 constraints"):
        compile_constraint(JsonSchema(inside), shared_vocabulary())


def test_two_divisors_of_many_remainders_hold_together() -> None:
    schema = {"allOf": [{"type": "integer", "multipleOf": n} for n in (97, 89)]}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert [n for n in (97, 89, 97 * 89, 2 * 97 * 89) if accepts(grammar, str(n).encode())] == [8633, 17266]
