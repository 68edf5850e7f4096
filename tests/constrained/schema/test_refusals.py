"""Refusals: negated formats that are known in part, draft 3, and schemas that are too complex."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema
import pytest

from ramiform.constrained import GrammarError, JsonSchema, compile_constraint
from ramiform.tests.constrained.walks import accepts, shared_vocabulary

DRAFT3 = "http://json-schema.org/draft-03/schema#"
NAMES_LONGER_THAN_OURS = "a" * 10 + "." + "b" * 50
FORMAT_CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.mark.parametrize("around", ["not", "oneOf", "if", "$ref", "name", "anyOf of objects"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("hostname", NAMES_LONGER_THAN_OURS, id="hostname"),
        pytest.param("time", "23:59:60Z", id="time"),
        pytest.param("date-time", "2016-12-31T23:59:60Z", id="date-time"),
        pytest.param("regex", "((((a))))", id="regex"),
        pytest.param("duration", "P1Y2D", id="duration"),
    ],
)
def test_texts_that_may_be_of_a_format_are_refused_by_its_negation(name: str, text: str, around: str) -> None:
    """These texts are of their formats, but `formats` does not accept them."""
    schemas: dict[str, Any] = {
        "not": {"not": {"format": name}},
        "oneOf": {"oneOf": [{"format": name}, {"type": "string"}]},
        "if": {"if": {"format": name}, "then": False},
        "$ref": {"$defs": {"one": {"$ref": "#/$defs/two"}, "two": {"format": name}}, "not": {"$ref": "#/$defs/one"}},
        "name": {"propertyNames": {"not": {"format": name}}},
        "anyOf of objects": {"not": {"anyOf": [{"format": name}, {"type": "number"}]}},
    }
    value: Any = {text: 1} if around == "name" else text
    try:
        grammar = compile_constraint(JsonSchema(schemas[around]), shared_vocabulary())
    except GrammarError:
        return  # nothing would be left
    assert not accepts(grammar, json.dumps(value).encode())


def test_texts_that_are_not_of_a_format_are_accepted_by_its_negation() -> None:
    schema = {"type": "string", "not": {"format": "idn-hostname"}}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    for text in ("two words", "a@b", "a!"):
        assert not FORMAT_CHECKER.conforms(text, "idn-hostname")
        assert accepts(grammar, json.dumps(text).encode())


def test_draft_3_marks_required_properties_in_their_schemas() -> None:
    schema = {"$schema": DRAFT3, "properties": {"a": {"required": True}, "b": {"type": "string"}}}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    judge = jsonschema.Draft3Validator(schema)
    for value in ({}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": 2}, 3):
        assert accepts(grammar, json.dumps(value).encode()) == judge.is_valid(value), value


@pytest.mark.parametrize("keyword", ["extends", "disallow"])
def test_unsupported_keywords_of_draft_3_are_refused(keyword: str) -> None:
    schema = {"$schema": DRAFT3, "properties": {"a": {keyword: {"type": "string"}}}}
    with pytest.raises(GrammarError, match=keyword) as caught:
        compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert caught.value.pointer == f"/properties/a/{keyword}"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$recursiveRef": "#/b"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$recursiveRef": "#"}}},
    ],
)
def test_a_recursive_reference_that_2019_09_does_not_know_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError) as caught:
        compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert caught.value.pointer == "/properties/a/$recursiveRef"


TREE = {
    "$id": "http://x/tree",
    "$recursiveAnchor": True,
    "type": "object",
    "properties": {"kids": {"type": "array", "items": {"$recursiveRef": "#"}}},
}
STRICT_TREE = {
    "$id": "http://x/strict",
    "$recursiveAnchor": True,
    "$ref": "tree",
    "properties": {"kids": True, "n": {"type": "integer"}},
    "required": ["n"],
    "$defs": {"tree": TREE},
}


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_recursive_references_go_to_the_outermost_anchor(outer: bool, inner: bool) -> None:
    tree = {**TREE, "$recursiveAnchor": inner}
    schema = {
        **STRICT_TREE,
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$recursiveAnchor": outer,
        "$defs": {"tree": tree},
    }
    judge, grammar = (
        jsonschema.Draft201909Validator(schema),
        compile_constraint(JsonSchema(schema), shared_vocabulary()),
    )
    for value in (
        {"n": 1},
        {"n": 1, "kids": []},
        {"n": 1, "kids": [{}]},
        {"n": 1, "kids": [{"n": 2}]},
        {"n": 1, "kids": [{"n": 2, "kids": [{"n": "x"}]}]},
        {"n": 1, "kids": [{"kids": [3]}]},
        {"kids": []},
    ):
        text = json.dumps(value).encode()
        assert accepts(grammar, text) == judge.is_valid(value), value


def test_a_complex_schema_is_not_called_unsatisfiable() -> None:
    patterns = [
        f"(?:{'|'.join(letters)}).{{{n}}}x" for n, letters in enumerate(itertools.combinations("abcdefg", 3), 3)
    ]
    schema = {"type": "string", "allOf": [{"not": {"pattern": pattern}} for pattern in patterns]}
    assert jsonschema.Draft202012Validator(schema).is_valid("")
    with pytest.raises(GrammarError, match="complex") as caught:
        compile_constraint(JsonSchema({"properties": {"a": schema}, "required": ["a"]}), shared_vocabulary())
    pointers = {f"/properties/a/allOf/{number}/not/pattern" for number in range(len(patterns))}
    assert caught.value.pointer in pointers


@pytest.mark.parametrize("least", [0, 2])
def test_items_are_different_however_their_slashes_are_written(least: int) -> None:
    schema = {"type": "array", "items": {"type": "string", "minLength": least}, "uniqueItems": True}
    grammar = compile_constraint(JsonSchema(schema), shared_vocabulary())
    judge, rng = jsonschema.Draft202012Validator(schema), random.Random(least)
    texts = ["", "/", "a", "a/", "//", "ab", "a/b", "a/b/c", "é/", "abc"]
    outcomes = set()
    for _ in range(150):
        value = rng.choices(texts, k=rng.randrange(4))
        written = "[" + ",".join(json.dumps(t).replace("/", rng.choice(["/", "\\/"])) for t in value) + "]"
        valid = judge.is_valid(value)
        assert accepts(grammar, written.encode()) == valid, written
        outcomes.add(valid)
    assert outcomes == {True, False}


@pytest.mark.slow
def test_an_array_with_too_many_constraints_on_its_items_is_refused() -> None:
    """The work grows with the fourth power of their number: forty took seconds for one token."""

    def contains_each(number: int) -> dict[str, Any]:
        return {"type": "array", "allOf": [{"contains": {"const": index}} for index in range(number)]}

    with pytest.raises(GrammarError, match="more than 32 constraints"):
        compile_constraint(JsonSchema(json.dumps(contains_each(33))), shared_vocabulary())
    few = compile_constraint(JsonSchema(json.dumps(contains_each(8))), shared_vocabulary())
    assert accepts(few, b"[7, 6, 5, 4, 3, 2, 1, 0]")
    assert not accepts(few, b"[7, 6, 5, 4, 3, 2, 1]")


def test_an_object_with_too_many_constraints_is_refused() -> None:
    def conditions(number: int) -> str:
        asked = [
            {
                "if": {"properties": {f"k{index}": {"const": index}}},
                "then": {"required": [f"k{(index + 1) % number}"]},
                "else": {"not": {"required": [f"k{index}"]}},
            }
            for index in range(number)
        ]
        return json.dumps({"type": "object", "allOf": asked, "minProperties": 1})

    with pytest.raises(GrammarError, match="more than 96 constraints"):
        compile_constraint(JsonSchema(conditions(80)), shared_vocabulary())
    few = compile_constraint(JsonSchema(conditions(4)), shared_vocabulary())
    texts = ['{"k0": 0, "k1": 1, "k2": 2, "k3": 3}', '{"k0": 0}', "{}", '{"k0": 1}']
    validator = jsonschema.Draft202012Validator(json.loads(conditions(4)))
    assert [accepts(few, text.encode()) for text in texts] == [validator.is_valid(json.loads(text)) for text in texts]


@pytest.mark.parametrize(
    ("target", "pointer"),
    [
        pytest.param({"type": 5}, "/components/schemas/a/type", id="type"),
        pytest.param({"items": {"pattern": "("}}, "/components/schemas/a/items/pattern", id="pattern of items"),
        pytest.param({"$ref": "#/components/schemas/b"}, "/components/schemas/b/minLength", id="reference"),
        pytest.param(5, "/components/schemas/a", id="no schema"),
        pytest.param({"$ref": "#/components/schemas/a"}, "/components/schemas/a/$ref", id="cycle"),
    ],
)
def test_a_schema_in_an_unknown_keyword_is_checked_if_it_is_referred_to(target: Any, pointer: str) -> None:
    schemas = {"a": target, "b": {"minLength": "x"}, "unused": {"type": 5}}
    schema = {"properties": {"a": {"$ref": "#/components/schemas/a"}}, "components": {"schemas": schemas}}
    with pytest.raises(GrammarError) as raised:
        compile_constraint(JsonSchema(schema), shared_vocabulary())
    assert raised.value.pointer == pointer


@pytest.mark.parametrize("pattern", [r"^\uD800$", r"\p{Cs}", "^[]$"])
def test_a_pattern_without_any_text_is_known_when_the_schema_is_compiled(pattern: str) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    with pytest.raises(GrammarError, match="no text at all"):
        compile_constraint(JsonSchema(schema | {"type": "object"}), shared_vocabulary())
