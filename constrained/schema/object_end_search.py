"""Whether an object that has been begun can be ended.

What is still asked for (required names, what they bring with them, numbers of members, parts that must fail) is met or
not by which members come, in which order is no matter, with which truths of what is asked of their values. Members that
must come sooner or later are tried first, and then only those.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from ..errors import GrammarError
from .end_search import NEVER, EndSearch, ValueGoal
from .formula import And, ExactlyOne, Formula, Or, conj, evaluate, forced
from .joint_truths import Truths, joint_truths, restricted
from .name_states import NameClass
from .structure_parts import ObjectPart

if TYPE_CHECKING:
    from .object_context import ObjectContext
    from .object_states import ObjectState

MAX_PARTS = 96  # of which a way to the end is looked for: the work grows with the fourth power of their number
_Goals = tuple[int, tuple[tuple[Formula, int], ...]]


class ObjectEndSearch(EndSearch["ObjectState"]):
    """Of the states of one context. What is used up is names."""

    def __init__(self, context: ObjectContext) -> None:
        super().__init__(context.world)
        self.context = context
        self._goals: dict[NameClass, _Goals] = {}
        self._breaks: dict[int, list[NameClass]] = {}
        self._hopeless: dict[tuple[int, int], bool] = {}
        self._relevant = 0
        for required, requires in zip(context.required, context.requires, strict=True):
            self._relevant |= required
            for names, others in requires:
                self._relevant |= names | others
        self._least = max((part.least for part in context.parts), default=0)
        self._limited = any(part.most is not None for part in context.parts)

    def _key(self, state: ObjectState) -> Hashable:
        return state.alive, state.seen, state.count, bool(state.others) and self.context.in_order

    def _used(self, state: ObjectState, step: ObjectState) -> int:
        return step.seen & ~state.seen

    def can_end_after(self, state: ObjectState, member: ObjectState) -> bool:
        """Whether the second can end, which the first becomes by one more member."""
        way = self._ways.get(self._key(state))
        remains = way is not None and way != NEVER and not way & self._used(state, member)
        if way is not None and remains and self._is_neutral(state, member):
            self._ways.setdefault(self._key(member), way)
        return self.can_end(member)

    def _is_neutral(self, state: ObjectState, member: ObjectState) -> bool:
        """Whether what is asked for remains the same."""
        return (
            state.alive == member.alive
            and not (member.seen ^ state.seen) & self._relevant
            and (state.count == member.count or (state.count >= self._least and not self._limited))
            and not self.context.in_order
        )

    def _steps(self, state: ObjectState) -> Iterator[ObjectState]:
        """What a state may become by one more member that brings it on."""
        if self._is_too_much():
            return
        tried: set[tuple[object, ...]] = set()
        for outcome in self._obliged(state) or state.candidates(self._wanted(state, self.context.formulas[0]) or 0):
            alike = (*self._under(outcome), self.context.keys.bit(outcome) & self._relevant)
            if alike not in tried:
                tried.add(alike)
                for step in self.steps(state, outcome):
                    if not self._is_neutral(state, step):
                        yield step

    def _obliged(self, state: ObjectState) -> list[NameClass]:
        """Names of which one must come sooner or later, so it may as well now: the fewest. Empty when none is known."""
        context = self.context
        if context.in_order:
            return []
        hopes = self._hopes(state.alive, context.settled(state.alive, state.seen))
        fewest: list[NameClass] = []
        for part, holds in forced(context.formulas[0], hopes.__getitem__):
            number = context.index[part]
            names = context.needed(number, state.seen)
            if holds and names:
                return [context.keys.named[(names & -names).bit_length() - 1]]
            if not holds and not names and state.count >= part.least:
                breaking = [o for o in self._breaking(number) if not context.keys.bit(o) & state.seen]
                if breaking and (not fewest or len(breaking) < len(fewest)):
                    fewest = breaking
        return fewest

    def _wanted(self, state: ObjectState, formula: Formula) -> int | None:
        """Few names with which a formula seems to come true; None where it seems that it cannot."""
        context = self.context
        if isinstance(formula, bool):
            return 0 if formula else None
        if isinstance(formula, And | Or | ExactlyOne):
            names = [self._wanted(state, part) for part in formula.parts]
            if isinstance(formula, And):
                return None if None in names else reduce(or_, names, 0)
            return min((n for n in names if n is not None), key=lambda n: (n.bit_count(), n), default=None)
        if isinstance(formula, ObjectPart):
            number = context.index[formula]
            return context.needed(number, state.seen) if state.alive >> number & 1 else None
        part = formula.part
        if isinstance(part, ExactlyOne) or not state.alive >> context.index[part] & 1:
            return 0
        number = context.index[part]
        if context.needed(number, state.seen):
            return 0
        breaking = [bit for o in self._breaking(number) if (bit := context.keys.bit(o)) and not bit & state.seen]
        return None if context.cannot_fail(number, state.seen) else breaking[0] if breaking else 0

    def _breaking(self, number: int) -> list[NameClass]:
        """The names that a part can fail by; empty when it can by others, too."""
        found = self._breaks.get(number)
        if found is None:
            context = self.context
            part, keys = context.parts[number], context.keys
            outcomes = [
                *(outcome for outcome in keys.named if keys.can_be_spelled(outcome.number or 0)),
                *(keys.other(kind) for kind in keys.kinds),
            ]
            found = [outcome for outcome in outcomes if keys.goal(part, outcome) is not True]
            found = self._breaks[number] = [] if part.most is not None or part.requires else found
        return found

    def steps(self, state: ObjectState, outcome: NameClass) -> Iterator[ObjectState]:
        """What a state may become by a member with this name, as its value may be."""
        if self._is_too_much():
            return
        bit = self.context.keys.bit(outcome)
        certain, open_goals = self._at(state, outcome)
        together = joint_truths(self.context.world, tuple(goal for goal, _ in open_goals))
        for truths in together.some():
            alive = certain + sum(parts for (_, parts), truth in zip(open_goals, truths, strict=True) if truth)
            if not self._is_hopeless(alive, state.seen | bit) and together.possible(truths):
                yield state.with_member(outcome, alive)

    def leads_on(self, state: ObjectState, outcome: NameClass) -> bool:
        """Whether a member with this name may come."""
        return any(self.can_end_after(state, step) for step in self.steps(state, outcome))

    def _is_too_much(self) -> bool:
        if len(self.context.parts) <= MAX_PARTS:
            return False
        way_out = '; additional_properties "schema" asks less' if self.context.world.closes else ""
        reason = f"an object is asked more than {MAX_PARTS} things together{way_out}"
        self.context.world.refused.append(GrammarError(reason))
        return True

    def _under(self, outcome: NameClass) -> _Goals:
        """What is asked of the value under a name: the parts that hold whatever it is, and each goal's parts."""
        found = self._goals.get(outcome)
        if found is None:
            certain, asked = 0, dict[Formula, int]()
            for number, goal in enumerate(self.context.goals(self.context.everything, outcome)):
                if goal is True:
                    certain |= 1 << number
                elif goal is not False:
                    asked[goal] = asked.get(goal, 0) | 1 << number
            found = self._goals[outcome] = certain, tuple(asked.items())
        return found

    def _at(self, state: ObjectState, outcome: NameClass) -> _Goals:
        """The same of the parts that may still hold when the name has come."""
        alive = state.alive_after(outcome, self.context.keys.bit(outcome))
        certain, asked = self._under(outcome)
        return certain & alive, tuple((goal, parts & alive) for goal, parts in asked if parts & alive)

    def _is_hopeless(self, alive: int, seen: int) -> bool:
        """Whether nothing that may come makes what is asked for true."""
        context = self.context
        settled = context.settled(alive, seen)
        found = self._hopeless.get((alive, settled))
        if found is None:
            found = evaluate(context.formulas[0], self._hopes(alive, settled).__getitem__) is False
            self._hopeless[alive, settled] = found
        return found

    def _hopes(self, alive: int, settled: int) -> dict[ObjectPart, bool | None]:
        return {
            part: True if settled >> number & 1 else None if alive >> number & 1 else False
            for number, part in enumerate(self.context.parts)
        }

    def value(self, state: ObjectState, outcome: NameClass) -> ValueGoal:
        """Of the value of a member with this name."""
        context = self.context
        bit = context.keys.bit(outcome)
        certain, open_goals = self._at(state, outcome)
        together = joint_truths(context.world, tuple(goal for goal, _ in open_goals))
        goals = context.goals(state.alive_after(outcome, bit), outcome)
        need = context.need(goals, outcome, state.seen)
        if together.open is None:
            return ValueGoal(need, together.goals, None)
        marks = tuple(goal if isinstance(goal, bool) else (goal,) for goal in goals)
        marked = context.need(marks, outcome, state.seen)
        good: set[Truths] = set()
        bad: set[Truths] = set()
        for truths in (*together.known, *together.open):
            known = dict(zip(together.goals, truths, strict=True))
            if evaluate(marked, lambda mark: known[mark[0]]):  # noqa: B023
                alive = certain + sum(parts for (_, parts), truth in zip(open_goals, truths, strict=True) if truth)
                fits = not self._is_hopeless(alive, state.seen | bit)
                fits = fits and self.can_end_after(state, state.with_member(outcome, alive))
                (good if fits else bad).add(truths)
        need = conj([need, restricted(together.goals, good, bad)])
        return ValueGoal(need, together.goals, next(iter(good)) if len(good) == 1 else None)
