"""Whether an array that has been begun can be ended.

What is still asked for (numbers of items, and of those that are to be found, parts that must fail) is met or not by the
truths of what is asked of the items to come. Where items must differ, those of which there are only a few values are
taken one by one, and of others there is always another.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..errors import GrammarError
from .end_search import EndSearch, ValueGoal
from .finite_values import distinct_values
from .formula import Formula, conj, evaluate, optimistic
from .joint_truths import JointTruths, Truths, joint_truths, literals, restricted

if TYPE_CHECKING:
    from .array_states import ArrayContext, ArrayState, ItemDemands


MAX_GOALS = 32  # whose truths are followed from item to item: work grows with the fourth power of their number


@dataclass(frozen=True)
class FreshValue:
    """A value unlike those before, of a goal that many values satisfy."""

    number: int
    goal: Formula


class ArrayEndSearch(EndSearch["ArrayState"]):
    """Of the states of one context."""

    def __init__(self, context: ArrayContext) -> None:
        super().__init__(context.world)
        self.context = context

    def _key(self, state: ArrayState) -> Hashable:
        return state.alive, state.index, state.counts, state.used if self.context.unique else None

    def _steps(self, state: ArrayState) -> Iterator[ArrayState]:
        asked = state.asked()
        together = self._together(asked)
        if self._is_too_much(together):
            return
        for truths in sorted(together.some(), key=lambda truths: self._promise(asked, together, truths)):
            for step in self._with_values(state, asked, together, truths):
                brings_on = (step.alive, step.index, step.counts) != (state.alive, state.index, state.counts)
                brings_on |= self.context.unique and not state.used
                if brings_on and not self._is_hopeless(step) and together.possible(truths):
                    yield step

    def _promise(self, asked: ItemDemands, together: JointTruths, truths: Truths) -> int:
        """Less, where more of what is looked for is found."""
        known = dict(zip(together.goals, truths, strict=True))
        return -sum(found is True or known.get(found, False) for wanted in asked.wanted for found in wanted)

    def _with_values(
        self, state: ArrayState, asked: ItemDemands, together: JointTruths, truths: Truths
    ) -> Iterator[ArrayState]:
        known = dict(zip(together.goals, truths, strict=True))
        if not self.context.unique:
            yield state.with_item(asked, known, None)
            return
        if asked.repeated is not False and known[asked.repeated]:
            yield state.with_item(asked, known, next(iter(state.used)))
            return
        goal = literals(together.goals, truths)
        values = distinct_values(self._world, goal)
        if values is None:
            yield state.with_item(asked, known, FreshValue(len(state.used), goal))
        for value in values or ():
            yield state.with_item(asked, known, value)
        for value in state.used:
            # Nothing is known of other values of before but what they satisfy.
            if (
                isinstance(value, FreshValue)
                and self.context.exact
                and self._world.satisfiable(conj([value.goal, goal]))
            ):
                yield state.with_item(asked, known, value)
                return

    def _is_too_much(self, together: JointTruths) -> bool:
        if len(together.goals) <= MAX_GOALS:
            return False
        self._world.refused.append(GrammarError(f"an array asks more than {MAX_GOALS} things of its items together"))
        return True

    def _is_hopeless(self, state: ArrayState) -> bool:
        return state.truth() is False

    def _together(self, asked: ItemDemands) -> JointTruths:
        found = dict.fromkeys(asked.goals)
        for wanted in asked.wanted:
            found |= dict.fromkeys(wanted)
        found[asked.repeated] = None
        if self.context.unique:
            found |= self._scarce
        return joint_truths(self._world, tuple(goal for goal in found if goal is not True and goal is not False))

    @cached_property
    def _scarce(self) -> dict[Formula, None]:
        """Goals that only a few values satisfy: each of them that comes is one less for later items."""
        goals = {part.goal(n): None for part in self.context.parts if part.unique for n in range(part.num_kinds)}
        return {goal: None for goal in goals if distinct_values(self._world, goal) is not None}

    def value(self, state: ArrayState) -> ValueGoal | None:
        """Of the next item; None when none may come."""
        context, asked = self.context, state.asked()
        together = self._together(asked)
        if self._is_too_much(together):
            return None
        need = self._need(asked.goals)
        if together.open is None:
            return ValueGoal(need, together.goals, None) if self._world.satisfiable(need) else None
        marked = self._need(tuple(goal if isinstance(goal, bool) else (goal,) for goal in asked.goals))
        good: set[Truths] = set()
        bad: set[Truths] = set()
        for truths in (*together.known, *together.open):
            known = dict(zip(together.goals, truths, strict=True))
            if evaluate(marked, lambda mark: known[mark[0]]):  # noqa: B023
                steps = self._with_values(state, asked, together, truths)
                fits = any(not self._is_hopeless(step) and self.can_end(step) for step in steps)
                (good if fits else bad).add(truths)
        if not any(together.possible(truths) for truths in good):
            return None
        need = conj([need, restricted(together.goals, good, bad)])
        assert context.parts, "without parts every array will do"
        return ValueGoal(need, together.goals, next(iter(good)) if len(good) == 1 else None)

    def _need(self, goals: tuple[Formula, ...]) -> Formula:
        index = self.context.index
        return optimistic(self.context.formulas[0], lambda part: goals[index[part]], lambda _: False)
