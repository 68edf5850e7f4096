"""Typed results: patterns agree with the types' constructors, schemas with jsonschema."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform import RequestError, gen
from ramiform.lang.expressions.lowering import gen_operation
from ramiform.lang.tools.tool_set import ToolSet
from ramiform.lang.types.result_types import json_schema_text, of_dtype, of_schema
from ramiform.tests.lang.types.written import runtime_grammars, written


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [int, float, bool, str, "int", "float", "bool", "str"])
@given(data=st.data())
def test_every_text_of_the_pattern_is_a_value_of_the_type(dtype: Any, data: st.DataObject) -> None:
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


TYPES: list[Any] = [int, list[int], int | None, bool | int, dict[str, int], Point, list[Point], Movie, Person]
TYPES += [Literal[1, 2, 30], Annotated[int, msgspec.Meta(ge=-5, lt=2000, multiple_of=5)], int | str, tuple[int, str]]


@pytest.mark.slow
@pytest.mark.parametrize("schema", TYPES, ids=str)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_the_parser_of_a_type_reads_the_texts_of_its_grammar(schema: Any, seed: int) -> None:
    result = of_schema(schema)
    assert result.constraint is not None
    result.parse(written(result.constraint, seed))


@pytest.mark.slow
@given(a=st.integers(0, 2**32))
@settings(max_examples=25)
def test_a_call_that_the_grammar_writes_is_read(a: int) -> None:
    tools = ToolSet([turn, wait])
    tools.parse(written(tools.constraint, a))


def turn(degrees: int, slowly: bool = False) -> None: ...


def wait(seconds: int | None) -> None: ...


def test_a_type_is_closed_unless_the_program_asks_for_more() -> None:
    for asked, others in ((None, False), ("closed", False), ("schema", True)):
        operation, _ = gen_operation(gen("x", schema=Point, additional_properties=asked), {}, False)
        constraint = operation.sampling.constraint
        assert constraint is not None
        matcher = runtime_grammars().get(constraint).result().matcher()
        assert all(map(matcher.accept, b'{"x": 1, "y": 2.5'))
        assert matcher.accept(ord(",")) is others


@pytest.mark.parametrize(
    "arguments",
    [{"schema": Point, "additional_properties": "open"}, {"regex": "a", "additional_properties": "closed"}],
)
def test_an_invalid_additional_properties_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        gen("x", **arguments)
    assert caught.value.param == "additional_properties"


@pytest.mark.parametrize("schema", [Point, Movie, Person, Color, Literal["yes", "no"]], ids=str)
def test_text_of_another_type_is_a_value_error(schema: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        of_schema(schema).parse('{"name": 3')


@pytest.mark.parametrize("schema", [3, lambda: None, "Person", object()])
def test_a_type_without_a_schema_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError, match="schema must be") as caught:
        of_schema(schema)
    assert caught.value.param == "schema"


def test_a_json_schema_keeps_its_key_order() -> None:
    assert json_schema_text({"b": 1, "a": {"d": 2, "c": 3}}) == '{"b": 1, "a": {"d": 2, "c": 3}}'
    assert json_schema_text('{ "as" :  "written" }') == '{ "as" :  "written" }'
    with pytest.raises(RequestError, match="json_schema"):
        json_schema_text({"a": object()})
