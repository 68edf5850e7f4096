"""Formulas of `unevaluatedProperties` and `unevaluatedItems`.

What remains unevaluated depends on which of the schemas beside the keyword hold. So each name, pattern and number of
items that they evaluate has a condition, and the keyword applies to a member or item if its condition fails.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, combinations
from typing import Any, Literal

from ..errors import GrammarError
from .document import Location
from .formula import Formula, conj, disj, neg
from .interface import SchemaCompiler
from .keyword_set import derived_keywords, object_with
from .keywords import REFERENCES, child
from .strings.string_dfas import pattern_chars

MAX_COMBINATIONS = 64  # of conditions that patterns, or `contains`, have for the same name or item

# What a schema evaluates: a name, names that match a pattern, so many leading items, or the items that the `contains`
# with a pointer finds. "all names" and "all items" come with None.
Evaluated = tuple[Literal["name", "pattern", "all names", "items", "contains", "all items"], Any]
Conditions = dict[Evaluated, Formula]  # under which each of them is evaluated
_ALL_NAMES: Evaluated = ("all names", None)
_ALL_ITEMS: Evaluated = ("all items", None)


def unevaluated(compiler: SchemaCompiler, location: Location, *, generated: bool = False) -> Formula:
    """Return the formula of the two keywords of a schema. `generated` is as in `SchemaCompiler.goal`.

    Raises GrammarError if there are too many combinations of conditions.
    """
    schema = location.schema
    evaluations = _Evaluations(compiler)
    parts: list[Formula] = []
    keyword = next(k for k in ("unevaluatedProperties", "unevaluatedItems") if k in schema)
    try:
        conditions = evaluations.of(location, is_root=True)
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if keyword in schema:
                clauses = _of_members if keyword == "unevaluatedProperties" else _of_items
                found = clauses(compiler, schema[keyword], conditions, evaluations.contained)
                parts += [
                    disj([condition, derived_keywords(compiler, rest, location, generated=generated)])
                    for condition, rest in found
                ]
    except GrammarError as error:
        raise GrammarError(error.reason, pointer=error.pointer or child(location.pointer, keyword)) from None
    return conj(parts)


Clauses = Iterator[tuple[Formula, dict[str, Any]]]  # keywords that apply unless a condition holds


def _of_members(compiler: SchemaCompiler, rest: Any, conditions: Conditions, _: dict[str, Any]) -> Clauses:
    """Yield the clauses of `unevaluatedProperties`, `rest` being its value."""
    every = conditions.get(_ALL_NAMES, False)
    if every is True:
        return
    order = compiler.document.name_order
    names = {value: condition for (kind, value), condition in conditions.items() if kind == "name"}
    names = {name: names[name] for name in sorted(names, key=lambda name: (order.get(name, len(order)), name))}
    patterns = {value: condition for (kind, value), condition in conditions.items() if kind == "pattern"}
    for applying, condition in _combinations(patterns):
        keywords = {
            "properties": dict.fromkeys(names, True),
            "patternProperties": dict.fromkeys((p for p in sorted(patterns) if p not in applying), True),
            "additionalProperties": rest,
        }
        yield disj([every, condition]), keywords
    alike: dict[Formula, dict[str, Any]] = {}  # names under the same condition
    for name, condition in names.items():
        if condition is not True and patterns:
            matching = (other for pattern, other in patterns.items() if pattern_chars(pattern).accepts(name))
            condition = disj([condition, *matching])
        if condition is not True:
            alike.setdefault(condition, {})[name] = rest
    for condition, properties in alike.items():
        yield disj([every, condition]), {"properties": properties}


def _of_items(_: SchemaCompiler, rest: Any, conditions: Conditions, contained: dict[str, Any]) -> Clauses:
    """Yield the clauses of `unevaluatedItems`, `rest` being its value."""
    every = conditions.get(_ALL_ITEMS, False)
    if every is True:
        return
    numbers = {value: condition for (kind, value), condition in conditions.items() if kind == "items"}
    finders = {value: condition for (kind, value), condition in conditions.items() if kind == "contains"}
    for applying, found in _combinations(finders):
        others = [contained[pointer] for pointer in sorted(finders) if pointer not in applying]
        item = {"anyOf": [rest, *others]} if others else rest
        longer: Formula = False  # the condition that more items are evaluated
        for number in sorted(numbers, reverse=True):
            yield disj([every, found, longer]), {"prefixItems": [True] * number, "items": item}
            longer = disj([longer, numbers[number]])
        yield disj([every, found, longer]), {"items": item}


def _combinations(conditions: dict[str, Formula]) -> Iterator[tuple[frozenset[str], Formula]]:
    """Yield each set of keys whose conditions may fail together, with the disjunction of these.

    Raises GrammarError if they are too many.
    """
    alike: dict[Formula, list[str]] = {}
    for key, condition in conditions.items():
        if condition is not True:
            alike.setdefault(condition, []).append(key)
    if 1 << len(alike) > MAX_COMBINATIONS:
        raise GrammarError(f"more than {MAX_COMBINATIONS} combinations decide what is unevaluated")
    for size in range(len(alike) + 1):
        for chosen in combinations(alike, size):
            yield frozenset(chain.from_iterable(alike[condition] for condition in chosen)), disj(chosen)


class _Evaluations:
    """Finds what the subschemas of a value evaluate, and when. `contained`: the `contains` among them, by pointer."""

    def __init__(self, compiler: SchemaCompiler) -> None:
        self._compiler = compiler
        self._known: dict[Hashable, Conditions] = {}
        self.contained: dict[str, Any] = {}

    def of(self, location: Location, *, is_root: bool = False) -> Conditions:
        """Return what a schema that holds evaluates. `is_root`: it has the unevaluated keywords that are asked for."""
        if not isinstance(location.schema, dict):
            return {}
        key = id(location.schema), location.base, location.scope, is_root
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(location, is_root)
        return found

    def _find(self, location: Location, is_root: bool) -> Conditions:
        schema, document, compiler = location.schema, self._compiler.document, self._compiler
        ways: list[tuple[Formula, Conditions]] = [(True, dict.fromkeys(self._own(location, is_root), True))]
        for keyword in REFERENCES:
            if keyword in schema:
                ways.append((True, self.of(document.resolve(schema[keyword], location, keyword))))
        for number, value in enumerate(schema.get("allOf", ())):
            ways.append((True, self.of(document.inside(location, value, "allOf", number))))
        for keyword in ("anyOf", "oneOf"):
            branches = [document.inside(location, v, keyword, n) for n, v in enumerate(schema.get(keyword, ()))]
            inner = [self.of(branch) for branch in branches]
            ways.append((True, _in_all(inner)))
            for branch, conditions in zip(branches, inner, strict=True):
                ways.append((compiler.formula_at(branch) if conditions else True, conditions))
        if "if" in schema:
            inside = {k: document.inside(location, schema[k], k) for k in ("if", "then", "else") if k in schema}
            condition = compiler.formula_at(inside["if"])
            held = [self.of(inside[name]) for name in ("if", "then") if name in inside]
            failed = self.of(inside["else"]) if "else" in inside else {}
            ways += [(condition, conditions) for conditions in held]
            ways += [(neg(condition), failed), (True, _in_all([_joined((True, each) for each in held), failed]))]
        for name, value in schema.get("dependentSchemas", {}).items():
            inner_location = document.inside(location, value, "dependentSchemas", name)
            ways.append((object_with(compiler, name), self.of(inner_location)))
        return _joined(ways)

    def _own(self, location: Location, is_root: bool) -> Iterator[Evaluated]:
        """Yield what the keywords of one schema evaluate, and register its `contains`."""
        schema, draft = location.schema, location.draft or 2020
        for name in schema.get("properties", ()):
            yield "name", name
        for pattern in schema.get("patternProperties", ()):
            yield "pattern", pattern
        if "additionalProperties" in schema or (not is_root and "unevaluatedProperties" in schema):
            yield _ALL_NAMES
        items = schema.get("items")
        first = items if isinstance(items, list) else schema.get("prefixItems", []) if draft >= 2020 else []
        if first:
            yield "items", len(first)
        if "contains" in schema and draft >= 2020:
            pointer = child(location.pointer, "contains")
            self.contained[pointer] = schema["contains"]
            yield "contains", pointer
        if (
            isinstance(items, dict | bool)
            or (isinstance(items, list) and "additionalItems" in schema)
            or (not is_root and "unevaluatedItems" in schema)
        ):
            yield _ALL_ITEMS


def _in_all(several: list[Conditions]) -> Conditions:
    """Return what is evaluated in any case if at least one of several schemas holds."""
    sure = [{key for key, condition in conditions.items() if condition is True} for conditions in several]
    return dict.fromkeys(sorted(set[Evaluated].intersection(*sure), key=repr), True) if sure else {}


def _joined(ways: Iterable[tuple[Formula, Conditions]]) -> Conditions:
    """Return what is evaluated by several schemas, each of which applies under a condition."""
    found: dict[Evaluated, list[Formula]] = {}
    for applies, conditions in ways:
        for key, condition in conditions.items():
            found.setdefault(key, []).append(conj([applies, condition]))
    return {key: disj(each) for key, each in found.items()}
