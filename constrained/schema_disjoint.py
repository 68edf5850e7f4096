"""Subschemas that no value satisfies together, as their keywords alone say: by their types, by the texts of a string,
or by a required member such as the `kind` of a tagged union. Knows keywords; no formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .schema.document import Document, Location
from .schema.keywords import TYPES


@dataclass(frozen=True)
class _Outline:
    types: frozenset[str]
    texts: frozenset[str] | None  # the only strings; None: others too
    members: dict[str, frozenset[str]]  # required ones that are strings out of these


def are_disjoint(document: Document, one: Location, other: Location, within: Location | None = None) -> bool:
    """Return True if no value satisfies both, of those that satisfy `within`. False says nothing."""
    types, required = frozenset(TYPES), list[str]()
    if within is not None and isinstance(within.schema, dict):
        types, required = _types(within.schema), _required(within.schema)
    a, b = _outline(document, one, required), _outline(document, other, required)
    shared = a.types & b.types & types
    if "string" in shared and a.texts is not None and b.texts is not None and not a.texts & b.texts:
        shared -= {"string"}
    if "object" in shared and any(
        name in b.members and not texts & b.members[name] for name, texts in a.members.items()
    ):
        shared -= {"object"}
    return not shared


def _types(schema: dict[str, Any]) -> frozenset[str]:
    types = schema.get("type", TYPES)
    types = frozenset([types] if isinstance(types, str) else types)
    if "integer" in types or "number" in types:
        types = types - {"integer"} | {"number"}
    return types | {"null"} if schema.get("nullable") is True else types


def _required(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _outline(document: Document, location: Location, required: list[str]) -> _Outline:
    """`required`: names that members have whatever the schema says."""
    schema = _followed(document, location)
    if isinstance(schema, bool):
        return _Outline(frozenset(TYPES) if schema else frozenset(), None, {})
    members = {}
    properties = schema.get("properties", {})
    for name in (*_required(schema), *required):
        if name in properties:
            inner = _followed(document, document.inside(location, properties[name], "properties", name))
            texts = _texts(inner)
            if texts is not None and isinstance(inner, dict) and not isinstance(inner.get("type"), list):
                members[name] = texts
    return _Outline(_types(schema), _texts(schema), members)


def _texts(schema: Any) -> frozenset[str] | None:
    """The strings that an `enum` or a `const` leaves, where all its values are strings."""
    if not isinstance(schema, dict):
        return None
    values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    return frozenset(values)


def _followed(document: Document, location: Location) -> Any:
    """The schema, or the one that it does nothing but refer to."""
    for _ in range(8):
        schema = location.schema
        if not isinstance(schema, dict) or "$ref" not in schema or "$id" in schema:
            break
        if not document.ref_is_alone and set(schema) - {"$ref", "title", "description", "default", "examples"}:
            break
        location = document.resolve(schema["$ref"], location)
    return location.schema
