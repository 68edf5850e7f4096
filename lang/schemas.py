"""JSON Schema of Python types, and schemas as endpoints of others want them.

Knows types and msgspec; Pydantic only where the user's types are Pydantic's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, get_origin

import msgspec

from ..runtime.protocol.errors import RequestError

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
