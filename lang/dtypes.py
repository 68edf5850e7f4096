"""Typed results: what a type asks of the generated text, and how the text becomes a value of it. Knows no sampling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.sampling import Constraint


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
    """A Pydantic model by Pydantic; any other type that has a JSON Schema (dataclass, TypedDict, Literal, Enum,
    NamedTuple, list[...], ...) by msgspec. Raises RequestError for what has none."""
    name = getattr(schema, "__name__", str(schema))
    if hasattr(schema, "model_json_schema"):
        source = json.dumps(schema.model_json_schema())
        return ResultType(name, schema.model_validate_json, Constraint("json_schema", source))
    try:
        source = json.dumps(msgspec.json.schema(schema))
        decoder = msgspec.json.Decoder(schema)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(
            f"schema must be a Pydantic model, dataclass, TypedDict, Literal, Enum or another type with a JSON "
            f"Schema; {schema!r} is none: {error}",
            param="schema",
        ) from None
    return ResultType(name, decoder.decode, Constraint("json_schema", source))


def json_schema_text(schema: str | Mapping[str, Any]) -> str:
    """The schema as JSON text, its key order kept."""
    if isinstance(schema, str):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"json_schema must be JSON text or a dict; {schema!r} is no JSON: {error}", param="json_schema"
        ) from None
