"""The schema document: its JSON, its draft, the locations of its subschemas, and its references."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import GrammarError
from .keywords import ALL, KEYWORDS, ONE, SEQUENCE, child

MAX_SCHEMA = 1 << 22  # characters
MAX_NESTING = 400  # schemas inside schemas
MAX_SAME_VALUE = 100  # schemas inside each other that apply to one value
_DRAFTS = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "2019-09": 2019,
    "2020-12": 2020,
}


def read_schema(schema: Mapping[str, Any] | bool | str) -> Any:
    """Parse a schema's text, or round-trip an object through JSON. Raises GrammarError if it is not finite JSON."""
    text = schema if isinstance(schema, str) else _text(schema)
    if len(text) > MAX_SCHEMA:
        raise GrammarError(f"the schema is longer than {MAX_SCHEMA} characters")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise GrammarError("the schema is nested too deep", pointer="") from None
    except ValueError as error:
        raise GrammarError(f"the schema is no JSON: {error}", pointer="") from None


def _text(schema: Mapping[str, Any] | bool) -> str:
    # The round trip turns any Python object, such as a tuple or a str subclass, into plain JSON values.
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no JSON: {error}", pointer="") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)

Scope = tuple[tuple[str, "Location"], ...]  # dynamic anchors with the subschemas that they resolve to


class Location:
    """A subschema with its JSON pointer, the base URI of its references, and its dynamic scope."""

    __slots__ = ("base", "pointer", "schema", "scope")

    def __init__(self, schema: Any, pointer: str, base: str, scope: Scope = ()) -> None:
        self.schema = schema
        self.pointer = pointer
        self.base = base
        self.scope = scope


class Document:
    """A schema document with its subschemas and an index of their URIs and anchors.

    `draft` is 3, 4, 6, 7, 2019 or 2020. It is None without `$schema`: then the schema is read as 2020-12, with the
    older keywords that later drafts dropped.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        declared = root.get("$schema") if isinstance(root, dict) else None
        self.draft = next((d for mark, d in _DRAFTS.items() if isinstance(declared, str) and mark in declared), None)
        self.ref_is_alone = self.draft is not None and self.draft < 2019
        self._id = "id" if self.draft in (3, 4) else "$id"
        self._by_uri: dict[str, Location] = {}
        self._dynamic: dict[str, dict[str, Location]] = {}  # dynamic anchor -> base URI of its resource -> location
        self._resolved: dict[tuple[str, str], Location] = {}
        self.start = Location(root, "", "")
        self._by_uri[""] = self.start
        self._scan()
        self.has_started = False  # True once its start state has been made, and so all of it has been checked
        self._is_dynamic = any(len(places) > 1 for places in self._dynamic.values())
        self.start.scope = self._entered((), self.start.base)

    def _scan(self) -> None:
        """Collect all subschemas, and register those with an id or an anchor."""
        self.all: list[Location] = []  # in document order
        todo = [(self.start, 0)]
        while todo:
            location, depth = todo.pop()
            if depth > MAX_NESTING:
                raise GrammarError(f"schemas nested deeper than {MAX_NESTING}", pointer=location.pointer)
            schema = location.schema
            self.all.append(location)
            if isinstance(schema, dict):
                if self._id in schema or "$anchor" in schema or "$dynamicAnchor" in schema:
                    self._name(location)
                todo.extend((inner, depth + 1) for inner in reversed(list(self.subschemas(location))))

    @cached_property
    def name_order(self) -> dict[str, int]:
        """Position of each property name, by its first appearance in the document."""
        found: dict[str, int] = {}
        for location in self.all:
            if isinstance(location.schema, dict) and isinstance(names := location.schema.get("properties"), dict):
                for name in names:
                    found.setdefault(name, len(found))
        return found

    def _name(self, location: Location) -> None:
        schema = location.schema
        name = schema.get(self._id)
        if isinstance(name, str) and not (self.ref_is_alone and "$ref" in schema):
            uri, fragment = urldefrag(_joined(location.base, name))
            if uri and (not fragment or not name.startswith("#")):
                location.base = uri
                self._by_uri.setdefault(uri, location)
            if fragment:
                self._by_uri.setdefault(f"{location.base}#{fragment}", location)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._by_uri.setdefault(f"{location.base}#{anchor}", location)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, {}).setdefault(location.base, location)

    def subschemas(self, location: Location) -> Iterator[Location]:
        """Yield the direct subschemas of a schema that a known keyword holds."""
        schema, base = location.schema, location.base
        for name, value in schema.items():
            kind = KEYWORDS.get(name)
            if kind is None or not kind.places:
                continue
            pointer = child(location.pointer, name)
            if kind.places & ONE and isinstance(value, dict | bool):
                yield Location(value, pointer, base)
            elif kind.places & SEQUENCE and isinstance(value, list):
                for number, inner in enumerate(value):
                    yield Location(inner, f"{pointer}/{number}", base)
            elif kind.places & ALL and isinstance(value, dict):
                for key, inner in value.items():
                    if name != "dependencies" or not isinstance(inner, list | str):
                        yield Location(inner, child(pointer, key), base)

    def inside(self, location: Location, value: Any, *path: str | int) -> Location:
        """Return the location of a subschema, `path` being the keyword and the names and indices below it."""
        base, scope = location.base, location.scope
        if isinstance(value, dict) and self._id in value:
            inner = self._base_of(value, base)
            if inner != base:
                base, scope = inner, self._entered(scope, inner)
        return Location(value, child(location.pointer, *path), base, scope)

    def _base_of(self, schema: Mapping[str, Any], base: str) -> str:
        name = schema.get(self._id)
        if not isinstance(name, str) or name.startswith("#") or (self.ref_is_alone and "$ref" in schema):
            return base
        return urldefrag(_joined(base, name))[0] or base

    def _entered(self, scope: Scope, base: str) -> Scope:
        """Return the dynamic scope inside a resource. The outermost resource that has an anchor defines it."""
        if not self._is_dynamic:
            return scope
        known = dict(scope)
        for anchor, places in self._dynamic.items():
            if base in places:
                known.setdefault(anchor, places[base])
        return tuple(sorted(known.items(), key=lambda item: item[0]))

    def resolve(self, ref: Any, location: Location, keyword: str = "$ref") -> Location:
        """Return the target of the reference `ref` at `location`. Raises GrammarError if there is none."""
        key = (ref, location.base)
        found = self._resolved.get(key) if isinstance(ref, str) else None
        if found is None:
            found = self._resolved[key] = self._resolve(ref, location, keyword)
        if not self._is_dynamic:
            return found
        if keyword == "$dynamicRef" and isinstance(found.schema, dict):
            anchor = found.schema.get("$dynamicAnchor")
            if anchor is not None and ref.endswith(f"#{anchor}"):
                found = dict(location.scope).get(anchor, found)
        return Location(found.schema, found.pointer, found.base, self._entered(location.scope, found.base))

    def _resolve(self, ref: Any, location: Location, keyword: str) -> Location:
        pointer = child(location.pointer, keyword)
        if not isinstance(ref, str):
            raise GrammarError(f"{keyword!r} must be a string, not {ref!r}", pointer=pointer)
        uri, fragment = urldefrag(_joined(location.base, ref))
        found = self._by_uri.get(ref)
        if found is None:
            found = self._by_uri.get(f"{uri}#{fragment}") if fragment and not fragment.startswith("/") else None
        if found is not None:
            return found
        resource = self._by_uri.get(uri)
        if resource is None:
            raise GrammarError(f"{ref!r} is not in the schema, and nothing is fetched", pointer=pointer)
        if not fragment or fragment == "/":
            return resource
        if not fragment.startswith("/"):
            raise GrammarError(f"{ref!r} points to nothing", pointer=pointer)
        return self._inside(resource, fragment, ref, pointer)

    def _inside(self, resource: Location, fragment: str, ref: str, pointer: str) -> Location:
        target, path, base = resource.schema, resource.pointer, resource.base
        for name in unquote(fragment).split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise GrammarError(f"{ref!r} points to nothing", pointer=pointer)
            path = child(path, name)
            if isinstance(target, dict):
                base = self._base_of(target, base)
        return Location(target, path, base)


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference
