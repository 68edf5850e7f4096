"""Typed results: what a type asks of the generated text, and how the text becomes a value of it. Knows no sampling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, get_origin

import msgspec

from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.sampling import Constraint


@dataclass(frozen=True)
class ReasoningFormat:
    """`begins_inside`: the chat template has opened the thought already, so that the text begins with it."""

    start: str
    end: str
    begins_inside: bool = False

    def split(self, text: str) -> tuple[str, str]:
        """The thought and the rest, without the marks and the white space around them."""
        before, mark, after = text.partition(self.start)
        if not mark:
            if not self.begins_inside and self.end not in text:
                return "", text
            before, after = "", text
        thought, _, said = after.partition(self.end)
        return thought.strip(), (before + said).strip()


REASONING_FORMATS = {
    "deepseek-r1": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "deepseek-v3": ReasoningFormat("<think>", "</think>"),
    "qwen3": ReasoningFormat("<think>", "</think>"),
    "qwen3-thinking": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "glm45": ReasoningFormat("<think>", "</think>"),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}


def reasoning_format(model_type: str) -> ReasoningFormat:
    """Raises RequestError for a model type that is not known."""
    try:
        return REASONING_FORMATS[model_type.lower()]
    except (KeyError, AttributeError):
        raise RequestError(
            f"model_type must be one of {', '.join(REASONING_FORMATS)}, got {model_type!r}", param="model_type"
        ) from None


_OF_OPENAPI = ("discriminator",)  # says nothing that the alternatives do not say
_BESIDE = ("anyOf", "oneOf", "$ref", "if", "not", "dependentSchemas", "dependencies")


def closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` where an object lists its properties and says nothing of others, as
    our own runtime reads it. Unchanged where schemas stand beside one another: one would refuse the other's members.
    """
    return schema if _has_schemas_beside(schema) else _closed(schema)


def _has_schemas_beside(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_schemas_beside, schema))
    if not isinstance(schema, Mapping):
        return False
    beside = isinstance(schema.get("properties"), Mapping) and any(name in schema for name in _BESIDE)
    several = isinstance(schema.get("allOf"), list) and ("properties" in schema or len(schema["allOf"]) > 1)
    return beside or several or any(map(_has_schemas_beside, schema.values()))


def _closed(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        walked = {key: _closed_at(key, value) for key, value in schema.items() if key not in _OF_OPENAPI}
        if isinstance(walked.get("properties"), dict) and walked.get("type") == "object":
            walked.setdefault("additionalProperties", False)
        return walked
    return [_closed(part) for part in schema] if isinstance(schema, list) else schema


def schema_and_parser(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """The schema of a type as JSON text, and what makes a validated value of a JSON text.

    The parser raises ValueError. Raises RequestError for a type that has no schema.
    """
    if hasattr(kind, "model_json_schema"):
        return json.dumps(kind.model_json_schema()), kind.model_validate_json
    try:
        return json.dumps(msgspec.json.schema(kind)), msgspec.json.Decoder(kind).decode
    except (TypeError, ValueError, RuntimeError) as error:
        refusal = error
    if (adapter := _pydantic_adapter(kind)) is not None:
        return json.dumps(adapter.json_schema()), adapter.validate_json
    raise RequestError(
        f"schema must be a Pydantic model, dataclass, TypedDict, Literal, Enum or another type with a JSON Schema; "
        f"{kind!r} is none: {refusal}",
        param="schema",
    )


def _closed_at(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: _closed(part) for name, part in value.items()}  # names, not keywords
    return value if key in ("const", "enum", "default", "examples") else _closed(value)


def _pydantic_adapter(kind: Any) -> Any:
    """Pydantic's, for a type that Pydantic's types are part of (`list[Model]`); None when they are not."""
    import sys

    pydantic = sys.modules.get("pydantic")  # without it nobody has made such a type
    if pydantic is None or not (isinstance(kind, type) or get_origin(kind)):
        return None
    try:
        return pydantic.TypeAdapter(kind)
    except pydantic.errors.PydanticUserError:  # it has no schema for it either
        return None


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
