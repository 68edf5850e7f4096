"""Joins alternatives of strings or numbers: one automaton stands for all, instead of a product of one for each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from ..formula import And, ExactlyOne, Formula, Not, Or, atoms, conj, disj, neg, one, substitute
from ..number_parts import NumberPart, any_number
from ..strings.string_parts import StringPart, TextAlternatives


def with_joined_alternatives(formula: Formula) -> Formula:
    """Join alternatives of a formula over parts: of strings by patterns and formats, of numbers by bounds."""
    if isinstance(formula, Not):
        return neg(with_joined_alternatives(formula.part))
    if not isinstance(formula, And | Or | ExactlyOne):
        return formula
    parts = [with_joined_alternatives(part) for part in formula.parts]
    if isinstance(formula, Or):
        return disj(_joined(parts))
    if isinstance(formula, And):  # none of several is to hold
        excluded = _joined([part.part for part in parts if isinstance(part, Not)])
        return conj([*(part for part in parts if not isinstance(part, Not)), *map(neg, excluded)])
    kinds = set(map(_kind, parts))
    if len(kinds) == 1 and None not in kinds and len(parts) == len(formula.parts) == len(set(parts)):
        return _any_of(parts, exactly_one=True)
    return one(parts)


def _joined(parts: Sequence[Formula]) -> list[Formula]:
    """Return alternatives, with those that can be one part joined into it."""
    found: list[Formula] = []
    by_kind: dict[Hashable, dict[Any, None]] = {}
    for part in parts:
        kind = _kind(part)
        if kind is None:
            found.append(part)
        else:
            by_kind.setdefault(kind, {})[part] = None
    return found + [next(iter(alike)) if len(alike) == 1 else _any_of(list(alike)) for alike in by_kind.values()]


def _kind(part: Formula) -> Hashable:
    """Return a key that parts share if their alternatives can be joined; None for what is joined with nothing."""
    match part:
        case StringPart(texts=None) if not part.undecided():  # all texts of its formats are known
            return part.least, part.most
        case NumberPart(values=None):
            return part.integer, part.digits, part.multiples
        case _:
            return None


def _any_of(parts: list[Any], exactly_one: bool = False) -> Formula:
    """Return the part of the values for which some, or exactly one, of several parts of one kind holds."""
    first = parts[0]
    if isinstance(first, NumberPart):
        return any_number(parts, exactly_one)
    alternatives = [replace(part, least=0, most=None) for part in parts]
    if not exactly_one:
        if StringPart() in alternatives:  # only the length matters
            return StringPart(first.least, first.most)
        alternatives = [inner for part in alternatives for inner in _alternatives(part)]
    choice = TextAlternatives(frozenset(alternatives), exactly_one)
    return StringPart(first.least, first.most, choices=frozenset([choice]))


def _alternatives(part: StringPart) -> frozenset[StringPart]:
    """Return the alternatives of a part that is nothing but a choice, or the part itself."""
    if len(part.choices) == 1 and part == StringPart(choices=part.choices):
        (only,) = part.choices
        if not only.exactly_one:
            return only.alternatives
    return frozenset([part])


def apart(formulas: tuple[Formula, ...]) -> tuple[Formula, ...]:
    """Take apart again the choices whose alternatives are atoms of the formulas too, which would be read twice."""
    others = dict.fromkeys(part for formula in formulas for part in atoms(formula))

    def taken_apart(part: StringPart) -> Formula:
        for each in part.choices:
            if not each.exactly_one and part == StringPart(choices=part.choices) and each.alternatives <= others.keys():
                return disj(part for part in others if part in each.alternatives)
        return part

    return tuple(substitute(formula, taken_apart) for formula in formulas)
