"""Formulas that given values satisfy, made one part that lists them.

The values are compared with what else a formula says, so that no product of parts is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ...errors import GrammarError
from ..formula import And, ExactlyOne, Formula, Not, Or, atoms, conj, disj, neg, one
from ..interface import VALUE_TYPES, SchemaCompiler
from ..number_parts import NumberPart
from ..strings.string_parts import StringPart
from ..structure_parts import ObjectPart
from .evaluation import part_truth
from .values import WORD_VALUES, GivenValue, ListedPart, given_value, json_value, listed_part

FEW_ALTERNATIVES = 8  # of a disjunction that are not examined for having only one value each


def lists_values(formula: Formula) -> bool:
    """Return True if `with_listed_values` may simplify a formula."""
    if isinstance(formula, Or | ExactlyOne) and len(formula.parts) >= FEW_ALTERNATIVES:
        return True
    if isinstance(formula, And | Or | ExactlyOne | Not):
        return any(map(lists_values, formula.parts))
    return isinstance(formula, ListedPart)


def with_listed_values(compiler: SchemaCompiler, formula: Formula) -> Formula:
    """Simplify a formula over parts of objects or arrays with a `ListedPart`.

    A formula that only given values satisfy becomes one `ListedPart` of them, or False. In others, the given values are
    those that differ from what the formula says without them.
    """
    if isinstance(formula, And):
        found = conj(with_listed_values(compiler, part) for part in formula.parts)
        return _settled_conjunction(compiler, found) if isinstance(found, And) else found
    if isinstance(formula, Or):
        found = disj(with_listed_values(compiler, part) for part in formula.parts)
        return _settled_disjunction(compiler, found) if isinstance(found, Or) else found
    if isinstance(formula, ExactlyOne):
        found = one(with_listed_values(compiler, part) for part in formula.parts)
        return _settled_exactly_one(compiler, found) if isinstance(found, ExactlyOne) else found
    if isinstance(formula, Not):
        return neg(with_listed_values(compiler, formula.part))
    return formula


def _settled_conjunction(compiler: SchemaCompiler, formula: And) -> Formula:
    listed = [part for part in formula.parts if isinstance(part, ListedPart)]
    if listed:
        fewest = min(listed, key=lambda part: len(part.values))
        others = [part for part in formula.parts if part is not fewest]
        found = _kept(compiler, [fewest], lambda value: _all(part_truth(compiler, part, value) for part in others))
        return _written_under(compiler, found, others)
    excluded = [part.part for part in formula.parts if isinstance(part, Not) and isinstance(part.part, ListedPart)]
    if not excluded:
        return formula
    others = [part for part in formula.parts if not (isinstance(part, Not) and part.part in excluded)]
    # Values that the rest refuses need not be excluded.
    left = _kept(compiler, excluded, lambda v: _all(part_truth(compiler, p, v) for p in others), unknown=True)
    return conj([*others, neg(left)])


def _written_under(compiler: SchemaCompiler, found: Formula, others: list[Formula]) -> Formula:
    """Return a `ListedPart` whose values are written as the other formulas of the same value demand."""
    if not isinstance(found, ListedPart):
        return found
    parts = [part for formula in others for part in atoms(formula)]
    listed = [part for part in parts if isinstance(part, ListedPart)]
    # Until draft 4, 1.0 is no integer, and the given values do not tell it from 1.
    strict = compiler.integers_as_digits or (compiler.document.start.draft or 2020) <= 4
    digits = found.digits or any(part.digits for part in listed) or (strict and len(parts) > len(listed))
    ordered = found.ordered or any(part.ordered for part in listed)
    ordered |= any(isinstance(part, ObjectPart) and any(each.ordered for each in part.keywords) for part in parts)
    return listed_part(compiler, found.values, digits, ordered, found.pointer)


def _with_single_values(compiler: SchemaCompiler, parts: tuple[Formula, ...]) -> list[Formula]:
    """Return alternatives as listed values, if there are many and each of them has only one value or is listed."""
    found: list[Formula] = []
    for part in parts if len(parts) >= FEW_ALTERNATIVES else ():
        if isinstance(part, ListedPart):
            found.append(part)
            continue
        value = _single_object(compiler, part) if isinstance(part, ObjectPart) else None
        if value is None:
            return list(parts)
        ordered = any(each.ordered for each in part.keywords)
        found.append(listed_part(compiler, [value], compiler.integers_as_digits, ordered, ""))
    return found or list(parts)


def _single_object(compiler: SchemaCompiler, part: ObjectPart) -> GivenValue | None:
    """Return the only object that satisfies a part, or None if that is not known."""
    if not part.is_closed or part.name_goals or part.has_dependencies or part.patterns:
        return None
    if part.required.keys() != part.names.keys() or part.least > len(part.names) or part.most is not None:
        return None
    members: dict[str, Any] = {}
    for name in part.names:
        value = _single_value(compiler, part.goal(name, frozenset()))
        if value is None:
            return None
        members[name] = json_value(value)
    return given_value(compiler, members)


def _single_value(compiler: SchemaCompiler, goal: Formula) -> GivenValue | None:
    """Return the only value that satisfies a goal, or None if that is not known."""
    found: list[GivenValue] = []
    for kind in VALUE_TYPES:
        match compiler.over_parts(goal, kind):
            case False:
                pass
            case True if kind in WORD_VALUES:
                found.append(given_value(compiler, WORD_VALUES[kind]))
            case StringPart(texts=values) | NumberPart(values=values) | ListedPart(values=values) if values is not None:
                found += [v if isinstance(v, GivenValue) else given_value(compiler, v) for v in values]
            case _:
                return None
    return found[0] if len(found) == 1 else None


def _settled_disjunction(compiler: SchemaCompiler, formula: Or) -> Formula:
    parts = _with_single_values(compiler, formula.parts)
    listed = [part for part in parts if isinstance(part, ListedPart)]
    if not listed:
        return formula
    others = [part for part in parts if not isinstance(part, ListedPart)]
    # Values that the rest allows need not be listed.
    left = _kept(
        compiler, listed, lambda v: not any(part_truth(compiler, part, v) for part in others) if others else True
    )
    return disj([left, *others])


def _settled_exactly_one(compiler: SchemaCompiler, formula: ExactlyOne) -> Formula:
    parts = _with_single_values(compiler, formula.parts)
    if not all(isinstance(part, ListedPart) for part in parts):
        return formula
    counts: dict[GivenValue, int] = {}
    for part in parts:
        for value in part.values:
            counts[value] = counts.get(value, 0) + 1
    return _kept(compiler, parts, lambda value: counts[value] == 1)


def _kept(
    compiler: SchemaCompiler,
    parts: list[ListedPart],
    keeps: Callable[[GivenValue], bool | None],
    *,
    unknown: bool = False,
) -> Formula:
    """Return the values of some parts that are kept; `unknown`: also those of which it is unknown."""
    values = dict.fromkeys(value for part in parts for value in part.values)
    try:
        kept = [value for value in values if (truth := keeps(value)) or (truth is None and unknown)]
    except RecursionError:
        raise GrammarError("given values are nested too deep to compare them", pointer=parts[0].pointer) from None
    digits, ordered = any(part.digits for part in parts), any(part.ordered for part in parts)
    return listed_part(compiler, kept, digits, ordered, parts[0].pointer)


def _all(truths: Iterable[bool | None]) -> bool | None:
    found: bool | None = True
    for truth in truths:
        if truth is False:
            return False
        found = found and truth
    return found


def without_excluded(joined: Formula, others: list[Formula]) -> tuple[Formula, list[Formula]]:
    """Leave the listed texts or numbers that `others` exclude out of the part `joined`, or exclude them together."""
    listed = [part.part for part in others if isinstance(part, Not) and _given(part.part) is not None]
    excluded = frozenset[Any]().union(*(_given(part) or () for part in listed))
    if not excluded:
        return joined, others
    rest = [part for part in others if not (isinstance(part, Not) and part.part in listed)]
    values = _given(joined)
    if values is not None:
        return _giving(joined, values - excluded), rest
    return joined, [*rest, neg(_giving(listed[0], excluded))]


def _given(part: Formula) -> frozenset[Any] | None:
    """Return the values of a part that only lists these."""
    return part.texts if isinstance(part, StringPart) else part.values if isinstance(part, NumberPart) else None


def _giving(part: StringPart | NumberPart, values: frozenset[Any]) -> Formula:
    if not values:
        return False
    return StringPart(texts=values) if isinstance(part, StringPart) else NumberPart(digits=part.digits, values=values)
