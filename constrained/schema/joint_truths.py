"""Combinations of truths that several goals have of one value.

They are exact for words, strings and numbers. For objects and arrays they are listed as possible, and checked one by
one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import GrammarError
from .formula import Formula, Truths, atoms, conj, disj, evaluate, neg
from .interface import VALUE_TYPES, SchemaCompiler
from .number_parts import number_combinations
from .string_parts import string_combinations

MAX_COMBINED_GOALS = 6  # goals of objects or arrays of which all combinations are tried
MAX_COMBINATIONS = 64  # of more goals


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
            truths: Iterator[Truths] | None = _truths_of_type(kind, typed)
            if truths is not None:
                self.known.update(dict.fromkeys(truths))
            elif self.unchecked is not None:
                self._add_unchecked(kind, typed)
        for found in self.known:
            if self.unchecked:
                self.unchecked.pop(found, None)

    def _add_unchecked(self, kind: str, typed: list[Formula]) -> None:
        different = list(dict.fromkeys(formula for formula in typed if not isinstance(formula, bool)))
        assert self.unchecked is not None
        combinations: Iterable[Truths] | None = itertools.product((True, False), repeat=len(different))
        if len(different) > MAX_COMBINED_GOALS:
            combinations = self._combinations(kind, [self.goals[typed.index(formula)] for formula in different])
        if combinations is None:
            self.unchecked = None
            return
        for values in combinations:
            truth = dict(zip(different, values, strict=True))
            self.unchecked[tuple(truth.get(formula, formula is True) for formula in typed)] = None

    def _combinations(self, kind: str, goals: list[Formula]) -> list[Truths] | None:
        """Return the combinations of truths of many goals, found goal by goal, or None if they are too many."""
        compiler = self.compiler
        of_kind = compiler.goal_of({"type": kind})
        found: list[Truths] = [()]
        for number in range(1, len(goals) + 1):
            longer: list[Truths] = []
            for truths in ((*before, value) for before in found for value in (True, False)):
                num_before = compiler.num_assumptions
                goal = conj([of_kind, literals(tuple(goals[:number]), truths)])
                if compiler.satisfiable(goal) or compiler.num_assumptions != num_before:
                    longer.append(truths)
            if len(longer) > MAX_COMBINATIONS:
                return None
            found = longer
        return found

    def candidates(self) -> Iterator[Truths]:
        """Yield combinations to try, the known ones first. These are not all if the goals are too many to combine."""
        yield from self.known
        if self.unchecked is not None:
            yield from self.unchecked
        else:
            count = len(self.goals)
            single = [tuple(n == at for n in range(count)) for at in range(count)]
            yield from (truths for truths in [*single, (True,) * count, (False,) * count] if truths not in self.known)

    def possible(self, truths: Truths) -> bool:
        """Return False only if no value has these truths."""
        if truths in self.known:
            return True
        found = self._possible.get(truths)
        if found is None:
            num_before = self.compiler.num_assumptions
            found = self.compiler.satisfiable(literals(self.goals, truths))
            if found or num_before == self.compiler.num_assumptions:
                self._possible[truths] = found
        return found


def joint_truths(compiler: SchemaCompiler, goals: tuple[Formula, ...]) -> JointTruths:
    """Return the joint truths of distinct goals, from the compiler's cache."""
    key = ("joint truths", goals)
    found = compiler.cache.get(key)
    if found is None:
        found = compiler.cache[key] = JointTruths(compiler, goals)
    assert isinstance(found, JointTruths)
    return found


def literals(goals: tuple[Formula, ...], truths: Truths) -> Formula:
    """Return the goal of a value that has exactly these truths."""
    return conj(goal if truth else neg(goal) for goal, truth in zip(goals, truths, strict=True))


def _truths_of_type(kind: str, typed: list[Formula]) -> Iterator[Truths] | None:
    """Return the combinations of one type, or None if they are not known: objects and arrays with parts."""
    if all(isinstance(formula, bool) for formula in typed):
        return iter([tuple(formula is True for formula in typed)])
    if kind not in ("string", "number"):
        return None
    parts: list[Any] = list(dict.fromkeys(atom for formula in typed for atom in atoms(formula)))
    try:
        combinations = string_combinations(tuple(parts)) if kind == "string" else number_combinations(parts)
    except GrammarError:
        return iter(())  # too complex in combination, so such values are refused too
    known = (dict(zip(parts, truth, strict=True)) for truth in combinations)
    return (tuple(bool(evaluate(formula, truth.__getitem__)) for formula in typed) for truth in known)


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
