"""Which keywords of JSON Schema are enforced, which say nothing about validity, and which are refused: all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import GrammarError

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
COMBINATORS = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")  # each stands for the whole value
ASSERTIONS = frozenset(
    [
        *("type", *COMBINATORS),
        *("properties", "required", "additionalProperties"),
        *("items", "prefixItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    ]
)
ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "id", "$comment", "$defs", "definitions"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    ]
)
# Keywords that demand nothing when they have this value.
_VACUOUS: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "minProperties": (0,),
    "nullable": (False,),
    "dependentRequired": ({},),
    "patternProperties": ({},),
}


def check_keywords(schema: Mapping[str, Any], pointer: str) -> None:
    """Raises GrammarError with the pointer of the first keyword that is not supported, or not where it stands."""
    for name, value in schema.items():
        known = name in ASSERTIONS or name in ANNOTATIONS or name.startswith("x-")
        if not known and value not in _VACUOUS.get(name, ()):
            raise GrammarError(f"the keyword {name!r} is not supported", pointer=child(pointer, name))
    combinator = next((name for name in COMBINATORS if name in schema), None)
    if combinator is None:
        return
    allowed = {combinator, "type"} if combinator in ("enum", "const") else {combinator}
    beside = next((name for name in schema if name in ASSERTIONS - allowed), None)
    if beside is not None:
        raise GrammarError(f"{beside!r} beside {combinator!r} is not supported", pointer=child(pointer, beside))


def types_of(schema: Mapping[str, Any], pointer: str) -> tuple[str, ...]:
    """The types that a schema allows, all of them when it does not say."""
    value = schema.get("type", list(TYPES))
    types = tuple(value) if isinstance(value, list) else (value,)
    if unknown := [name for name in types if name not in TYPES]:
        raise GrammarError(f"{unknown[0]!r} is not a type", pointer=child(pointer, "type"))
    return types


def type_of(value: Any) -> str:
    """The narrowest type of a JSON value."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
        case int():
            return "integer"
        case _:
            return "integer" if float(value).is_integer() else "number"


def count(schema: Mapping[str, Any], name: str, pointer: str) -> int | None:
    """A keyword's value that must be a natural number."""
    value = schema.get(name)
    if value is None and name not in schema:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise GrammarError(f"{name!r} must be a natural number, not {value!r}", pointer=child(pointer, name))
    return int(value)


def child(pointer: str, *names: str | int) -> str:
    """A JSON pointer (RFC 6901) to something inside what `pointer` points to."""
    return pointer + "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)
