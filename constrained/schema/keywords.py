"""Table of JSON Schema keywords: what their values must be, and where they hold subschemas."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import GrammarError

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
STRING_KEYWORDS = frozenset(("minLength", "maxLength", "pattern", "format"))
NUMBER_KEYWORDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "divisibleBy"))
OBJECT_KEYWORDS = frozenset(
    [
        *("properties", "patternProperties", "additionalProperties", "required", "propertyNames", "dependencies"),
        *("minProperties", "maxProperties", "dependentRequired"),
    ]
)
ARRAY_KEYWORDS = frozenset(
    [*("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains")]
)
TYPE_KEYWORDS = frozenset(["type"]) | STRING_KEYWORDS | NUMBER_KEYWORDS | OBJECT_KEYWORDS | ARRAY_KEYWORDS
UNEVALUATED_KEYWORDS = frozenset(("unevaluatedProperties", "unevaluatedItems"))
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Keywords that apply schemas, or lists of values, to the value itself.
APPLICATORS = frozenset(
    [
        *REFERENCES,
        *("allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
        *("dependentSchemas", "dependencies"),
    ]
)
ANNOTATIONS = frozenset(("title", "description", "default", "examples"))
_MAX_COUNT = 1 << 63
ONE, SEQUENCE, MAPPING = 1, 2, 4  # a keyword's subschema is its value, the items of its value, the members of its value


@dataclass(frozen=True)
class Keyword:
    """Kind of value that a keyword takes (a key of `_KINDS`), and where that value holds subschemas (bit set)."""

    kind: str
    places: int = 0


_SCHEMA, _SCHEMAS, _NAMED = Keyword("schema", ONE), Keyword("schemas", SEQUENCE), Keyword("named schemas", MAPPING)
_COUNT, _NUMBER, _BOOLEAN, _STRING = Keyword("count"), Keyword("number"), Keyword("boolean"), Keyword("string")

KEYWORDS: Mapping[str, Keyword] = {
    "type": Keyword("type"),
    "enum": Keyword("array"),
    "const": Keyword("anything"),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), Keyword("bound")),
    **dict.fromkeys(("multipleOf", "divisibleBy"), Keyword("divisor")),
    **dict.fromkeys(("pattern", "format", *REFERENCES), _STRING),
    "uniqueItems": _BOOLEAN,
    "required": Keyword("names"),
    "dependentRequired": Keyword("names of members"),
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"), _NAMED),
    "dependencies": Keyword("dependencies", MAPPING),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), _SCHEMA),
    **dict.fromkeys(("additionalProperties", "additionalItems"), _SCHEMA),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), _SCHEMA),
    "items": Keyword("schema or schemas", ONE | SEQUENCE),
}
PLACES = {name: keyword.places for name, keyword in KEYWORDS.items() if keyword.places}


def meant_keyword(name: str) -> str | None:
    """Return the keyword that an unknown one is likely meant to be (`requierd`), or None: then it is an annotation."""
    if name in KEYWORDS or name in ANNOTATIONS or not 4 <= len(name) <= 30 or name.startswith(("x-", "x_")):
        return None
    known = {keyword.lower(): keyword for keyword in KEYWORDS if len(keyword) > 3}
    close = difflib.get_close_matches(name.lower(), known, 1, 0.8)
    return known[close[0]] if close else None


def check_keywords(schema: Any, pointer: str) -> None:
    """Check the values of a schema's keywords. Keywords that are not in the table are annotations.

    Raises GrammarError with the pointer of the first invalid value.
    """
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise GrammarError(f"a schema is an object or a boolean, not {_shown(schema)}", pointer=pointer)
    if not _CHECKED.isdisjoint(schema):
        for name, value in schema.items():
            check = _CHECKS.get(name)
            if check is not None and not check[0](value):
                raise GrammarError(f"{name!r} must be {check[1]}, not {_shown(value)}", pointer=child(pointer, name))
    if "type" in schema:
        _check_types(schema["type"], pointer)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# Each kind of value: its check, and its description in error messages.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "count": (
        lambda value: _is_number(value) and 0 <= value <= _MAX_COUNT and value == int(value),
        f"a natural number of at most {_MAX_COUNT}",
    ),
    "number": (_is_number, "a number"),
    "bound": (lambda value: isinstance(value, int | float), "a number"),  # draft 4 has booleans here
    "divisor": (lambda value: _is_number(value) and value > 0, "a positive number"),
    "string": (lambda value: isinstance(value, str), "a string"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "array": (lambda value: isinstance(value, list), "an array"),
    "schema": (lambda value: isinstance(value, dict | bool), "a schema"),
    "schemas": (lambda value: isinstance(value, list) and bool(value), "an array of schemas that is not empty"),
    "schema or schemas": (lambda value: isinstance(value, dict | bool | list), "a schema or an array of schemas"),
    "named schemas": (lambda value: isinstance(value, dict), "an object of schemas"),
    # In draft 3 `required` is a boolean, which is about the enclosing schema.
    "names": (lambda value: _are_names(value) or isinstance(value, bool), "an array of strings"),
    "names of members": (
        lambda value: isinstance(value, dict) and all(map(_are_names, value.values())),
        "an object of arrays of strings",
    ),
    "dependencies": (
        lambda value: isinstance(value, dict) and all(_are_names(v) for v in value.values() if isinstance(v, list)),
        "an object of schemas and arrays of strings",
    ),
}


_CHECKS = {name: _KINDS[keyword.kind] for name, keyword in KEYWORDS.items() if keyword.kind in _KINDS}
_CHECKED = frozenset(_CHECKS)


def _check_types(value: Any, pointer: str) -> None:
    if isinstance(value, str) and value in TYPES:
        return
    types = value if isinstance(value, list) else [value]
    if unknown := [name for name in types if name not in TYPES]:
        raise GrammarError(f"{unknown[0]!r} is not a type", pointer=child(pointer, "type"))


def child(pointer: str, *names: str | int) -> str:
    """Extend a JSON pointer (RFC 6901) by names of members and indices of items."""
    for name in names:
        text = str(name)
        if "~" in text or "/" in text:
            text = text.replace("~", "~0").replace("/", "~1")
        pointer = f"{pointer}/{text}"
    return pointer
