"""Combinations of truths that several goals have of one value.

They are exact for words, strings and numbers. For objects and arrays they are listed as possible, and checked one by
one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..errors import GrammarError
from .formula import Formula, Truths, atoms, conj, disj, neg, truths_of
from .interface import VALUE_TYPES, SchemaCompiler, located
from .listed.evaluation import SparseTruths, part_truth
from .listed.values import GivenValue, ListedPart
from .number_parts import NumberPart, number_combinations
from .strings.string_parts import StringPart, string_combinations

MAX_COMBINED_GOALS = 6  # goals of objects or arrays whose combinations are listed


class JointTruths:
    """Combinations of truths of distinct goals.

    `known` are those that some value has. `unchecked` are those that an object or array may have, which `possible`
    decides; it is None if the goals are too many to combine.
    """

    def __init__(self, compiler: SchemaCompiler, goals: tuple[Formula, ...]) -> None:
        self.compiler, self.goals = compiler, goals
        self.known: dict[Truths, None] = {}
        self.unchecked: dict[Truths, None] | None = {}
        self._possible: dict[Truths, bool] = {}
        for kind in VALUE_TYPES:
            typed = [compiler.typed(goal, kind) for goal in goals]
            truths: Iterator[Truths] | None = _truths_of_type(compiler, kind, typed)
            if truths is not None:
                self.known.update(dict.fromkeys(truths))
            elif self.unchecked is not None:
                self._add_unchecked(typed)
        for found in self.known:
            if self.unchecked:
                self.unchecked.pop(found, None)

    def _add_unchecked(self, typed: list[Formula]) -> None:
        listed = dict.fromkeys(value for each in typed if isinstance(each, ListedPart) for value in each.values)
        for value in listed:
            truths = tuple(part_truth(self.compiler, formula, value) for formula in typed)
            if None not in truths:
                self.known[tuple(map(bool, truths))] = None
        # All other objects or arrays satisfy none of the parts that list them.
        typed = [False if isinstance(formula, ListedPart) else formula for formula in typed]
        different = list(dict.fromkeys(formula for formula in typed if not isinstance(formula, bool)))
        if len(different) > MAX_COMBINED_GOALS:
            self.unchecked = None
            return
        assert self.unchecked is not None
        for values in itertools.product((True, False), repeat=len(different)):
            truth = dict(zip(different, values, strict=True))
            self.unchecked[tuple(truth.get(formula, formula is True) for formula in typed)] = None

    def candidates(self) -> Iterator[Truths]:
        """Yield combinations to try, the known ones first."""
        yield from self.known
        if self.unchecked is not None:
            yield from self.unchecked
        else:
            yield from (truths for truths in self._found(()) if truths not in self.known)

    def _found(self, first: Truths) -> Iterator[Truths]:
        """Yield the combinations that begin with some truths of the first goals, found goal by goal."""
        if first and not self._may_begin(first):
            return
        if len(first) == len(self.goals):
            yield first
            return
        for truth in (True, False):
            yield from self._found((*first, truth))

    def _may_begin(self, first: Truths) -> bool:
        """Return False only if no value has these truths of the first goals."""
        found = self._possible.get(first)
        if found is None:
            num_before = self.compiler.num_assumptions
            found = self.compiler.satisfiable(literals(self.goals[: len(first)], first))
            if found or num_before == self.compiler.num_assumptions:
                self._possible[first] = found
        return found

    def possible(self, truths: Truths) -> bool:
        """Return False only if no value has these truths."""
        if truths in self.known:
            return True
        return self._may_begin(truths)


def joint_truths(compiler: SchemaCompiler, goals: tuple[Formula, ...]) -> JointTruths:
    """Return the joint truths of distinct goals, from the compiler's cache."""
    key = ("joint truths", goals)
    found = compiler.cache.get(key)
    if found is None:
        with located(*goals):
            found = compiler.cache[key] = JointTruths(compiler, goals)
    assert isinstance(found, JointTruths)
    return found


def literals(goals: tuple[Formula, ...], truths: Truths) -> Formula:
    """Return the goal of a value that has exactly these truths."""
    return conj(goal if truth else neg(goal) for goal, truth in zip(goals, truths, strict=True))


def _truths_of_type(compiler: SchemaCompiler, kind: str, typed: list[Formula]) -> Iterator[Truths] | None:
    """Return the combinations of one type, or None if they are not known: objects and arrays with parts."""
    if all(isinstance(formula, bool) for formula in typed):
        return iter([tuple(formula is True for formula in typed)])
    if kind not in ("string", "number"):
        if not all(isinstance(formula, bool | ListedPart) for formula in typed):
            return None
        # Values that are not listed satisfy none of the parts, and there always are some.
        values = SparseTruths[GivenValue](typed, lambda part: part.values, lambda *_: None)
        bits = [*map(values.bits, values.values), values.bits_elsewhere(lambda _: None)]
        return (truths_of(each, len(typed)) for each in bits)
    return _value_truths(compiler, kind, typed)


def _value_truths(compiler: SchemaCompiler, kind: str, typed: list[Formula]) -> Iterator[Truths]:
    """Yield the combinations of strings or numbers: of those that parts list, one by one, then of all others."""

    def listed(part: Any) -> frozenset[Any] | None:
        return part.texts if kind == "string" else part.values  # type: ignore[no-any-return]

    count = len(typed)
    truths = SparseTruths[Any](typed, listed, lambda part, value: part.holds(value))
    try:
        for value in truths.values:
            yield truths_of(truths.bits(value), count)
        values = frozenset(truths.values)
        parts: list[Any] = list(dict.fromkeys(atom for formula in typed for atom in atoms(formula)))
        parts = [part for part in parts if listed(part) is None]
        if not parts:
            yield truths_of(truths.bits_elsewhere(lambda _: False), count)
            return
        if kind == "string":
            tests: list[Any] = [StringPart(texts=values)] if values else []
            found = string_combinations((*tests, *parts))
        else:
            tests = [NumberPart(values=values)] if values else []
            found = number_combinations([*tests, *parts])
    except GrammarError as error:
        compiler.refused.add(error)
        return  # the grammar is refused
    for combination in found:
        if not tests or not combination[0]:
            known = dict(zip((*tests, *parts), combination, strict=True))
            yield truths_of(truths.bits_elsewhere(known.__getitem__), count)


def restricted(goals: tuple[Formula, ...], good: set[Truths], bad: set[Truths], at: int = 0) -> Formula:
    """Return a formula that holds for the good truths and fails for the bad ones. Others may do either."""
    if not bad:
        return True
    if not good:
        return False
    goal = goals[at]
    sides = [
        ({truths for truths in good if truths[at] is side}, {truths for truths in bad if truths[at] is side})
        for side in (True, False)
    ]
    high, low = (restricted(goals, *side, at + 1) if any(side) else None for side in sides)
    if high is None or low is None or high == low:
        return high if low is None else low
    return conj([disj([neg(goal), high]), disj([goal, low])])
