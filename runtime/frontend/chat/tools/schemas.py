"""Checks values, and texts that stand for values, against the JSON Schema of a tool's arguments.

A small part of JSON Schema, without patterns: the schema is a client's, and the text a model's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ....protocol.sampling import Constraint

_MAX_DEPTH = 32
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class ArgumentsSchema:
    """Schema of one tool's arguments; `constraint` None: nothing is known of them."""

    def __init__(self, constraint: Constraint | None) -> None:
        self._constraint = constraint

    @cached_property
    def _root(self) -> Mapping[str, Any]:
        given = json.loads(self._constraint.source) if self._constraint is not None else {}
        return given if isinstance(given, dict) else {}

    def fits(self, arguments: Any) -> bool:
        """Return False if the arguments are wrong: their names, types, choices, or required ones that are missing."""
        return self._fits(arguments, self._root, 0)

    def takes_text(self, name: str) -> bool:
        """Return True if the argument may be a string."""
        return self._takes(self._properties().get(name), str, 0)

    def takes_null(self, name: str) -> bool:
        return self._takes(self._properties().get(name), type(None), 0)

    def _properties(self) -> Mapping[str, Any]:
        root = self._resolved(self._root)
        properties = root.get("properties") if isinstance(root, dict) else None
        return properties if isinstance(properties, dict) else {}

    def _resolved(self, schema: Any) -> Any:
        """Return what a reference within the schema leads to; True for another one."""
        for _ in range(_MAX_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            if reference is None:
                return schema
            found: Any = self._root
            for part in str(reference).removeprefix("#").split("/")[1:]:
                found = found.get(part) if isinstance(found, dict) else None
            if not str(reference).startswith("#") or found is None:
                break
            schema = found
        return True

    def _takes(self, schema: Any, kind: type, depth: int) -> bool:
        """Return True if the schema names `kind`: by its type, its choices, or one of its alternatives."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return False
        if any(kind in _TYPES.get(name, ()) for name in _listed(schema.get("type", []))):
            return True
        if kind is type(None) and schema.get("nullable") is True:
            return True
        values = [*_listed(schema.get("enum", [])), *([schema["const"]] if "const" in schema else [])]
        if any(isinstance(value, kind) for value in values):
            return True
        alternatives = (each for name in ("anyOf", "oneOf", "allOf") for each in _listed(schema.get(name, [])))
        return any(self._takes(each, kind, depth + 1) for each in alternatives)

    def _fits(self, value: Any, schema: Any, depth: int) -> bool:
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return schema is not False
        if value is None and schema.get("nullable") is True:
            return True
        kinds = _listed(schema.get("type", []))
        if kinds and not any(_is_of(value, kind) for kind in kinds):
            return False
        if "enum" in schema and not any(_same(value, each) for each in _listed(schema["enum"])):
            return False
        if "const" in schema and not _same(value, schema["const"]):
            return False
        for name, enough in (("anyOf", any), ("oneOf", any), ("allOf", all)):
            if name in schema and not enough(self._fits(value, each, depth + 1) for each in _listed(schema[name])):
                return False
        if isinstance(value, dict):
            return self._members_fit(value, schema, depth)
        if isinstance(value, list) and "items" in schema and "prefixItems" not in schema:
            return all(self._fits(each, schema["items"], depth + 1) for each in value)
        return True

    def _members_fit(self, value: dict[str, Any], schema: dict[str, Any], depth: int) -> bool:
        if any(isinstance(name, str) and name not in value for name in _listed(schema.get("required", []))):
            return False
        properties = schema.get("properties")
        is_open = self._constraint is not None and self._constraint.additional_properties == "open"
        further = schema.get("additionalProperties", is_open or not isinstance(properties, dict))
        properties = properties if isinstance(properties, dict) else {}
        if any(name in schema for name in ("patternProperties", "anyOf", "oneOf", "allOf", "$ref")):
            further = True
        return all(self._fits(each, properties.get(name, further), depth + 1) for name, each in value.items())


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_of(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
