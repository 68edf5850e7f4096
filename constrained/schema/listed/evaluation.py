"""Decides whether a given value satisfies a goal, on the value itself, without any automaton.

Truths are three-valued: None where a format is known in part only.
"""

from __future__ import annotations

from ..formula import Formula, evaluate
from ..interface import SchemaCompiler
from ..number_parts import NumberPart
from ..string_dfas import pattern_chars
from ..string_parts import StringPart
from ..structure_parts import ArrayPart, ObjectPart
from .values import GivenValue, ListedPart, given_value


def satisfies(compiler: SchemaCompiler, goal: Formula, value: GivenValue) -> bool | None:
    """Return True if a value satisfies a goal, None if that is unknown."""
    if goal is True or goal is False:
        return bool(goal)
    return part_truth(compiler, compiler.over_parts(goal, value.kind), value)


def part_truth(compiler: SchemaCompiler, formula: Formula, value: GivenValue) -> bool | None:
    """Return the truth of a formula over parts of the value's type."""
    match formula:
        case True | False:
            return formula
        case ListedPart():
            return value in formula.values
        case StringPart():
            return True if formula.holds(value.content) else None if formula.is_undecided(value.content) else False
        case NumberPart():
            return formula.holds(value.content)
        case ObjectPart():
            return _object_truth(compiler, formula, dict(value.content))
        case ArrayPart():
            return _array_truth(compiler, formula, value.content)
        case _:
            return evaluate(formula, lambda part: part_truth(compiler, part, value))


def _object_truth(compiler: SchemaCompiler, part: ObjectPart, members: dict[str, GivenValue]) -> bool | None:
    if len(members) < part.least or (part.most is not None and len(members) > part.most):
        return False
    if not all(name in members for name in part.required):
        return False
    for keywords in part.keywords:
        if any(name in members and not members.keys() >= {*others} for name, others in keywords.requires.items()):
            return False
    found: bool | None = True
    for name, value in members.items():
        matched = frozenset(pattern for pattern in part.patterns if pattern_chars(pattern).accepts(name))
        for goal, subject in (
            *((goal, given_value(compiler, name)) for goal in part.name_goals),
            (part.goal(name, matched), value),
        ):
            truth = satisfies(compiler, goal, subject)
            if truth is False:
                return False
            found = found and truth
    return found


def _array_truth(compiler: SchemaCompiler, part: ArrayPart, items: tuple[GivenValue, ...]) -> bool | None:
    if len(items) < part.least or (part.most is not None and len(items) > part.most):
        return False
    if part.unique and len({*items}) < len(items):
        return False
    found: bool | None = True
    for index, item in enumerate(items):
        truth = satisfies(compiler, part.goal(index), item)
        if truth is False:
            return False
        found = found and truth
    for condition, least, most in part.contains:
        truths = [satisfies(compiler, condition, item) for item in items]
        surely, perhaps = truths.count(True), len(truths) - truths.count(False)
        if perhaps < least or (most is not None and surely > most):
            return False
        if surely < least or (most is not None and perhaps > most):
            found = None
    return found
