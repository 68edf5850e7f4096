"""Depths of nested values: the least that the keywords of a schema demand, and schemas of the values up to a depth.

A value without others inside has depth 0. What is counted are given values, required members and least numbers of items
of schemas, with those that `allOf` and `$ref` add to them; so the least depth of a schema is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..automaton.layout import LIMITED_LEVEL, MAX_DEPTH
from ..errors import GrammarError
from .document import Document, Location
from .keywords import TYPES

MAX_START_DEPTH = MAX_DEPTH - 2  # of a whole value: the output is around it, and perhaps a tag
MAX_NEEDED = 48  # levels that a value may need and still be begun just before the level that limits it
assert LIMITED_LEVEL + MAX_NEEDED < MAX_DEPTH
_NESTED = frozenset(("object", "array"))
Choice = tuple[int, list[Location]]  # a depth, and schemas of the values that are nested in it


def needs_many_levels(document: Document) -> bool:
    """Return True if some value may need so many levels that the depth must be limited from the start.

    Raises GrammarError for a schema all of whose values are nested too deep.
    """
    given = [value for location in document.all for value in _given_values(location.schema)]
    needs_many = max(map(_depth, given), default=0) > MAX_NEEDED
    if len(document.all) <= MAX_NEEDED:
        return needs_many
    depths = LeastDepths(document)
    for location in document.all:
        if isinstance(location.schema, dict):
            least = depths.of(location)
            needs_many = needs_many or least > MAX_NEEDED
            if least > MAX_START_DEPTH:
                raise GrammarError(f"every value is nested deeper than {MAX_START_DEPTH}", pointer=location.pointer)
    return needs_many


def depth_schema(inside: dict[str, Any] | None) -> dict[str, Any]:
    """Return the schema of the values nested one level deeper than those of `inside`, or not at all if that is None."""
    if inside is None:
        return {"additionalProperties": False, "maxItems": 0}
    return {"additionalProperties": inside, "items": inside}


class LeastDepths:
    """Least depths of the values of a document's schemas."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, int] = {}  # by schema; while its own is being computed, 0

    def of(self, location: Location) -> int:
        """Return a lower bound of the depth of the values of a schema."""
        known, todo = self._known, [location]
        while todo:
            at = todo[-1]
            is_new = id(at.schema) not in known
            if is_new:
                known[id(at.schema)] = 0
            constraints = list(self._constraints(at))
            inner = (each for choices in constraints for _, places in choices for each in places)
            missing = [each for each in inner if id(each.schema) not in known] if is_new else []
            if missing:
                todo += missing
                continue
            todo.pop()
            for choices in constraints:
                least = min(
                    depth + max((known[id(each.schema)] for each in places), default=0) for depth, places in choices
                )
                known[id(at.schema)] = max(known[id(at.schema)], least)
        return known[id(location.schema)]

    def _constraints(self, location: Location) -> Iterator[list[Choice]]:
        """Yield choices of which a value makes one of each: the least depth beside that of the schemas in it."""
        if not isinstance(location.schema, dict):
            return
        places = self._together(location)
        types = set(TYPES)
        for at in places:
            if isinstance(kinds := at.schema.get("type"), str | list):
                types &= {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)}
            if at.schema is not location.schema:
                yield [(0, [at])]  # with its own values and branches, which many schemas may refer to
                continue
            if "enum" in at.schema or "const" in at.schema:
                yield [(_depth(value), []) for value in _given_values(at.schema)]
            for keyword in ("anyOf", "oneOf"):
                if keyword in at.schema:
                    branches = enumerate(at.schema[keyword])
                    yield [(0, [self._document.inside(at, value, keyword, n)]) for n, value in branches]
        if types and types <= _NESTED:
            yield [self._of_object(places) if kind == "object" else self._of_array(places) for kind in types]

    def _together(self, location: Location) -> list[Location]:
        """Return the schemas that hold together with one, by `allOf` and `$ref`, itself included."""
        found: dict[int, Location] = {}
        todo = [location]
        while todo:
            at = todo.pop()
            if not isinstance(at.schema, dict) or id(at.schema) in found:
                continue
            found[id(at.schema)] = at
            if "$ref" in at.schema:
                todo.append(self._document.resolve(at.schema["$ref"], at))
                if at.ref_is_alone:
                    del found[id(at.schema)]
                    continue
            todo += (self._document.inside(at, value, "allOf", n) for n, value in enumerate(at.schema.get("allOf", ())))
        return list(found.values())

    def _of_object(self, places: list[Location]) -> Choice:
        lists = [names for at in places if isinstance(names := at.schema.get("required"), list)]
        required = dict.fromkeys(name for names in lists for name in names)
        members = [
            self._document.inside(at, at.schema["properties"][name], "properties", name)
            for at in places
            for name in required
            if name in at.schema.get("properties", ())
        ]
        has_members = bool(required) or any(at.schema.get("minProperties", 0) > 0 for at in places)
        return int(has_members), members

    def _of_array(self, places: list[Location]) -> Choice:
        least = max((at.schema.get("minItems", 0) for at in places), default=0)
        if least <= 0:
            return 0, []
        items = []
        for at in places:
            first, rest = at.schema.get("prefixItems", ()), at.schema.get("items")
            if isinstance(rest, list):
                items += [self._document.inside(at, value, "items", n) for n, value in enumerate(rest) if n < least]
            elif isinstance(rest, dict) and len(first) < least:
                items.append(self._document.inside(at, rest, "items"))
            items += [self._document.inside(at, value, "prefixItems", n) for n, value in enumerate(first) if n < least]
        return 1, items


def _given_values(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]


def _depth(value: Any) -> int:
    """Return the depth of a given value. These are known not to be nested very deep."""
    if not isinstance(value, dict | list) or not value:
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value))
