"""Typed results: the constraint that a type puts on the generated text, and the parser that makes a value of the text.

Also the JSON Schemas of Python types, and the marks by which thoughts are separated from the rest of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_origin

from ...runtime.protocol.core import Finish
from ...runtime.protocol.errors import RequestError, did_you_mean
from ...runtime.protocol.sampling import Constraint
from .adapter import adapter_of
from .members import type_name
from .value_streams import PartialStream, TextStream, ValueStream, value_stream

_OPENAPI_KEYWORDS = ("discriminator",)  # redundant beside the alternatives
_APPLICATORS = ("anyOf", "oneOf", "$ref", "if", "not", "dependentSchemas", "dependencies")


@dataclass(frozen=True, slots=True)
class ResultType:
    """A type of results. `parse` makes the value of a text; it raises ValueError if the text is not of the type.

    `stop` strings end the text and are not part of it, since a number has no end of its own. `check_cut` raises
    ValueError if a text that was cut off at max_tokens is not complete; None: `parse` tells. `stream` makes what reads
    values out of the text while it grows.
    """

    name: str
    parse: Callable[[str], Any]
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    check_cut: Callable[[str], None] | None = None
    stream: Callable[..., ValueStream] = ValueStream

    def value(self, text: str, *, is_cut: bool) -> Any:
        """Return the value of a text. Raises ValueError or KeyError if it is not of the type, or cut off before it is
        complete."""
        if is_cut and self.check_cut is not None:
            self.check_cut(text)
        return self.parse(text)


def is_cut(finish: Finish, result: ResultType) -> bool:
    """Return whether a text may have been ended before it was complete: at max_tokens, or at a stop of the gen's own.

    Of a grammar it is not known what is complete, so its author's stops end it.
    """
    by_stop = finish.type == "stop" and isinstance(finish.matched, str) and result.name != _NAMES["grammar"]
    return finish.type == "length" or by_stop


def constrained_text(constraint: Constraint) -> ResultType:
    """Return the type of the texts of a regex, JSON Schema, grammar or quote; one that was cut off may be none."""
    stream = partial(PartialStream, Any) if constraint.kind == "json_schema" else TextStream
    return ResultType(
        _NAMES[constraint.kind], str, constraint, check_cut=partial(_check_cut, constraint), stream=stream
    )


_NAMES = {
    "regex": "text of the regex",
    "json_schema": "JSON of the schema",
    "grammar": "text of the grammar",
    "substring": "quote of the text",
}


def _check_cut(constraint: Constraint, text: str) -> None:
    """Raise ValueError unless a text that was cut off is known to be complete."""
    match constraint.kind:
        case "regex":
            with suppress(re.error):  # of what Python's patterns lack
                if re.fullmatch(constraint.source, text, re.ASCII):
                    return
        case "substring":
            before, after = (r"(?<!\w)" if re.match(r"\w", text) else "", r"(?!\w)" if re.search(r"\w\Z", text) else "")
            if text and text == text.strip() and re.search(before + re.escape(text) + after, constraint.source):
                return
        case "json_schema":
            with suppress(ValueError):
                if type(json.loads(text)) not in (int, float):  # more digits may follow
                    return
    raise ValueError("it is not complete; raise max_tokens, drop stop, or give on_cut='keep' for the text as it is")


def _regex(pattern: str) -> Constraint:
    return Constraint("regex", pattern)


# The leading space is there because most tokenizers' numbers and words begin with one. Digits are bounded, because
# some models never end a number.
_DIGITS = "[0-9]{1,18}"
_BOOLS = {"true": True, "false": False}
_INT = ResultType("int", int, _regex(rf" ?[-+]?{_DIGITS}\n?"), stop=("\n",))
_FLOAT = ResultType("float", float, _regex(rf" ?[-+]?{_DIGITS}(\.{_DIGITS})?\n?"), stop=("\n",))
_BOOL = ResultType("bool", lambda text: _BOOLS[text.strip().lower()], _regex(" ?(True|False|true|false)"))
# Tabs and line breaks may stand in a string as they are.
_STR = ResultType("str", partial(json.loads, strict=False), _regex(r' ?"([^"\\\n]|\\["\\/bfnrt])*"'))
_DTYPES: dict[Any, ResultType] = {int: _INT, float: _FLOAT, bool: _BOOL, str: _STR}
_DTYPES |= {kind.__name__: result for kind, result in _DTYPES.items()}
TEXT = ResultType("text", str, stream=TextStream)
_JSON_TYPES = {"integer": _INT, "number": _FLOAT, "boolean": _BOOL, "string": _STR}


def schema_of_dtype(constraint: Constraint) -> dict[str, Any] | None:
    """Return the JSON Schema that says what a dtype's constraint does; None for any other constraint."""
    return next(({"type": name} for name, kind in _JSON_TYPES.items() if kind.constraint == constraint), None)


def of_dtype(dtype: type | str) -> ResultType:
    """Return the result type of int, float, bool, str or their names. Raises RequestError for anything else."""
    try:
        return _DTYPES[dtype]
    except (KeyError, TypeError):
        name = type_name(dtype)
        is_type = isinstance(dtype, type) or get_origin(dtype) is not None
        hint = did_you_mean(dtype, [name for name in _DTYPES if isinstance(name, str)])
        instead = f"; write schema={name}" if is_type else hint
        raise RequestError(f"dtype must be int, float, bool or str, got {name}{instead}", param="dtype") from None


def of_schema(schema: Any) -> ResultType:
    """Return the result type of a Pydantic model, dataclass, TypedDict, NamedTuple, Literal, Enum, list[...], ...

    Raises RequestError for a type without a JSON Schema.
    """
    adapter = adapter_of(schema)
    constraint = Constraint("json_schema", adapter.schema_text, "any", "closed")
    return ResultType(adapter.name, adapter.parse, constraint, stream=partial(value_stream, schema))


def json_schema_text(schema: str | Mapping[str, Any]) -> str:
    """Return the schema as JSON text in its key order. Raises RequestError if it is neither JSON text nor a dict."""
    if isinstance(schema, str):
        return schema
    if isinstance(schema, type):
        raise RequestError(
            f"json_schema must be JSON text or a dict; for the type {schema.__name__} write schema={schema.__name__}",
            param="json_schema",
        )
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"json_schema must be JSON text or a dict; {schema!r} is not JSON: {error}", param="json_schema"
        ) from None


def closed(schema: Any) -> Any:
    """Return the schema with `additionalProperties: false` for objects that list properties and do not mention others.

    Ramiform's runtime reads schemas so. A schema that combines several for one object is returned unchanged, because
    each would refuse the other's properties.
    """
    return schema if _combines_schemas(schema) else _closed(schema)


def _combines_schemas(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_combines_schemas, schema))
    if not isinstance(schema, Mapping):
        return False
    combined = isinstance(schema.get("properties"), Mapping) and any(name in schema for name in _APPLICATORS)
    several = isinstance(schema.get("allOf"), list) and ("properties" in schema or len(schema["allOf"]) > 1)
    return combined or several or any(map(_combines_schemas, schema.values()))


def _closed(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        walked = {key: _closed_at(key, value) for key, value in schema.items() if key not in _OPENAPI_KEYWORDS}
        if isinstance(walked.get("properties"), dict) and walked.get("type") == "object":
            walked.setdefault("additionalProperties", False)
        return walked
    return [_closed(part) for part in schema] if isinstance(schema, list) else schema


def _closed_at(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: _closed(part) for name, part in value.items()}  # names, not keywords
    return value if key in ("const", "enum", "default", "examples") else _closed(value)


@dataclass(frozen=True)
class ReasoningFormat:
    """The marks around a model's thoughts. `begins_inside`: the chat template has written the start mark already."""

    start: str
    end: str
    begins_inside: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """Return the thought and the rest, without the marks and the white space around them."""
        before, mark, after = text.partition(self.start)
        if not mark:
            if not self.begins_inside and self.end not in text:
                return "", text
            before, after = "", text
        thought, _, rest = after.partition(self.end)
        return thought.strip(), (before + rest).strip()


MODEL_TYPES = {
    "deepseek-r1": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "deepseek-v3": ReasoningFormat("<think>", "</think>"),
    "qwen3": ReasoningFormat("<think>", "</think>"),
    "qwen3-thinking": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "glm45": ReasoningFormat("<think>", "</think>"),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}


def reasoning_format(model_type: str, param: str = "model_type") -> ReasoningFormat:
    """Return the format of a model type. Raises RequestError, which names `param`, for an unknown one."""
    try:
        return MODEL_TYPES[model_type.lower()]
    except (KeyError, AttributeError):
        raise RequestError(
            f"{param} must be one of {', '.join(MODEL_TYPES)}, got {model_type!r}", param=param
        ) from None


def separated(result: ResultType, reasoning: ReasoningFormat) -> tuple[ResultType, ResultType]:
    """Return the result types of the thought and of the rest, which is read as `result`.

    The result has no constraint, since that would hold for the whole text.
    """
    thought = ResultType("text", lambda text: reasoning.split(text)[0])
    return thought, replace(result, parse=lambda text: result.parse(reasoning.split(text)[1]))
