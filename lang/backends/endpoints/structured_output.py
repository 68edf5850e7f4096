"""Asks an endpoint for the text of a constraint as JSON of a schema, and reads the text out of the answer.

Endpoints take a schema whose root is an object. What is no object is the member `value` of one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ....runtime.protocol.errors import RequestError
from ....runtime.protocol.sampling import Constraint
from ...types.result_types import closed, schema_of_dtype
from ..model import OnText

VALUE = "value"
_BEFORE_VALUE = re.compile(r'\s*\{\s*"value"\s*:\s*')
_AFTER_VALUE = re.compile(r"[\s}]*\Z")
_MAPS = ("properties", "$defs", "definitions")  # their members are names, not keywords
_DATA = ("const", "enum", "default", "examples")


@dataclass(frozen=True)
class OutputForm:
    """A schema that is sent, and how the constraint's text is read out of JSON of it.

    `is_strict`: the schema is one that OpenAI enforces. `streams`: the text is a part of the JSON, as it is written.
    """

    schema: dict[str, Any]
    is_strict: bool
    text_of: Callable[[str], str] = str
    streams: bool = True
    is_wrapped: bool = False

    def pieces_to(self, on_text: OnText) -> OnText:
        """Return what takes the pieces of the JSON, and gives those of the text."""
        if not self.is_wrapped:
            return on_text
        return _Unwrapping(on_text).take if self.streams else lambda piece: None


def refuse_written_form(constraint: Constraint, service: str) -> None:
    """Raise RequestError for options of how JSON is written, of which a service cannot be told."""
    for name, value in (("number_digits", constraint.number_digits), ("json_whitespace", constraint.whitespace)):
        if value is not None:
            raise RequestError(
                f"{service} cannot be told how JSON is written: leave {name} = {value!r} out, or run on a Runtime",
                param=name,
                code="unsupported",
            )


def output_form(constraint: Constraint, *, strict: bool, unbounded: bool = False) -> OutputForm | None:
    """Return the form in which a constraint's text is asked for; None where JSON cannot say it.

    `strict`: write the schema as OpenAI enforces it. `unbounded`: leave out bounds that the type of the value checks.
    """
    match constraint.kind:
        case "json_schema":
            schema = json.loads(constraint.source)
            if constraint.additional_properties != "schema":
                schema = closed(schema)
            if unbounded and constraint.additional_properties == "closed":
                schema = _rewritten(schema, _without_bounds)
            is_object = (
                isinstance(schema, dict) and schema.get("type") == "object" and not {"anyOf", "$ref"} & set(schema)
            )
            return _form(schema, strict) if is_object else _wrapped(schema, strict, _raw_value)
        case "regex":
            if (schema := schema_of_dtype(constraint)) is not None:
                return _wrapped(schema, strict, _raw_value)
            pattern = {"type": "string", "pattern": f"^(?:{constraint.source})$"}
            return _wrapped(pattern, strict, _matching(constraint.source), streams=False)
        case "choices":
            choices = json.loads(constraint.source)
            return _wrapped({"type": "string", "enum": choices}, strict, _text_value, streams=False)
    return None


def _form(schema: dict[str, Any], strict: bool) -> OutputForm:
    if not strict:
        return OutputForm(schema, False)
    as_enforced = _rewritten(schema, _enforceable)
    is_strict = not _is_open(as_enforced)
    return OutputForm(as_enforced if is_strict else schema, is_strict)


def _wrapped(schema: Any, strict: bool, text_of: Callable[[str], str], *, streams: bool = True) -> OutputForm:
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}
    inner = {key: value for key, value in schema.items() if key not in definitions} if definitions else schema
    whole = {"type": "object", "properties": {VALUE: inner}, "required": [VALUE], "additionalProperties": False}
    form = _form(whole | definitions, strict)
    return OutputForm(form.schema, form.is_strict, text_of, streams, is_wrapped=True)


# Schemas


def _rewritten(schema: Any, rewrite: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the schema with each of its schemas rewritten, the inner ones first."""
    if isinstance(schema, list):
        return [_rewritten(part, rewrite) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    walked: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            walked[key] = {name: _rewritten(part, rewrite) for name, part in value.items()}
        else:
            walked[key] = value if key in _DATA else _rewritten(value, rewrite)
    return rewrite(walked)


def _enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema within those that OpenAI enforces, as far as it can be said there.

    Every member is required: a text with all of them is one of the schema with optional ones.
    """
    made = {key: value for key, value in schema.items() if key != "default"}
    if isinstance(properties := made.get("properties"), dict):
        made["required"] = list(properties)
    if "type" not in made and ("const" in made or "enum" in made):
        made["type"] = _types_of(made.get("enum", [made.get("const")]))
    if "oneOf" in made and "anyOf" not in made:
        made["anyOf"] = made.pop("oneOf")
    return {"$ref": made["$ref"]} if "$ref" in made else made  # nothing may stand beside it


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
# Keywords that OpenAI enforces in no schema.
_UNENFORCED = frozenset("allOf not if patternProperties propertyNames dependentRequired prefixItems contains".split())


def _types_of(values: list[Any]) -> str | list[str]:
    types = list(dict.fromkeys(_TYPES.get(type(value), "object") for value in values))
    return types[0] if len(types) == 1 else types


def _is_open(schema: Any) -> bool:
    """Return whether OpenAI cannot enforce the schema: an object may have members that it does not list, or other
    keywords are there than it knows."""
    if isinstance(schema, list):
        return any(map(_is_open, schema))
    if not isinstance(schema, Mapping):
        return False
    if _UNENFORCED & schema.keys():
        return True
    if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
        return True
    parts = (value.values() if key in _MAPS else [value] for key, value in schema.items() if key not in _DATA)
    return any(_is_open(part) for values in parts for part in values)


_BOUNDS = frozenset(
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength maxItems uniqueItems "
    "minProperties maxProperties".split()
)


def _without_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in schema.items() if key not in _BOUNDS}
    if made.get("minItems", 0) > 1:
        made["minItems"] = 1
    return made


# Answers


class _Envelope(msgspec.Struct):
    value: msgspec.Raw


def _raw_value(answer: str) -> str:
    """Return the value as it is written; text that was cut off as far as it goes."""
    try:
        return bytes(msgspec.json.decode(answer, type=_Envelope).value).decode().strip()
    except msgspec.DecodeError:
        match = _BEFORE_VALUE.match(answer)
        return answer if match is None else answer[match.end() :]


def _text_value(answer: str) -> str:
    try:
        value = json.loads(answer)[VALUE]
    except (ValueError, KeyError, TypeError):
        raise _not_as_asked(answer, "text") from None
    return str(value)


def _matching(pattern: str) -> Callable[[str], str]:
    def text_of(answer: str) -> str:
        text = _text_value(answer)
        if not re.fullmatch(pattern, text, re.ASCII):
            raise _not_as_asked(text, f"a match of the regex {pattern!r}")
        return text

    return text_of


def _not_as_asked(answer: str, what: str) -> RequestError:
    return RequestError(
        f"the endpoint was asked for {what} and wrote {answer[:200]!r}: raise max_tokens if it was cut off, else the "
        "model does not keep to schemas",
        code="invalid_result",
    )


class _Unwrapping:
    """Gives on the pieces of the value in `{"value": ...}`, but for what may be the object's end."""

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text = ""
        self._began = False

    def take(self, piece: str) -> None:
        self._text += piece
        if not self._began:
            match = _BEFORE_VALUE.match(self._text)
            if match is None or match.end() == len(self._text):
                return
            self._began, self._text = True, self._text[match.end() :]
        end = _AFTER_VALUE.search(self._text)
        assert end is not None  # it matches the empty text too
        given, self._text = self._text[: end.start()], self._text[end.start() :]
        if given:
            self._on_text(given)
