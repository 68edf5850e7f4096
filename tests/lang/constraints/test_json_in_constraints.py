"""JSON inside composed constraints: what the grammar generates is valid under the schema and of the type."""

from __future__ import annotations

import dataclasses
import enum
import json
import random
from typing import Any, Literal, NamedTuple, Optional, TypedDict

import jsonschema
import msgspec
import numpy as np
import pydantic
import pytest

from ramiform import RequestError, gen, one_or_more, seq
from ramiform.constrained import Grammar, Vocabulary, compile_constraint
from ramiform.lang.expressions.captures import ConstraintExpr, compiled
from ramiform.lang.types.result_types import of_schema

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), None], [256])


def generated(expr: ConstraintExpr, seed: int, longest: int = 400) -> str | None:
    """A text drawn byte by byte from the masks of the grammar, mostly of letters; None if it does not end soon."""
    draw = random.Random(seed)
    matcher = compile_constraint(Grammar(compiled(expr).grammar, "gbnf"), VOCABULARY).matcher()
    text = bytearray()
    mask = np.zeros(9, np.int32)
    while len(text) < longest:
        matcher.mask(mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = [int(one) for one in np.flatnonzero(bits[:257])]
        if 256 in allowed and draw.random() < 0.5:
            allowed = [256]
        closing = [one for one in allowed if one in tuple(b'"]},:')]
        usual = [one for one in allowed if one < 128] or allowed
        byte = draw.choice(closing if closing and draw.random() < 0.5 else usual)
        if byte == 256:
            return text.decode()
        assert matcher.accept(byte)
        text.append(byte)
    return None


class Colour(enum.Enum):
    RED = "red"
    BLUE = 'b"lue'


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    width: int
    name: str


@dataclasses.dataclass
class Tree:
    name: str
    children: list[Tree]
    parent: Optional[Tree] = None  # noqa: UP045


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2, max_length=5)
    age: int = pydantic.Field(ge=0)
    level: int = pydantic.Field(ge=1, le=3, default=1)
    code: str = pydantic.Field(pattern="^[A-Z]{2}[0-9]$")
    tags: list[Literal["a", "b"]] = pydantic.Field(max_length=2)
    home: Point | None = None


TYPES: list[Any] = [
    int, float, bool, str, Colour, Point, Options, Tree, Person, Any, list[int], dict[str, bool],
    tuple[int, str], Literal["x", 1], int | str | None, Cat | Dog, list[Person], dict[str, list[Options]],
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_what_is_generated_is_valid_and_of_the_type(kind: Any) -> None:
    expr = seq("<", gen("x", schema=kind), ">", gen("end", regex="[0-9]*"))
    result = of_schema(kind)
    assert result.constraint is not None
    validator = jsonschema.Draft202012Validator(json.loads(result.constraint.source))
    texts = [text for seed in range(60) if (text := generated(expr, seed)) is not None]
    assert len(texts) >= 3
    for text in texts:
        value = compiled(expr).matcher.match(text)["x"]
        assert text.startswith(f"<{value}>")
        validator.validate(json.loads(value))
        result.parse(value)


def test_values_are_read_to_their_own_end() -> None:
    expr = seq(one_or_more(gen("x", schema=int), " "), gen("y", schema=dict[str, str]), gen("z", json_schema={}))
    assert compiled(expr).matcher.match('1 23 {"a}": "{\\""}[{"b": [1.5e3, null]}]') == {
        "x": ["1", "23"], "y": '{"a}": "{\\""}', "z": '[{"b": [1.5e3, null]}]',
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "pattern": "^a.c$"}, ['"abc"', '"a\\"c"'], ['"abcd"', '"ac"']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
        ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-02-30"', '"2024-13-01"']),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 3}, ["[null,null]"], ["[null]", "[]"]),
        ({"enum": [1, "a", None, {"b": [True]}]}, ["1", '"a"', "null", '{"b": [true]}'], ['"1"', "2"]),
        ({"type": "integer", "exclusiveMinimum": 2, "maximum": 5}, ["3", "5"], ["2", "6", "33"]),
        ({"type": "object"}, ["{}", '{"a": {"b": 1}}'], ["[]"]),
    ],
)
def test_keywords_are_enforced(schema: dict[str, Any], valid: list[str], invalid: list[str]) -> None:
    matcher = compiled(seq("<", gen("x", json_schema=schema), ">")).matcher
    for text in valid:
        jsonschema.validate(json.loads(text), schema)
        assert matcher.match(f"<{text}>") == {"x": text}
    for text in invalid:
        with pytest.raises(ValueError, match=r"does not match|ends too early"):
            matcher.match(f"<{text}>")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "format": "email"}}}, "format: 'email'.*#/prop"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf: 3"),
        ({"type": "number", "minimum": 1, "maximum": 2}, "minimum: 1"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not: {}"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "oneOf: without a discriminator"),
        ({"allOf": [{}, {}]}, "allOf"),
        ({"$ref": "http://other"}, "'http://other'"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "refers to itself"),
        ({"$ref": "#/$defs/b"}, "not in the schema"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"type": "spring"}, "type: 'spring'"),
        ({"minItems": -1}, "minItems: -1"),
        ({"type": "object", "patternProperties": {}}, "patternProperties"),
    ],
)
def test_what_is_not_enforced_is_refused_by_name(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        seq(gen("x", json_schema=schema))


def test_a_deep_or_large_schema_is_refused_not_followed() -> None:
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    wide = {"type": "object", "properties": {f"name{number}": {"type": "string"} for number in range(3000)}}
    for schema in (deep, wide, {"type": "string", "maxLength": 10**9}):
        with pytest.raises(RequestError):
            seq(gen("x", json_schema=schema))
