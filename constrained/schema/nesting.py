"""Depths of nested values: a lower bound for the values of a schema, and goals of the values up to a depth.

A scalar, `{}` and `[]` have depth 0. The lower bound follows required members and minimum numbers of items, through
`allOf`, `anyOf`, `oneOf` and `$ref`; other keywords may demand deeper values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..automaton.layout import LIMITED_LEVEL, MAX_DEPTH
from ..errors import GrammarError
from .document import Document, Location
from .formula import And, Formula, Or, conj
from .interface import SchemaCompiler, SchemaNode
from .keywords import TYPES

MAX_START_DEPTH = MAX_DEPTH - 2  # of a whole value: the output is around it, and perhaps a tag
MAX_NEEDED = 48  # levels that a value may need and still be begun just before the level that limits it
assert LIMITED_LEVEL + MAX_NEEDED < MAX_DEPTH
_GIVEN = frozenset(("enum", "const"))
_LEVELS = frozenset(("required", "minProperties", "minItems"))
# Without these a schema demands no values inside others, so that its least depth is 0.
_DEMANDS = _LEVELS | _GIVEN | frozenset(("allOf", "anyOf", "oneOf", "$ref"))
_NOTHING_INSIDE: dict[str, Any] = {"additionalProperties": False, "maxItems": 0}
_NESTED = frozenset(("object", "array"))
Choice = tuple[int, list[Location]]  # levels that are added to the depth of the deepest of these schemas


def needs_many_levels(document: Document) -> bool:
    """Return True if some value may need so many levels that the depth must be limited from the start.

    Raises GrammarError for a schema all of whose values are nested too deep.
    """
    given = max((_depth(value) for at in document.having(_GIVEN) for value in _given_values(at.schema)), default=0)
    # A keyword brings at most one level, and a value of least depth needs no reference inside itself.
    if given + min(len(document.having(_LEVELS)), document.max_path) <= MAX_NEEDED:
        return False
    needs_many = given > MAX_NEEDED
    depths = LeastDepths(document)
    for location in document.having(_DEMANDS):
        least = depths.of(location)
        needs_many = needs_many or least > MAX_NEEDED
        if least > MAX_START_DEPTH:
            raise GrammarError(f"every value is nested deeper than {MAX_START_DEPTH}", pointer=location.pointer)
    return needs_many


class DepthGoals:
    """Goals of the values of one document that are nested at most so deep."""

    def __init__(self, document: Document) -> None:
        self._schemas: list[dict[str, Any]] = []  # by depth
        self._depths: dict[int, int] = {}  # of these schemas, by their ids
        self._least = LeastDepths(document)

    def goal(self, compiler: SchemaCompiler, depth: int) -> Formula:
        """Return the goal of the values nested at most so deep."""
        while len(self._schemas) <= depth:
            inside = self._schemas[-1] if self._schemas else None
            schema = {"additionalProperties": inside, "items": inside} if inside is not None else _NOTHING_INSIDE.copy()
            self._depths[id(schema)] = len(self._schemas)
            self._schemas.append(schema)
        return compiler.goal_of(self._schemas[depth])

    def excludes(self, compiler: SchemaCompiler, goal: And) -> bool:
        """Return True if a goal limits the depth, and surely no value satisfies it."""
        depths = {part: self._depth(part) for part in goal.parts} if self._depths else {}
        most = min((depth for depth in depths.values() if depth is not None), default=None)
        if most is None:
            return False
        rest = conj(part for part, depth in depths.items() if depth is None)
        return self._least_of(rest) > most or not compiler.satisfiable(rest)

    def _depth(self, goal: Formula) -> int | None:
        """Return the depth up to which a goal allows values; None if it is not one of `goal`."""
        return self._depths.get(id(goal.location.schema)) if isinstance(goal, SchemaNode) else None

    def _least_of(self, goal: Formula) -> int:
        """Return a lower bound of the depth of the values that satisfy a goal."""
        if isinstance(goal, And | Or):
            depths = map(self._least_of, goal.parts)
            return max(depths) if isinstance(goal, And) else min(depths)
        return self._least.of(goal.location) if isinstance(goal, SchemaNode) else 0


class LeastDepths:
    """Least depths of the values of a document's schemas."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[int, int] = {}  # by schema; while its own is being computed, 0
        self._constraints: dict[int, list[list[Choice]]] = {}  # by schema

    def of(self, location: Location) -> int:
        """Return a lower bound of the depth of the values of a schema."""
        known, todo = self._known, _demanding([location])
        while todo:
            at = todo[-1]
            number = id(at.schema)
            if number not in known:
                known[number] = 0
                constraints = self._constraints[number] = list(self._constraints_of(at))
                inner = [each for choices in constraints for _, places in choices for each in places]
                if inner := [each for each in inner if id(each.schema) not in known]:
                    todo += inner
                    continue
            todo.pop()
            for choices in self._constraints[number]:
                least = min(depth + max([0, *(known[id(each.schema)] for each in places)]) for depth, places in choices)
                known[number] = max(known[number], least)
        return known.get(id(location.schema), 0)

    def _constraints_of(self, location: Location) -> Iterator[list[Choice]]:
        """Yield lists of choices; a value makes at least one choice of each list."""
        places = self._together(location)
        types = set(TYPES)
        for at in places:
            if isinstance(kinds := at.schema.get("type"), str | list):
                types &= {kinds} if isinstance(kinds, str) else {kind for kind in kinds if isinstance(kind, str)}
            if at.schema is not location.schema:
                yield [(0, _demanding([at]))]  # with its own values and branches, which many schemas may refer to
                continue
            if given := _given_values(at.schema):
                yield [(_depth(value), []) for value in given]
            for keyword in ("anyOf", "oneOf"):
                if at.schema.get(keyword):
                    branches = enumerate(at.schema[keyword])
                    yield [(0, _demanding([self._document.inside(at, each, keyword, n)])) for n, each in branches]
        if types and types <= _NESTED:
            found = [self._of_object(places) if kind == "object" else self._of_array(places) for kind in types]
            yield [(levels, _demanding(inner)) for levels, inner in found]

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


def _demanding(places: Iterable[Location]) -> list[Location]:
    """Return the schemas that may demand values inside others."""
    return [at for at in places if isinstance(at.schema, dict) and not _DEMANDS.isdisjoint(at.schema)]


def _given_values(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]


def _depth(value: Any) -> int:
    """Return the depth of a given value. These are known not to be nested very deep."""
    if not isinstance(value, dict | list) or not value:
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value))
