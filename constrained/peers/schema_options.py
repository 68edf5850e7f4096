"""JSON Schemas as the peers get them: `SchemaOptions` written out in keywords that every peer reads.

Closing is `additionalProperties: false` where that says all of it. Where schemas stand beside one another, only
`unevaluatedProperties` would, which no peer enforces: such a schema is refused. Peers write integers as digits anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from typing import Any

from ..constraint import JsonSchema, SchemaOptions
from ..errors import GrammarError
from ..schema.document import Document, Location, read_schema
from ..schema.keywords import ALL, KEYWORDS, ONE, SEQUENCE, check_keywords, child
from ..schema.quick_checks import are_disjoint

_LISTING = frozenset(("properties", "patternProperties"))
_ENDS = frozenset(("additionalProperties", "unevaluatedProperties"))
_BESIDE = frozenset(("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas", "dependencies"))
_CONDITIONS = frozenset(("not", "if", "then", "else", "contains", "propertyNames", "dependentSchemas", "dependencies"))


def peer_schema(constraint: JsonSchema) -> str:
    """The schema's text. Raises GrammarError where the options cannot be said in it."""
    schema, options = constraint.schema, constraint.options
    if options == SchemaOptions():
        return schema if isinstance(schema, str) else json.dumps(schema)
    document = Document(read_schema(schema))
    for location in document.all:
        check_keywords(location.schema, location.pointer)
    return json.dumps(_written(document, document.start, options), ensure_ascii=False)


def peer_structural_tag(spec: Any, options: SchemaOptions) -> Any:
    """A structural tag in which each schema is as `peer_schema` says."""
    if isinstance(spec, list):
        return [peer_structural_tag(part, options) for part in spec]
    if not isinstance(spec, Mapping):
        return spec
    found = {name: peer_structural_tag(part, options) for name, part in spec.items()}
    if spec.get("type") == "json_schema" and isinstance(spec.get("json_schema"), dict | bool):
        found["json_schema"] = json.loads(peer_schema(JsonSchema(spec["json_schema"], options)))
    return found


def open_object(schema: str) -> str | None:
    """The pointer of the first object schema that lists `properties` and allows other members; None without one."""
    for location in Document(read_schema(schema)).all:
        inner = location.schema
        if isinstance(inner, dict) and "properties" in inner and inner.get("additionalProperties") is not False:
            return location.pointer
    return None


def _written(document: Document, location: Location, options: SchemaOptions) -> Any:
    schema = location.schema
    if not isinstance(schema, dict):
        return schema
    closes = options.additional_properties == "closed"
    found = dict(schema)
    for name, value in schema.items():
        if name in ("enum", "const") and options.integers == "digits":
            found[name] = _as_digits(value)
        elif name in _CONDITIONS:
            if closes and _mentions_members(value):
                raise _refusal(child(location.pointer, name))
        elif (kind := KEYWORDS.get(name)) is not None and kind.places:
            found[name] = _each(value, kind.places, partial(_inside, document, location, options), name)
    if closes and _is_open(schema):
        beside = sorted(_BESIDE & schema.keys())
        if not _LISTING.isdisjoint(schema):
            if beside or not set(schema.get("required", [])) <= schema.get("properties", {}).keys():
                raise _refusal(location.pointer)
            found["additionalProperties"] = False
        elif (len(beside) > 1 or len(schema.get("allOf", ())) > 1) and any(
            _mentions_members(schema[name]) or name == "$ref" for name in beside
        ):
            raise _refusal(location.pointer)
    if closes and "oneOf" in schema and any(_mentions_members(value) for value in schema["oneOf"]):
        branches = [document.inside(location, value, "oneOf", n) for n, value in enumerate(schema["oneOf"])]
        if not all(are_disjoint(document, a, b) for a, b in combinations(branches, 2)):
            raise _refusal(child(location.pointer, "oneOf"))
    return found


def _inside(document: Document, location: Location, options: SchemaOptions, value: Any, *path: str | int) -> Any:
    return _written(document, document.inside(location, value, *path), options)


def _each(value: Any, places: int, change: Callable[..., Any], name: str) -> Any:
    """The value of a keyword with each schema in it changed."""
    if places & ONE and isinstance(value, dict):
        return change(value, name)
    if places & SEQUENCE and isinstance(value, list):
        return [change(inner, name, number) for number, inner in enumerate(value)]
    if places & ALL and isinstance(value, dict):
        return {key: change(inner, name, key) for key, inner in value.items()}
    return value


def _is_open(schema: Mapping[str, Any]) -> bool:
    return _ENDS.isdisjoint(schema) and "enum" not in schema and "const" not in schema


def _mentions_members(value: Any) -> bool:
    """Return True if a schema, or one in it, may list members: closing depends on the schemas beside it."""
    if isinstance(value, list):
        return any(map(_mentions_members, value))
    if not isinstance(value, dict):
        return False
    return not (_LISTING | {"$ref", "$dynamicRef"}).isdisjoint(value) or any(map(_mentions_members, value.values()))


def _as_digits(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_digits(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_digits(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refusal(pointer: str) -> GrammarError:
    return GrammarError(
        "this grammar backend cannot close an object against schemas beside one another: give additionalProperties, "
        'or ask for additional_properties "schema"',
        pointer=pointer,
    )
