"""Formulas of `unevaluatedProperties` and `unevaluatedItems`.

What remains unevaluated depends on which of the schemas beside the keyword hold. So each combination of those that
matter is a case: a condition, and under it a remainder in ordinary keywords.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..errors import GrammarError
from .document import Location
from .formula import Formula, conj, disj, neg
from .interface import SchemaCompiler
from .keyword_set import derived_keywords, object_with
from .keywords import child

MAX_COMBINATIONS = 64


@dataclass(frozen=True)
class Evaluated:
    """Set of what some schemas evaluate together: names, names that match patterns, leading items.

    `contained` are pointers of `contains` keywords, which evaluate the items that they find.
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    all_names: bool = False
    num_items: int = 0
    all_items: bool = False
    contained: frozenset[str] = frozenset()

    def __or__(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            self.all_names or other.all_names,
            max(self.num_items, other.num_items),
            self.all_items or other.all_items,
            self.contained | other.contained,
        )


Cases = dict[Evaluated, Formula]  # what is evaluated, with the condition under which it is


def unevaluated(compiler: SchemaCompiler, location: Location, *, generated: bool = False) -> Formula:
    """Return the formula of the two keywords of a schema. `generated` is as in `SchemaCompiler.goal`.

    Raises GrammarError if there are too many cases.
    """
    contains: dict[str, Any] = {}
    try:
        cases = _cases(compiler, location, contains, is_root=True)
    except GrammarError as error:
        keyword = next(k for k in ("unevaluatedProperties", "unevaluatedItems") if k in location.schema)
        raise GrammarError(error.reason, pointer=error.pointer or child(location.pointer, keyword)) from None
    return conj(
        disj([neg(condition), _remainder(compiler, location, evaluated, contains, generated)])
        for evaluated, condition in cases.items()
    )


def _remainder(
    compiler: SchemaCompiler, location: Location, evaluated: Evaluated, contains: dict[str, Any], generated: bool
) -> Formula:
    """Return the formula of what one case leaves unevaluated."""
    schema = location.schema
    parts: list[Formula] = []
    rest: dict[str, Any]
    if "unevaluatedProperties" in schema and not evaluated.all_names:
        rest = {
            "properties": dict.fromkeys(sorted(evaluated.names), True),
            "patternProperties": dict.fromkeys(sorted(evaluated.patterns), True),
            "additionalProperties": schema["unevaluatedProperties"],
        }
        parts.append(derived_keywords(compiler, rest, location, generated=generated))
    if "unevaluatedItems" in schema and not evaluated.all_items:
        item: Any = schema["unevaluatedItems"]
        if evaluated.contained:
            item = {"anyOf": [item, *(contains[pointer] for pointer in sorted(evaluated.contained))]}
        rest = {"prefixItems": [True] * evaluated.num_items, "items": item}
        parts.append(derived_keywords(compiler, rest, location, generated=generated))
    return conj(parts)


def _cases(compiler: SchemaCompiler, location: Location, contains: dict[str, Any], is_root: bool = False) -> Cases:
    """Return the cases of a schema that holds. `is_root`: it is the one whose unevaluated keywords are asked for."""
    schema, document = location.schema, compiler.document
    if not isinstance(schema, dict):
        return {Evaluated(): True}

    def inner_cases(value: Any, *path: str | int) -> Cases:
        return _cases(compiler, document.inside(location, value, *path), contains)

    cases: Cases = {_own(location, contains, is_root, location.draft or 2020): True}
    for keyword in ("$ref", "$dynamicRef"):
        if keyword in schema:
            cases = _conjunction(
                cases, _cases(compiler, document.resolve(schema[keyword], location, keyword), contains)
            )
    for number, value in enumerate(schema.get("allOf", ())):
        cases = _conjunction(cases, inner_cases(value, "allOf", number))
    for keyword in ("anyOf", "oneOf"):
        for number, value in enumerate(schema.get(keyword, ())):
            holds = compiler.formula_at(document.inside(location, value, keyword, number))
            inner = inner_cases(value, keyword, number)
            cases = _conjunction(cases, _conditional(holds, inner, {Evaluated(): True}))
    if "if" in schema:
        condition = compiler.formula_at(document.inside(location, schema["if"], "if"))
        then = _conjunction(inner_cases(schema["if"], "if"), inner_cases(schema.get("then", True), "then"))
        otherwise = inner_cases(schema.get("else", True), "else")
        cases = _conjunction(cases, _conditional(condition, then, otherwise))
    for name, value in schema.get("dependentSchemas", {}).items():
        inner = inner_cases(value, "dependentSchemas", name)
        cases = _conjunction(cases, _conditional(object_with(compiler, name), inner, {Evaluated(): True}))
    return cases


def _own(location: Location, contains: dict[str, Any], is_root: bool, draft: int) -> Evaluated:
    """Return what the keywords of one schema evaluate, and register its `contains`."""
    schema = location.schema
    items = schema.get("items")
    first = items if isinstance(items, list) else schema.get("prefixItems", []) if draft >= 2020 else []
    contained = frozenset[str]()
    if "contains" in schema and draft >= 2020:
        pointer = child(location.pointer, "contains")
        contains[pointer] = schema["contains"]
        contained = frozenset([pointer])
    return Evaluated(
        frozenset(schema.get("properties", ())),
        frozenset(schema.get("patternProperties", ())),
        "additionalProperties" in schema or (not is_root and "unevaluatedProperties" in schema),
        len(first),
        isinstance(items, dict | bool)
        or (isinstance(items, list) and "additionalItems" in schema)
        or (not is_root and "unevaluatedItems" in schema),
        contained,
    )


def _conjunction(a: Cases, b: Cases) -> Cases:
    return _merged((x | y, conj([p, q])) for x, p in a.items() for y, q in b.items())


def _conditional(condition: Formula, then: Cases, otherwise: Cases) -> Cases:
    if then == otherwise:
        return then
    return _merged(
        [
            *((evaluated, conj([condition, inner])) for evaluated, inner in then.items()),
            *((evaluated, conj([neg(condition), inner])) for evaluated, inner in otherwise.items()),
        ]
    )


def _merged(cases: Iterable[tuple[Evaluated, Formula]]) -> Cases:
    """Merge cases that evaluate the same by disjunction, without those that are False."""
    found: Cases = {}
    for evaluated, condition in cases:
        if condition is not False:
            found[evaluated] = disj([found.get(evaluated, False), condition])
    if len(found) > MAX_COMBINATIONS:
        raise GrammarError(f"more than {MAX_COMBINATIONS} combinations decide what is unevaluated")
    return found
