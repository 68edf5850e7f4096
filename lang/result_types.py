"""Typed results: what a type asks of the generated text, and how the text becomes a value of it. Knows no sampling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.sampling import Constraint
from .reasoning import ReasoningFormat
from .schemas import schema_and_parser


@dataclass(frozen=True, slots=True)
class ResultType:
    """`parse` turns the text into the value; it raises ValueError when the text is not one.

    `stop` ends the text and is no part of it: a number has no end of its own.
    """

    name: str
    parse: Callable[[str], Any]
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _parse_quoted(text: str) -> Any:
    return json.loads(text, strict=False)  # tabs and line breaks may stand as they are


def _regex(pattern: str) -> Constraint:
    return Constraint("regex", pattern)


# A leading space, because most tokenizers' numbers and words come with one. Digits are bounded, so that a model that
# likes to go on does not.
_DIGITS = "[0-9]{1,18}"
_INT = ResultType("int", int, _regex(rf" ?[-+]?{_DIGITS}\n?"), stop=("\n",))
_FLOAT = ResultType("float", float, _regex(rf" ?[-+]?{_DIGITS}(\.{_DIGITS})?\n?"), stop=("\n",))
_BOOL = ResultType("bool", _parse_bool, _regex(" ?(True|False|true|false)"))
_STR = ResultType("str", _parse_quoted, _regex(r' ?"([^"\\\n]|\\["\\/bfnrt])*"'))
_DTYPES: dict[Any, ResultType] = {
    int: _INT,
    float: _FLOAT,
    bool: _BOOL,
    str: _STR,
    "int": _INT,
    "float": _FLOAT,
    "bool": _BOOL,
    "str": _STR,
}
TEXT = ResultType("text", str)


def of_dtype(dtype: type | str) -> ResultType:
    """Raises RequestError for anything but int, float, bool, str and their names."""
    try:
        return _DTYPES[dtype]
    except (KeyError, TypeError):
        raise RequestError(f"dtype must be int, float, bool or str, got {dtype!r}", param="dtype") from None


def of_schema(schema: Any) -> ResultType:
    """A Pydantic model, dataclass, TypedDict, NamedTuple, Literal, Enum, list[...]: any type with a JSON Schema.
    Raises RequestError for what has none."""
    try:
        return _of_schema(schema)
    except TypeError:  # it has no hash
        return _of_schema.__wrapped__(schema)


@lru_cache(256)
def _of_schema(schema: Any) -> ResultType:
    source, parse = schema_and_parser(schema)
    return ResultType(
        getattr(schema, "__name__", str(schema)), parse, Constraint("json_schema", source, "any", "closed")
    )


def separated(result: ResultType, reasoning: ReasoningFormat) -> tuple[ResultType, ResultType]:
    """How the thought and the rest of a text are read, the rest as `result`. A constraint is on the whole text, so
    there can be none."""
    thought = ResultType("text", lambda text: reasoning.split(text)[0])
    return thought, replace(result, parse=lambda text: result.parse(reasoning.split(text)[1]))


def json_schema_text(schema: str | Mapping[str, Any]) -> str:
    """The schema as JSON text, its key order kept."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, type):
        raise RequestError(
            f"json_schema must be JSON text or a dict; of the type {schema.__name__} say schema={schema.__name__}",
            param="json_schema",
        )
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"json_schema must be JSON text or a dict; {schema!r} is no JSON: {error}", param="json_schema"
        ) from None
