"""Subschemas that no value satisfies together, as their keywords alone say: by their types, by the texts of a string,
or by a required member such as the `kind` of a tagged union. Knows keywords; no formulas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .schema_document import Document, Location
from .schema_keywords import TYPES


@dataclass(frozen=True)
class _Outline:
    types: frozenset[str]
    texts: frozenset[str] | None  # the only strings; None: others too
    members: dict[str, frozenset[str]]  # required ones that are strings out of these


def are_disjoint(document: Document, one: Location, other: Location) -> bool:
    """False says nothing."""
    a, b = _outline(document, one), _outline(document, other)
    shared = a.types & b.types
    if "string" in shared and a.texts is not None and b.texts is not None and not a.texts & b.texts:
        shared -= {"string"}
    if "object" in shared and any(
        name in b.members and not texts & b.members[name] for name, texts in a.members.items()
    ):
        shared -= {"object"}
    return not shared


def _outline(document: Document, location: Location) -> _Outline:
    schema = _followed(document, location)
    if isinstance(schema, bool):
        return _Outline(frozenset(TYPES) if schema else frozenset(), None, {})
    types = schema.get("type", TYPES)
    types = frozenset([types] if isinstance(types, str) else types)
    if "integer" in types or "number" in types:
        types = types - {"integer"} | {"number"}
    if schema.get("nullable") is True:
        types |= {"null"}
    members = {}
    required = schema.get("required")
    properties = schema.get("properties", {})
    for name in required if isinstance(required, list) else ():
        if name in properties:
            inner = _followed(document, document.inside(location, properties[name], "properties", name))
            texts = _texts(inner)
            if texts is not None and isinstance(inner, dict) and not isinstance(inner.get("type"), list):
                members[name] = texts
    return _Outline(types, _texts(schema), members)


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
