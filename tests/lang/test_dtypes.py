"""Typed results: the pattern admits what a type's own constructor reads; schemas are judged by jsonschema."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Any, Literal, TypedDict

import jsonschema
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform import RequestError
from ramiform.lang.dtypes import json_schema_text, of_dtype, of_schema


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Movie(TypedDict):
    title: str
    year: int


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    friends: list[str] = []


@pytest.mark.parametrize("dtype", [int, float, bool, str, "int", "float", "bool", "str"])
@given(data=st.data())
def test_whatever_the_pattern_admits_is_a_value_of_the_type(dtype: Any, data: st.DataObject) -> None:
    result = of_dtype(dtype)
    assert result.constraint is not None
    text = data.draw(st.from_regex(result.constraint.source, fullmatch=True, alphabet=st.characters(codec="utf-8")))
    for stop in result.stop:
        text = text.partition(stop)[0]
    kind = {"int": int, "float": float, "bool": bool, "str": str}.get(dtype, dtype)
    assert type(result.parse(text)) is kind


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (int, " 42", 42),
        (int, "-7", -7),
        (float, " 3.5", 3.5),
        (float, "2", 2.0),
        (bool, " True", True),
        (bool, "false", False),
        (str, ' "so \\"quoted\\" it is"', 'so "quoted" it is'),
        (str, '"ü"', "ü"),
    ],
)
def test_usual_texts_are_admitted_and_read(dtype: Any, text: str, value: Any) -> None:
    result = of_dtype(dtype)
    assert result.constraint is not None
    assert re.fullmatch(result.constraint.source, text)
    assert result.parse(text) == value


@pytest.mark.parametrize("dtype", [list, "number", None, 3, [int]])
def test_another_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(RequestError, match="dtype must be int, float, bool or str") as caught:
        of_dtype(dtype)
    assert caught.value.param == "dtype"


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (Point, '{"x": 1, "y": 2.5}', Point(1, 2.5)),
        (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}),
        (Person, '{"name": "Ada", "age": 36}', Person(name="Ada", age=36)),
        (Color, '"blue"', Color.BLUE),
        (Literal["yes", "no"], '"yes"', "yes"),
        (list[Point], '[{"x": 1, "y": 0}]', [Point(1, 0.0)]),
        (dict[str, int], '{"a": 1}', {"a": 1}),
    ],
    ids=str,
)
def test_a_schema_admits_the_text_and_the_text_becomes_the_object(schema: Any, text: str, value: Any) -> None:
    result = of_schema(schema)
    assert result.constraint is not None
    assert result.constraint.kind == "json_schema"
    source = json.loads(result.constraint.source)
    jsonschema.Draft202012Validator.check_schema(source)
    jsonschema.validate(json.loads(text), source)
    read = result.parse(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("schema", [Point, Movie, Person, Color, Literal["yes", "no"]], ids=str)
def test_text_of_another_type_is_a_value_error(schema: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        of_schema(schema).parse('{"name": 3')


@pytest.mark.parametrize("schema", [3, lambda: None, "Person", object()])
def test_what_has_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match="schema must be") as caught:
        of_schema(schema)
    assert caught.value.param == "schema"


def test_a_json_schema_keeps_its_key_order() -> None:
    assert json_schema_text({"b": 1, "a": {"d": 2, "c": 3}}) == '{"b": 1, "a": {"d": 2, "c": 3}}'
    assert json_schema_text('{ "as" :  "written" }') == '{ "as" :  "written" }'
    with pytest.raises(RequestError, match="json_schema"):
        json_schema_text({"a": object()})
