"""Unions in the schemas of Python types: one of the classes, closed, with the members that tell it from the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_NO_SCHEMAS = ("default", "const", "enum", "examples", "discriminator")  # whose values may look like schemas
_NAMED = ("properties", "patternProperties", "$defs")


def alternatives_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a schema of the document `root`, references and unions inside unions resolved.

    A schema that is no union is its only alternative; a recursive one comes once.
    """
    found: list[dict[str, Any]] = []
    pending, seen = [schema], set[int]()
    while pending:
        part = pending.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(inner := part.get("anyOf") or part.get("oneOf"), list):
            pending += reversed(inner)
        elif "$ref" in part:
            pending.append(root.get("$defs", {}).get(part["$ref"].rpartition("/")[2], {}))
        elif isinstance(part, dict):
            found.append(part)
    return found


def close_unions(root: dict[str, Any]) -> bool:
    """Close the objects of a type's schema in place if it has a union of objects or arrays; return whether it has.

    JSON Schema allows an object of `anyOf` the members of several alternatives. A Python union is one of its classes.
    So members that tell classes apart become required, also those with a default: the discriminator, literals of one
    value, and members whose values no two of the classes share.
    """
    unions = [part for part in _subschemas(root) if "anyOf" in part or "oneOf" in part]
    is_mixed = False
    for union in unions:
        alternatives = alternatives_of(union, root)
        is_mixed |= sum(one.get("type") in ("object", "array") for one in alternatives) > 1
        classes = [one for one in alternatives if "properties" in one]
        if len(classes) > 1:
            _require_tags(classes, (union.get("discriminator") or {}).get("propertyName"), root)
    for part in _subschemas(root) if is_mixed else ():
        if isinstance(part.get("properties"), dict):
            part.setdefault("additionalProperties", False)
    return is_mixed


def _require_tags(classes: list[dict[str, Any]], discriminator: str | None, root: Mapping[str, Any]) -> None:
    names = dict.fromkeys(name for one in classes for name in one["properties"])
    for name in names:
        values = [_values(one["properties"][name], root) for one in classes if name in one["properties"]]
        given = [repr(value) for found in values for value in found or ()]
        tells_apart = len(values) > 1 and None not in values and len(set(given)) == len(given)
        for one in classes:
            own = one["properties"].get(name)
            is_literal = own is not None and len(_values(own, root) or ()) == 1
            if own is not None and (name == discriminator or is_literal or tells_apart):
                one["required"] = list(dict.fromkeys((*one.get("required", ()), name)))


def _values(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, None if it does not list them all."""
    found: list[Any] = []
    for one in alternatives_of(schema, root):
        if "const" not in one and "enum" not in one:
            return None
        found += one.get("enum", [one.get("const")])
    return found


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and the schemas in it."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            yield part
            for key, value in part.items():
                if key in _NAMED and isinstance(value, dict):
                    pending += value.values()
                elif key not in _NO_SCHEMAS:
                    pending.append(value)
