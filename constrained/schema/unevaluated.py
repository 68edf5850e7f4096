"""unevaluatedProperties and unevaluatedItems: what remains of a value depends on which of the schemas beside hold.

Each combination of those that matter has its own remainder, and is a condition; the remainder is an ordinary keyword.
Knows keywords; no states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import GrammarError
from .document import Location
from .formula import Formula, conj, disj, neg
from .keywords import child

if TYPE_CHECKING:
    from .goals import SchemaCompiler

MAX_COMBINATIONS = 64


@dataclass(frozen=True)
class Evaluated:
    """What some schemas together have looked at: these names, names that match these patterns, so many first items,
    and the items that a `contains` found, whose pointers these are."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    all_names: bool = False
    num_items: int = 0
    all_items: bool = False
    found: frozenset[str] = frozenset()

    def __or__(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_names or other.all_names,
            max(self.num_items, other.num_items),
            self.all_items or other.all_items,
            self.found | other.found,
        )


Cases = dict[Evaluated, Formula]  # what has been looked at, and when that is so


def unevaluated(world: SchemaCompiler, location: Location, *, written: bool = False) -> Formula:
    """What the two keywords of a schema demand; `written` is that of `SchemaCompiler.goal`. Raises GrammarError when there are
    too many combinations."""
    contains: dict[str, Any] = {}
    try:
        cases = _cases(world, location, contains, itself=True)
    except GrammarError as error:
        keyword = next(k for k in ("unevaluatedProperties", "unevaluatedItems") if k in location.schema)
        raise GrammarError(error.reason, pointer=error.pointer or child(location.pointer, keyword)) from None
    return conj(
        disj([neg(condition), _remainder(world, location, evaluated, contains, written)])
        for evaluated, condition in cases.items()
    )


def _remainder(
    world: SchemaCompiler, location: Location, evaluated: Evaluated, contains: dict[str, Any], written: bool
) -> Formula:
    schema = location.schema
    parts: list[Formula] = []
    rest: dict[str, Any]
    if "unevaluatedProperties" in schema and not evaluated.all_names:
        rest = {
            "properties": dict.fromkeys(sorted(evaluated.names), True),
            "patternProperties": dict.fromkeys(sorted(evaluated.patterns), True),
            "additionalProperties": schema["unevaluatedProperties"],
        }
        parts.append(world.local(world.keep(rest), location, written=written))
    if "unevaluatedItems" in schema and not evaluated.all_items:
        item: Any = schema["unevaluatedItems"]
        if evaluated.found:
            item = {"anyOf": [item, *(contains[pointer] for pointer in sorted(evaluated.found))]}
        rest = {"prefixItems": [True] * evaluated.num_items, "items": item}
        parts.append(world.local(world.keep(rest), location, written=written))
    return conj(parts)


def _cases(world: SchemaCompiler, location: Location, contains: dict[str, Any], itself: bool = False) -> Cases:
    """What a schema that holds has looked at."""
    schema, document = location.schema, world.document
    if not isinstance(schema, dict):
        return {Evaluated(): True}

    def of(value: Any, *path: str | int) -> Cases:
        return _cases(world, document.inside(location, value, *path), contains)

    cases: Cases = {_directly(location, contains, itself, document.draft or 2020): True}
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            cases = _together(cases, _cases(world, document.resolve(schema[keyword], location, keyword), contains))
    for number, value in enumerate(schema.get("allOf", ())):
        cases = _together(cases, of(value, "allOf", number))
    for keyword in ("anyOf", "oneOf"):
        for number, value in enumerate(schema.get(keyword, ())):
            holds = world.demanded(document.inside(location, value, keyword, number))
            cases = _together(cases, _when(holds, of(value, keyword, number), {Evaluated(): True}))
    if "if" in schema:
        condition = world.demanded(document.inside(location, schema["if"], "if"))
        then = _together(of(schema["if"], "if"), of(schema.get("then", True), "then"))
        cases = _together(cases, _when(condition, then, of(schema.get("else", True), "else")))
    for name, value in schema.get("dependentSchemas", {}).items():
        inner = of(value, "dependentSchemas", name)
        cases = _together(cases, _when(world.has_object_with(name), inner, {Evaluated(): True}))
    return cases


def _directly(location: Location, contains: dict[str, Any], itself: bool, draft: int) -> Evaluated:
    """By the keywords of a schema that are about the parts of a value."""
    schema = location.schema
    items = schema.get("items")
    first = items if isinstance(items, list) else schema.get("prefixItems", []) if draft >= 2020 else []
    found = frozenset[str]()
    if "contains" in schema and draft >= 2020:
        pointer = child(location.pointer, "contains")
        contains[pointer] = schema["contains"]
        found = frozenset([pointer])
    return Evaluated(
        frozenset(schema.get("properties", ())),
        frozenset(schema.get("patternProperties", ())),
        "additionalProperties" in schema or (not itself and "unevaluatedProperties" in schema),
        len(first),
        isinstance(items, dict | bool)
        or (isinstance(items, list) and "additionalItems" in schema)
        or (not itself and "unevaluatedItems" in schema),
        found,
    )


def _together(a: Cases, b: Cases) -> Cases:
    return _joined((x | y, conj([p, q])) for x, p in a.items() for y, q in b.items())


def _when(condition: Formula, then: Cases, otherwise: Cases) -> Cases:
    if then == otherwise:
        return then
    return _joined(
        [
            *((evaluated, conj([condition, inner])) for evaluated, inner in then.items()),
            *((evaluated, conj([neg(condition), inner])) for evaluated, inner in otherwise.items()),
        ]
    )


def _joined(cases: Iterable[tuple[Evaluated, Formula]]) -> Cases:
    found: Cases = {}
    for evaluated, condition in cases:
        if condition is not False:
            found[evaluated] = disj([found.get(evaluated, False), condition])
    if len(found) > MAX_COMBINATIONS:
        raise GrammarError("too many combinations to find what is unevaluated")
    return found
