"""Which truths several goals can have of one value: exact for words, strings and numbers, asked one by one of objects
and arrays. Knows formulas and parts; no states, and nothing of where the value stands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..errors import GrammarError
from .formula import Formula, atoms, conj, disj, evaluate, neg
from .goals import VALUE_TYPES, SchemaCompiler
from .number_states import number_combinations
from .string_regions import string_combinations

Truths = tuple[bool, ...]
MAX_NESTED = 6  # goals of objects or arrays whose combinations are gone through


class JointTruths:
    """Of some different goals, as `together_of` remembers them.

    `known` are truths that some value has. `open` are those that an object or array may have, which `possible` is to be
    asked about; None when the goals are too many for that.
    """

    def __init__(self, world: SchemaCompiler, goals: tuple[Formula, ...]) -> None:
        self.world, self.goals = world, goals
        self.known: dict[Truths, None] = {}
        self.open: dict[Truths, None] | None = {}
        self._possible: dict[Truths, bool] = {}
        for kind in VALUE_TYPES:
            typed = [world.typed(goal, kind) for goal in goals]
            truths: Iterator[Truths] | None = _of_kind(kind, typed)
            if truths is not None:
                self.known.update(dict.fromkeys(truths))
            elif self.open is not None:
                self._add_open(typed)
        for found in self.known:
            if self.open:
                self.open.pop(found, None)

    def _add_open(self, typed: list[Formula]) -> None:
        different = list(dict.fromkeys(formula for formula in typed if not isinstance(formula, bool)))
        if len(different) > MAX_NESTED:
            self.open = None
            return
        assert self.open is not None
        for values in itertools.product((True, False), repeat=len(different)):
            truth = dict(zip(different, values, strict=True))
            self.open[tuple(truth.get(formula, formula is True) for formula in typed)] = None

    def some(self) -> Iterator[Truths]:
        """Truths to be asked about, the known ones first. Not all where goals are too many."""
        yield from self.known
        if self.open is not None:
            yield from self.open
        else:
            count = len(self.goals)
            single = [tuple(n == at for n in range(count)) for at in range(count)]
            yield from (truths for truths in [*single, (True,) * count, (False,) * count] if truths not in self.known)

    def possible(self, truths: Truths) -> bool:
        """Whether some value has these truths."""
        if truths in self.known:
            return True
        found = self._possible.get(truths)
        if found is None:
            assumed = self.world.num_assumed
            found = self.world.satisfiable(literals(self.goals, truths))
            if found or assumed == self.world.num_assumed:
                self._possible[truths] = found
        return found


def joint_truths(world: SchemaCompiler, goals: tuple[Formula, ...]) -> JointTruths:
    key = ("together", goals)
    found = world.memory.get(key)
    if found is None:
        found = world.memory[key] = JointTruths(world, goals)
    assert isinstance(found, JointTruths)
    return found


def literals(goals: tuple[Formula, ...], truths: Truths) -> Formula:
    """The goal of a value that has just these truths."""
    return conj(goal if truth else neg(goal) for goal, truth in zip(goals, truths, strict=True))


def _of_kind(kind: str, typed: list[Formula]) -> Iterator[Truths] | None:
    """None when they are not listed: of objects and arrays whose parts matter."""
    if all(isinstance(formula, bool) for formula in typed):
        return iter([tuple(formula is True for formula in typed)])
    if kind not in ("string", "number"):
        return None
    parts: list[Any] = list(dict.fromkeys(atom for formula in typed for atom in atoms(formula)))
    try:
        combinations = string_combinations(tuple(parts)) if kind == "string" else number_combinations(parts)
    except GrammarError:
        return iter(())  # too complex together, so no such value is let in either
    known = (dict(zip(parts, truth, strict=True)) for truth in combinations)
    return (tuple(bool(evaluate(formula, of.__getitem__)) for formula in typed) for of in known)


def restricted(goals: tuple[Formula, ...], good: set[Truths], bad: set[Truths], at: int = 0) -> Formula:
    """A formula that the good truths satisfy and the bad ones do not; of all others it may say either."""
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
