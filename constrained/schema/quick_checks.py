"""Quick checks on keywords alone: schemas that surely have values, pairs that surely share none, and equal schemas.

They look at a few levels of a schema without building formulas. Where they find nothing, `SchemaCompiler.satisfiable`
decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..regex.syntax.length_limits import length_limits
from .document import Document, Location
from .keywords import (
    ANNOTATIONS,
    APPLICATORS,
    KEYWORDS,
    NUMBER_KEYWORDS,
    REFERENCES,
    STRING_KEYWORDS,
    TYPE_KEYWORDS,
    TYPES,
    UNEVALUATED_KEYWORDS,
)
from .strings.string_dfas import has_texts

_MAX_DEPTH = 6  # nested schemas that `quick_satisfiable` looks at
MAX_REFERENCES = 8  # references to references that are followed
_MAX_COMPARED = 64  # schemas without a common member that are compared pair by pair
_OBJECT_LIMITS = frozenset(("required", "minProperties", "maxProperties"))
_ARRAY_LIMITS = frozenset(("minItems", "maxItems", "contains"))
# Without these a schema is satisfied by the empty value of any of its types.
_MAY_FAIL = APPLICATORS | STRING_KEYWORDS | NUMBER_KEYWORDS | _OBJECT_LIMITS | _ARRAY_LIMITS | UNEVALUATED_KEYWORDS
_COMPLICATED = (APPLICATORS - {"enum", "const"}) | UNEVALUATED_KEYWORDS
# With these the schema of a member does not follow from `properties` and `additionalProperties` alone.
_NAME_DEPENDENT = frozenset(("patternProperties", "propertyNames", "dependentRequired", "dependencies"))
_CONSTRAINING = TYPE_KEYWORDS | APPLICATORS | UNEVALUATED_KEYWORDS
_PLAIN = frozenset(("type", "properties", "required", "additionalProperties", "definitions", "$defs"))
_JOINT = frozenset(("type", "enum", "properties", "required", "allOf", "$ref", "definitions", "$defs"))
_MAX_JOINT = 16  # schemas of one value that are looked at together
_MAX_PLAIN = 256  # names that a plain object schema lists
_BARE_REFERENCE = ANNOTATIONS | {"$ref"}
_JSON_TYPES: dict[type, tuple[str, ...]] = {
    type(None): ("null",),
    bool: ("boolean",),
    str: ("string",),
    int: ("integer", "number"),
    float: ("number",),
}


def quick_satisfiable(document: Document, location: Location, depth: int = _MAX_DEPTH) -> bool:
    """Return True if some value surely satisfies the schema. False means unknown."""
    schema = location.schema
    if isinstance(schema, bool):
        return schema
    if _MAY_FAIL.isdisjoint(schema):
        return True
    if depth == 0:
        return False
    if not document.is_part(location):
        return _surely_has_values(document, location, depth)
    key = id(schema), depth
    if (found := document.surely_has_values.get(key)) is None:
        found = document.surely_has_values[key] = _surely_has_values(document, location, depth)
    return found


def _surely_has_values(document: Document, location: Location, depth: int) -> bool:
    schema = location.schema
    if is_bare_reference(location):
        return quick_satisfiable(document, document.resolve(schema["$ref"], location), depth - 1)
    if not _COMPLICATED.isdisjoint(schema):
        return _has_alternative(document, location, depth) or _have_joint_values(document, [location], depth)
    types = schema.get("type", TYPES)
    types = (types,) if isinstance(types, str) else types
    if "const" in schema:
        return "enum" not in schema and _is_listed(schema["const"], schema, types)
    if "enum" in schema:
        return any(_is_listed(value, schema, types) for value in schema["enum"])
    return any(_has_values_of(kind, document, location, depth) for kind in types)


def is_plain_object(document: Document, location: Location) -> bool:
    """Return True if a schema says only which members objects have, and some value surely satisfies it.

    So the state before its values has texts, and meets no test that may be too complex. False means unknown.
    """
    schema = location.schema
    if not isinstance(schema, dict) or not schema.keys() & KEYWORDS.keys() <= _PLAIN:
        return False
    if schema.get("type", "object") != "object":
        return False
    is_small = len(schema.get("properties", ())) <= _MAX_PLAIN
    return is_small and quick_satisfiable(document, location)


def _has_alternative(document: Document, location: Location, depth: int) -> bool:
    """Return True if `anyOf` is all that constrains a value, and one of its schemas surely has values."""
    schema = location.schema
    if not schema.keys() & _CONSTRAINING <= {"anyOf"}:
        return False
    inner = (document.inside(location, part, "anyOf", number) for number, part in enumerate(schema["anyOf"]))
    return any(quick_satisfiable(document, part, depth - 1) for part in inner)


def _have_joint_values(document: Document, locations: list[Location], depth: int) -> bool:
    """Return True if some value surely satisfies several schemas, which say of objects only what members they need.

    So do schemas that extend another one by `allOf`, to narrow some of its members.
    """
    places: dict[int, Location] = {}
    todo = [*locations]
    while todo:
        at = todo.pop()
        schema = at.schema
        if schema is True or id(schema) in places:
            continue
        places[id(schema)] = at
        if schema is False or at.draft == 3 or len(places) > _MAX_JOINT:
            return False
        if not schema.keys() & KEYWORDS.keys() <= _JOINT:
            return False
        if "$ref" in schema:
            todo.append(document.resolve(schema["$ref"], at))
            if at.ref_is_alone:
                del places[id(schema)]
                continue
        todo += (document.inside(at, part, "allOf", n) for n, part in enumerate(schema.get("allOf", ())))
    schemas = [at.schema for at in places.values()]
    types = frozenset(TYPES).intersection(*map(_types, schemas))
    lists = [schema["enum"] for schema in schemas if "enum" in schema]
    if lists or types != {"object"}:
        texts = [text for text in lists[0] if isinstance(text, str) and text.isascii()] if lists else []
        found = any(all(text in values for values in lists) for text in texts)
        return "string" in types and found if lists else bool(types)
    required = dict.fromkeys(name for schema in schemas for name in _required(schema))
    return depth > 0 and all(name.isascii() and _has_member(document, places, name, depth - 1) for name in required)


def _has_member(document: Document, places: dict[int, Location], name: str, depth: int) -> bool:
    """Return True if a member surely has values under all schemas of its object."""
    members = [(at, at.schema["properties"]) for at in places.values() if name in at.schema.get("properties", ())]
    inner = [document.inside(at, listed[name], "properties", name) for at, listed in members]
    if len(inner) == 1:
        return quick_satisfiable(document, inner[0], depth)
    return _have_joint_values(document, inner, depth)


def is_bare_reference(location: Location) -> bool:
    """Return True if a schema only refers to another one."""
    schema = location.schema
    return "$ref" in schema and (location.ref_is_alone or schema.keys() <= _BARE_REFERENCE)


def _is_listed(value: Any, schema: dict[str, Any], types: Any) -> bool:
    """Return True if a value of `enum` surely satisfies the keywords beside it."""
    kinds = _JSON_TYPES.get(type(value), ())
    if isinstance(value, str):
        return "string" in types and value.isascii() and STRING_KEYWORDS.isdisjoint(schema)
    limited = bool(kinds) and kinds[-1] == "number" and not NUMBER_KEYWORDS.isdisjoint(schema)
    return not limited and any(kind in types for kind in kinds)


def _has_values_of(kind: str, document: Document, location: Location, depth: int) -> bool:
    schema = location.schema
    match kind:
        case "string":
            return _has_strings(schema)
        case "number" | "integer":
            return _has_numbers(schema)
        case "object":
            return _OBJECT_LIMITS.isdisjoint(schema) or _has_objects(document, location, depth)
        case "array":
            return "contains" not in schema and (not schema.get("minItems", 0) or _has_items(document, location, depth))
        case _:
            return True


def _has_strings(schema: dict[str, Any]) -> bool:
    if "pattern" in schema:
        others = STRING_KEYWORDS & schema.keys() != {"pattern"}
        return not others and length_limits(schema["pattern"]).most is None and has_texts(schema["pattern"])
    limited = "maxLength" in schema
    if "format" in schema:
        return not limited and "minLength" not in schema
    return not limited or schema.get("minLength", 0) <= schema["maxLength"]


def _has_numbers(schema: dict[str, Any]) -> bool:
    names = NUMBER_KEYWORDS & schema.keys()
    if names == {"minimum", "maximum"}:
        low, high = schema["minimum"], schema["maximum"]
        return isinstance(low, int) and isinstance(high, int) and low <= high
    # A range that is open on one side always holds numbers.
    return names <= {"minimum", "exclusiveMinimum"} or names <= {"maximum", "exclusiveMaximum"}


def _has_objects(document: Document, location: Location, depth: int) -> bool:
    schema = location.schema
    required = schema.get("required", [])
    if not isinstance(required, list) or not _NAME_DEPENDENT.isdisjoint(schema):
        return False
    number = len(set(required))
    if schema.get("minProperties", 0) > number or schema.get("maxProperties", number) < number:
        return False
    properties = schema.get("properties", {})
    for name in required:
        if not name.isascii():
            return False
        path = ("properties", name) if name in properties else ("additionalProperties",)
        value = properties[name] if name in properties else schema.get("additionalProperties", True)
        if value is not True and not quick_satisfiable(document, document.inside(location, value, *path), depth - 1):
            return False
    return True


def _has_items(document: Document, location: Location, depth: int) -> bool:
    """Return True if an array of the least length surely exists, all of whose items have one schema."""
    schema = location.schema
    items, least = schema.get("items", True), schema["minItems"]
    if isinstance(items, list) or "prefixItems" in schema or schema.get("maxItems", least) < least:
        return False
    is_unique = least > 1 and schema.get("uniqueItems") is True
    return not is_unique and quick_satisfiable(document, document.inside(location, items, "items"), depth - 1)


def content_key(schema: Mapping[str, Any]) -> Hashable:
    """Return a key that schemas with the same keywords share, or None for schemas that hold others."""
    content = []
    for name, value in schema.items():
        if name in KEYWORDS:
            if isinstance(value, dict | list) or name in REFERENCES:
                return None
            content.append((name, type(value).__name__, value))
    return tuple(sorted(content, key=lambda item: item[0]))


def combination_key(document: Document, location: Location) -> Hashable:
    """Return a key that schemas share which only combine the same others, or None for all other schemas.

    Many members may have a schema like `anyOf` of null and one reference.
    """
    schema = location.schema
    keywords = [name for name in schema if name in KEYWORDS]
    if len(keywords) != 1 or keywords[0] not in ("allOf", "anyOf", "oneOf"):
        return None
    (keyword,) = keywords
    inner = (document.inside(location, each, keyword, number) for number, each in enumerate(schema[keyword]))
    return keyword, tuple(_shared_key(_followed(document, each)) for each in inner)


def _shared_key(location: Location) -> Hashable:
    content = content_key(location.schema) if isinstance(location.schema, dict) else None
    return (location.draft, content) if content else (id(location.schema), location.base, location.scope)


Key = tuple[str, Any]  # type and value of a string, number, boolean or null: equal if JSON Schema calls these equal


@dataclass(frozen=True)
class _Outline:
    """Types of a schema, its only values (None: any), and its required members with their values.

    Values are listed if all of them are strings, numbers, booleans or null.
    """

    types: frozenset[str]
    values: frozenset[Key] | None
    members: dict[str, frozenset[Key]]

    def __and__(self, other: _Outline) -> _Outline:
        members = {**self.members, **other.members}
        for name in self.members.keys() & other.members.keys():
            members[name] = self.members[name] & other.members[name]
        given = [values for values in (self.values, other.values) if values is not None]
        return _Outline(self.types & other.types, frozenset.intersection(*given) if given else None, members)


def are_disjoint(document: Document, locations: Sequence[Location], within: Location | None = None) -> bool:
    """Return True if surely no value satisfies two of the schemas, and `within`. False means unknown.

    Decided by types, by listed values, and by required members such as the `kind` of a tagged union.
    """
    types, required = frozenset(TYPES), list[str]()
    if within is not None and isinstance(within.schema, dict):
        types, required = _types(within.schema), _required(within.schema)
    outlines = [_outline(document, location, required) for location in locations]
    for kind in types & frozenset(TYPES):
        holders = [outline for outline in outlines if kind in outline.types]
        if kind == "object":
            if not _are_disjoint_objects(holders):
                return False
        elif len(holders) > 1 and not _are_apart([outline.values for outline in holders], kind):
            return False
    return True


def _are_apart(lists: Sequence[frozenset[Key] | None], kind: str) -> bool:
    """Return True if no value of a type is in two lists."""
    found: set[Key] = set()
    for values in lists:
        if values is None:
            return False
        of_type = {key for key in values if key[0] == kind}
        if found & of_type:
            return False
        found |= of_type
    return True


def _are_disjoint_objects(outlines: list[_Outline]) -> bool:
    outlines = [outline for outline in outlines if outline.values is None]  # the others list no objects
    if len(outlines) < 2:
        return True
    for name in outlines[0].members:
        if all(name in outline.members for outline in outlines):
            same: dict[Key, list[int]] = {}
            for number, outline in enumerate(outlines):
                for key in outline.members[name]:
                    same.setdefault(key, []).append(number)
            groups = {tuple(numbers) for numbers in same.values() if len(numbers) > 1}
            if all(len(numbers) < len(outlines) for numbers in groups):
                return all(_are_disjoint_objects([outlines[number] for number in group]) for group in groups)
    return len(outlines) <= _MAX_COMPARED and all(
        any(name in b.members and not keys & b.members[name] for name, keys in a.members.items())
        for a, b in combinations(outlines, 2)
    )


def _types(schema: dict[str, Any]) -> frozenset[str]:
    types = schema.get("type", TYPES)
    types = frozenset([types] if isinstance(types, str) else types)
    if "integer" in types or "number" in types:
        types = types - {"integer"} | {"number"}
    return types | {"null"} if schema.get("nullable") is True else types


def _required(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _outline(document: Document, location: Location, required: list[str], depth: int = _MAX_DEPTH) -> _Outline:
    """Return the outline of a schema. `required` are names that objects have in any case."""
    location = _followed(document, location)
    schema = location.schema
    if isinstance(schema, bool):
        return _Outline(frozenset(TYPES) if schema else frozenset(), None, {})
    members = {}
    properties = schema.get("properties", {})
    for name in (*_required(schema), *required):
        if name in properties:
            inner = _followed(document, document.inside(location, properties[name], "properties", name))
            values = _values(document, inner.schema)
            if values is not None:
                members[name] = values
    found = _Outline(_types(schema), _values(document, schema), members)
    if depth:
        beside = [document.inside(location, value, "allOf", n) for n, value in enumerate(schema.get("allOf", ()))]
        if "$ref" in schema:
            beside.append(document.resolve(schema["$ref"], location))
        for part in beside:
            found &= _outline(document, part, [*_required(schema), *required], depth - 1)
    return found


def _values(document: Document, schema: Any) -> frozenset[Key] | None:
    """Return the values of `enum` or `const` if none of them is an object or array."""
    if not isinstance(schema, dict):
        return None
    values = schema.get("enum")
    if values is None and "const" in schema and (document.start.draft or 6) >= 6:
        values = [schema["const"]]
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset(map(_key, values))


def _key(value: Any) -> Key:
    kind = _JSON_TYPES[type(value)][-1]
    return kind, value


def _followed(document: Document, location: Location) -> Location:
    """Follow bare references and return the schema at their end."""
    for _ in range(MAX_REFERENCES):
        schema = location.schema
        if not isinstance(schema, dict) or "$id" in schema or not is_bare_reference(location):
            break
        location = document.resolve(schema["$ref"], location)
    return location
