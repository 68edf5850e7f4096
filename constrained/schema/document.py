"""The schema document: its JSON, its draft, the locations of its subschemas, and its references."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ..budget import cached_property
from ..errors import GrammarError
from .keywords import MAPPING, ONE, PLACES, REFERENCES, SEQUENCE, child

MAX_SCHEMA = 1 << 22  # characters
_MAX_NESTING = 400  # schemas inside schemas
MAX_SAME_VALUE = 100  # schemas inside each other that apply to one value
_HOLDING = frozenset(PLACES)
_NAMES = frozenset(("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"))
_RECURSIVE = "#"  # the name of the anchors of `$recursiveRef`, which no `$dynamicAnchor` can have
_SCHEMA, _NAMED = (dict, bool), (list, str)  # types of a subschema, and of a dependency that is none
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
        return _ENCODER.encode(schema)
    except RecursionError:
        raise GrammarError("the schema is nested too deep", pointer="") from None
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the schema is no JSON: {error}", pointer="") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


_ENCODER = json.JSONEncoder(check_circular=False)  # which is nested too deep
_DECODER = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)

Scope = tuple[tuple[str, "Location"], ...]  # dynamic anchors with the subschemas that they resolve to


class Location:
    """A subschema with its JSON pointer, the base URI of its references, its dynamic scope, and its draft.

    `draft` is 3, 4, 6, 7, 2019 or 2020. It is None without `$schema`: then the schema is read as 2020-12, with the
    older keywords that later drafts dropped.
    """

    __slots__ = ("base", "draft", "pointer", "schema", "scope")

    def __init__(self, schema: Any, pointer: str, base: str, scope: Scope = (), draft: int | None = None) -> None:
        self.schema = schema
        self.pointer = pointer
        self.base = base
        self.scope = scope
        self.draft = draft

    @property
    def ref_is_alone(self) -> bool:
        """True if a `$ref` hides the keywords beside it."""
        return self.draft is not None and self.draft < 2019


class Document:
    """A schema document with its subschemas and an index of their URIs and anchors.

    The metaschemas that it refers to are part of it, and the schemas in unknown keywords.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self._by_uri: dict[str, Location] = {}
        self._dynamic: dict[str, dict[str, Location]] = {}  # dynamic anchor -> base URI of its resource -> location
        self._resolved: dict[tuple[str, str], Location] = {}
        self.start = Location(root, "", "", (), _declared_draft(root))
        self._by_uri[""] = self.start
        self.all: list[Location] = []  # in document order, then what is found by references
        self.with_keywords: list[Location] = []  # those of `all` that are no booleans
        self.keywords: set[str] = set()  # of all subschemas, known or not
        self._depth = 0  # of subschemas inside each other
        self._scanned: dict[int, Location] = {}  # those of `with_keywords`, by the `id` of their schemas
        self._scan(self.start)
        self._add_targets()
        self.applied: dict[int, list[tuple[str, Location]]] = {}  # by schema: those of the same value, with pointers
        self.surely_has_values: dict[tuple[int, int], bool] = {}  # by schema and depth, of `quick_satisfiable`
        self.has_started = False  # True once its start state has been made, and so all of it has been checked
        self._is_dynamic = any(len(places) > 1 for places in self._dynamic.values())
        self.start.scope = self._entered((), self.start.base)

    def _add_targets(self) -> None:
        """Add what references lead to: metaschemas that are not in the document, and schemas in unknown keywords."""
        if self.keywords.isdisjoint(REFERENCES):
            return
        for location in self.with_keywords:  # which grows
            if location.schema.keys().isdisjoint(REFERENCES):
                continue
            for keyword in REFERENCES:
                ref = location.schema.get(keyword)
                if not isinstance(ref, str) or (ref, location.base) in self._resolved:
                    continue
                if not ref.startswith("#"):  # else its base is known
                    uri = urldefrag(_joined(location.base, ref))[0]
                    if uri not in self._by_uri and (found := metaschema(uri)) is not None:
                        added = Location(found, f"{uri}#", uri, (), _declared_draft(found))
                        self._by_uri[uri] = added
                        self._scan(added)
                with suppress(GrammarError):  # which `resolve` raises again
                    target = self._resolved[ref, location.base] = self._resolve(ref, location, keyword)
                    if id(target.schema) not in self._scanned and not isinstance(target.schema, bool):
                        self._scan(target)

    def _scan(self, start: Location) -> None:
        """Collect all subschemas, and register those with an id or an anchor."""
        todo, depths = [start], [0]
        scanned = self._scanned
        while todo:
            location, depth = todo.pop(), depths.pop()
            if depth > _MAX_NESTING:
                raise GrammarError(f"schemas nested deeper than {_MAX_NESTING}", pointer=location.pointer)
            schema = location.schema
            if id(schema) in scanned:
                continue
            self.all.append(location)
            if isinstance(schema, dict):
                scanned[id(schema)] = location
                self.with_keywords.append(location)
                self.keywords.update(schema)
                if not _NAMES.isdisjoint(schema):
                    self._name(location)
                if not _HOLDING.isdisjoint(schema):
                    inner = self.subschemas(location)
                    inner.reverse()
                    self._depth = max(self._depth, depth + 1)
                    todo += inner
                    depths += [depth + 1] * len(inner)

    @property
    def max_path(self) -> int:
        """Bound of the subschemas on a path into values, along references too, that comes to none twice."""
        return len(self.with_keywords) if self._is_dynamic else (self._depth + 1) * (1 + len(self._resolved))

    def having(self, keywords: frozenset[str]) -> list[Location]:
        """Return the subschemas that have one of these keywords, in document order."""
        if keywords.isdisjoint(self.keywords):
            return []
        return [location for location in self.with_keywords if not keywords.isdisjoint(location.schema)]

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
        name = _id_of(location)
        if isinstance(name, str) and not (location.ref_is_alone and "$ref" in schema):
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
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault(_RECURSIVE, {}).setdefault(location.base, location)

    def subschemas(self, location: Location) -> list[Location]:
        """Return the direct subschemas of a schema that known keywords hold."""
        around, base, draft = location.pointer, location.base, location.draft
        found: list[Location] = []

        def add(value: Any, pointer: str) -> None:
            is_resource = isinstance(value, dict) and "$schema" in value
            found.append(Location(value, pointer, base, (), _draft_inside(value, draft) if is_resource else draft))

        for keyword, value in location.schema.items():
            places = PLACES.get(keyword)
            if places is None:
                continue
            if places & ONE and isinstance(value, _SCHEMA):
                add(value, f"{around}/{keyword}")
            elif places & SEQUENCE and isinstance(value, list):
                for number, inner in enumerate(value):
                    add(inner, f"{around}/{keyword}/{number}")
            elif places & MAPPING and isinstance(value, dict):
                for name, inner in value.items():
                    if keyword != "dependencies" or not isinstance(inner, _NAMED):
                        shown = child("", name) if "/" in name or "~" in name else f"/{name}"
                        add(inner, f"{around}/{keyword}{shown}")
        return found

    def is_part(self, location: Location) -> bool:
        """Return True if a subschema was found in the document, so that its schema lives as long as that."""
        return self._scanned.get(id(location.schema)) is location

    def inside(self, location: Location, value: Any, *path: str | int) -> Location:
        """Return the location of a subschema, `path` being the keyword and the names and indices below it."""
        if not self._is_dynamic and (known := self._scanned.get(id(value))) is not None:
            return known
        found = Location(value, child(location.pointer, *path), location.base, location.scope, location.draft)
        if isinstance(value, dict) and ("$id" in value or "id" in value):
            found.draft = _draft_inside(value, location.draft)
            base = _base_of(found, location.base)
            if base != location.base:
                found.base, found.scope = base, self._entered(location.scope, base)
        return found

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
        has_anchor = isinstance(found.schema, dict) and found.schema.get("$recursiveAnchor") is True
        if keyword == "$recursiveRef" and has_anchor:
            found = dict(location.scope).get(_RECURSIVE, found)
        scope = self._entered(location.scope, found.base)
        return Location(found.schema, found.pointer, found.base, scope, found.draft)

    def _resolve(self, ref: Any, location: Location, keyword: str) -> Location:
        pointer = child(location.pointer, keyword)
        if not isinstance(ref, str):
            raise GrammarError(f"{keyword!r} must be a string, not {ref!r}", pointer=pointer)
        if ref.startswith("#"):
            uri, fragment = location.base, ref[1:]
        else:
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
        target, path, base, draft = resource.schema, resource.pointer, resource.base, resource.draft
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
                draft = _draft_inside(target, draft)
                base = _base_of(Location(target, path, base, (), draft), base)
        return Location(target, path, base, (), draft)


def _declared_draft(schema: Any) -> int | None:
    """Return the draft that `$schema` names, if it names a known one."""
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    return next((draft for mark, draft in _DRAFTS.items() if isinstance(declared, str) and mark in declared), None)


def _draft_inside(schema: Any, around: int | None) -> int | None:
    """Return the draft of a schema inside a schema of the draft `around`: its own if it is a resource, with an id."""
    if not isinstance(schema, dict) or "$schema" not in schema:
        return around
    is_resource = "$id" in schema or (around in (3, 4) and "id" in schema)
    return (is_resource and _declared_draft(schema)) or around


def _id_of(location: Location) -> Any:
    """Return the id of a schema, None without one. `id` is one only in drafts 3 and 4."""
    schema = location.schema
    is_old = location.draft in (3, 4) and not ("$schema" in schema and "$id" in schema)
    return schema.get("id" if is_old else "$id")


def _base_of(location: Location, base: str) -> str:
    schema = location.schema
    name = _id_of(location)
    if not isinstance(name, str) or name.startswith("#") or (location.ref_is_alone and "$ref" in schema):
        return base
    return urldefrag(_joined(base, name))[0] or base


@cache
def metaschema(uri: str) -> Any:
    """Return a metaschema of JSON Schema, or None if the URI is that of none."""
    if not uri.startswith(("http://json-schema.org/", "https://json-schema.org/")):
        return None
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # here, because few schemas need it

    found = REGISTRY.get(uri)
    return None if found is None else found.contents


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference
