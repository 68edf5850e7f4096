"""Translation of `SchemaOptions` for the peers: the options are expressed in keywords that every peer enforces.

An object is closed by `additionalProperties: false` where that suffices. Where several schemas apply to one object,
only `unevaluatedProperties` would do, which no peer enforces: such a schema is refused. Peers write integers as digits
anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..constraint import GrammarSource, JsonSchema, SchemaOptions
from ..errors import GrammarError
from ..schema.document import Document, Location, read_schema
from ..schema.keywords import KEYWORDS, MAPPING, ONE, SEQUENCE, check_keywords, child
from ..schema.quick_checks import are_disjoint

_LISTING = frozenset(("properties", "patternProperties"))
_CLOSING = frozenset(("additionalProperties", "unevaluatedProperties"))
_APPLICATORS = frozenset(("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "if", "dependentSchemas", "dependencies"))
_CONDITIONS = frozenset(("not", "if", "then", "else", "contains", "propertyNames", "dependentSchemas", "dependencies"))


def peer_schema(constraint: JsonSchema) -> str:
    """Return the text of an equivalent schema. Raises GrammarError if the options cannot be expressed in it."""
    schema, options = constraint.schema, constraint.options
    if options.whitespace == "spaced":
        raise GrammarError("JSON with exactly one space after commas and colons needs the grammar engine 'native'")
    if (options.additional_properties, options.integers) == ("schema", "schema"):
        return schema if isinstance(schema, str) else json.dumps(schema)
    document = Document(read_schema(schema))
    for location in document.all:
        check_keywords(location.schema, location.pointer)
    return json.dumps(_translated(document, document.start, options), ensure_ascii=False)


def has_any_whitespace(constraint: GrammarSource, default: bool) -> bool:
    """Return True if JSON may have any whitespace: as a constraint says, else by default."""
    asked = constraint.options.whitespace if isinstance(constraint, JsonSchema) else None
    return default if asked is None else asked == "any"


def peer_structural_tag(spec: Any, options: SchemaOptions) -> Any:
    """Translate every schema of a structural tag as `peer_schema` does."""
    if isinstance(spec, list):
        return [peer_structural_tag(part, options) for part in spec]
    if not isinstance(spec, Mapping):
        return spec
    found = {name: peer_structural_tag(part, options) for name, part in spec.items()}
    if spec.get("type") == "json_schema" and isinstance(spec.get("json_schema"), dict | bool):
        found["json_schema"] = json.loads(peer_schema(JsonSchema(spec["json_schema"], options)))
    return found


def open_object(schema: str) -> str | None:
    """Return the pointer of the first object schema that lists `properties` and allows others; None without one."""
    for location in Document(read_schema(schema)).all:
        inner = location.schema
        if isinstance(inner, dict) and "properties" in inner and inner.get("additionalProperties") is not False:
            return location.pointer
    return None


def _translated(document: Document, location: Location, options: SchemaOptions) -> Any:
    schema = location.schema
    if not isinstance(schema, dict):
        return schema
    closes = options.additional_properties == "closed"
    found = dict(schema)
    for name, value in schema.items():
        if name in ("enum", "const") and options.integers == "digits":
            found[name] = _as_digits(value)
        elif name in _CONDITIONS:
            if closes and _lists_members(value):
                raise _cannot_close(child(location.pointer, name))
        elif (kind := KEYWORDS.get(name)) is not None and kind.places:
            found[name] = _each(value, kind.places, partial(_inside, document, location, options), name)
    if closes and _is_open(schema):
        applicators = sorted(_APPLICATORS & schema.keys())
        if not _LISTING.isdisjoint(schema):
            if applicators or not set(schema.get("required", [])) <= schema.get("properties", {}).keys():
                raise _cannot_close(location.pointer)
            found["additionalProperties"] = False
        elif (len(applicators) > 1 or len(schema.get("allOf", ())) > 1) and any(
            _lists_members(schema[name]) or name == "$ref" for name in applicators
        ):
            raise _cannot_close(location.pointer)
    if closes and "oneOf" in schema and any(_lists_members(value) for value in schema["oneOf"]):
        branches = [document.inside(location, value, "oneOf", n) for n, value in enumerate(schema["oneOf"])]
        if not are_disjoint(document, branches):
            raise _cannot_close(child(location.pointer, "oneOf"))
    return found


def _inside(document: Document, location: Location, options: SchemaOptions, value: Any, *path: str | int) -> Any:
    return _translated(document, document.inside(location, value, *path), options)


def _each(value: Any, places: int, change: Callable[..., Any], name: str) -> Any:
    """Apply `change` to every schema in the value of a keyword."""
    if places & ONE and isinstance(value, dict):
        return change(value, name)
    if places & SEQUENCE and isinstance(value, list):
        return [change(inner, name, number) for number, inner in enumerate(value)]
    if places & MAPPING and isinstance(value, dict):
        return {key: change(inner, name, key) for key, inner in value.items()}
    return value


def _is_open(schema: Mapping[str, Any]) -> bool:
    return _CLOSING.isdisjoint(schema) and "enum" not in schema and "const" not in schema


def _lists_members(value: Any) -> bool:
    """Return True if a schema, or one inside it, may list members, so that closing depends on other schemas."""
    if isinstance(value, list):
        return any(map(_lists_members, value))
    if not isinstance(value, dict):
        return False
    return not (_LISTING | {"$ref", "$dynamicRef"}).isdisjoint(value) or any(map(_lists_members, value.values()))


def _as_digits(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_digits(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_digits(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _cannot_close(pointer: str) -> GrammarError:
    """Build the error of an object that no keyword of the peers can close."""
    return GrammarError(
        "this grammar backend cannot close an object to which several schemas apply: give additionalProperties, "
        'or ask for additional_properties "schema"',
        pointer=pointer,
    )
