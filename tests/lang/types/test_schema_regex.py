"""Expressions of schemas against two judges: `re` matches what Pydantic writes, jsonschema takes what they match."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import ramiform
from ramiform import ProgramState, RequestError, build_regex_from_object, gen


class Weapon(StrEnum):
    sword = "sword"
    bow = 'bow "long"'


class Wand(BaseModel):
    wood: str = Field(min_length=1, max_length=5)
    length: float


class Wizard(BaseModel):
    name: str
    age: int
    weapon: Weapon
    wand: Wand | None
    alive: bool = True
    house: Literal["a.b", "c|d"] = "a.b"
    spells: list[int] = Field(default_factory=list, max_length=3)
    friends: dict[str, bool] = Field(default_factory=dict)


wands = st.builds(Wand, wood=st.text(min_size=1, max_size=5), length=st.floats(-1e6, 1e6))
wizards = st.builds(Wizard, wand=st.none() | wands, spells=st.lists(st.integers(), max_size=3))


@pytest.mark.slow
@settings(max_examples=40)
@given(wizards)
def test_what_a_model_holds_matches(wizard: Wizard) -> None:
    text = json.dumps(wizard.model_dump(mode="json"), ensure_ascii=False)
    assert re.fullmatch(build_regex_from_object(Wizard), text)
    assert re.fullmatch(build_regex_from_object(Wizard.model_json_schema()), text)
    assert re.fullmatch(build_regex_from_object(json.dumps(Wizard.model_json_schema()), r"[\n ]*"), text)


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {"type": "boolean"}}},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"const": [1, "x"]}, "c": {"enum": [1, None, "y{2}"]}},
        "required": ["b"],
    },
    {"type": "array", "items": {"type": ["number", "null"]}, "minItems": 2, "maxItems": 3},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
    {"type": "string", "pattern": "^[a-c]{2,3}$"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"$defs": {"n": {"type": "integer"}}, "anyOf": [{"$ref": "#/$defs/n"}, {"type": "string", "maxLength": 2}]},
    {"allOf": [{"type": "boolean"}], "description": "one"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
@settings(max_examples=15)
@given(data=st.data())
def test_what_matches_is_valid(schema: dict[str, Any], data: st.DataObject) -> None:
    text = data.draw(st.from_regex(build_regex_from_object(schema), fullmatch=True))
    jsonschema.validate(json.loads(text), schema)


def test_optional_members_may_be_left_out_in_every_way() -> None:
    properties = {name: {"type": "null"} for name in "abc"}
    for required in ([], ["b"], ["a", "c"]):
        pattern = build_regex_from_object({"type": "object", "properties": properties, "required": required})
        for chosen in range(8):
            names = [name for place, name in enumerate("abc") if chosen >> place & 1]
            text = json.dumps(dict.fromkeys(names))
            assert bool(re.fullmatch(pattern, text)) == (set(required) <= set(names)), (required, text)
        assert not re.fullmatch(pattern, '{"b": null, "a": null}')


@pytest.mark.parametrize(
    ("given_schema", "message"),
    [
        ("{", "is no JSON"),
        (3, "must be a Pydantic model"),
        ({"type": "integer", "minimum": 3}, "'minimum'"),
        ({"type": "string", "format": "date"}, "'format'"),
        ({"type": "array"}, "without items"),
        ({}, "without a known type"),
        ({"enum": []}, "empty list"),
        ({"$ref": "#/$defs/x"}, "not there"),
        ({"$ref": "other.json"}, "another document"),
        ({"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}, "recursive"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "requires 'a'"),
    ],
)
def test_what_no_expression_says_is_refused(given_schema: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        build_regex_from_object(given_schema)
    assert caught.value.param == "object"


def test_a_program_generates_by_it(backend: ramiform.Runtime) -> None:
    class Character(BaseModel):
        name: str = Field(max_length=12)
        weapon: Weapon
        age: int | None

    @ramiform.function
    def describe(s: ProgramState) -> None:
        s += "A wizard as JSON:\n" + gen("x", regex=build_regex_from_object(Character), max_tokens=80, seed=3)

    assert Character.model_validate_json(describe.run()["x"])
