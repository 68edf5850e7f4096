"""Whether an object that has been begun can be ended: a state is kept only when a way to its end has been found.

What is still asked for (required names, what they bring with them, numbers of members, parts that must fail) is met or
not by which members come, in which order of no matter, with which truths of what is asked of their values. Those are
gone through depth first, what is needed before what is not, and every state on a way that was found is remembered as
one that can be ended. So a search that is given up refuses a step, and never one without which there is no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from .errors import GrammarError
from .formula import And, Formula, One, Or, conj, evaluate, forced
from .schema_keys import Outcome
from .schema_parts import ObjectPart
from .schema_together import Together, Truths, restricted, together_of

if TYPE_CHECKING:
    from .schema_objects import ObjectContext, ObjectState

MAX_STEPS = 2000  # members that a search tries
_Key = tuple[int, int, int, bool]
_Goals = tuple[int, tuple[tuple[Formula, int], ...]]
_NEVER = -1


@dataclass(frozen=True)
class Value:
    """What a member's value must satisfy so that the object can be ended; the goals whose truths say how it goes on;
    and these, where only one combination remains, so that nothing need be tracked.

    Where goals of objects or arrays are too many to be combined, it may still be that the object cannot be ended.
    """

    need: Formula
    goals: tuple[Formula, ...]
    truths: Truths | None


class Completion:
    """Of the states of one context."""

    def __init__(self, context: ObjectContext) -> None:
        self.context = context
        # Of a state, the names of a way to the end as bits; `_NEVER` when there is none.
        self._ways: dict[_Key, int] = {}
        self._asked: dict[_Key, None] = {}
        self._goals: dict[Outcome, _Goals] = {}
        self._breaks: dict[int, list[Outcome]] = {}
        self._hopeless: dict[tuple[int, int], bool] = {}
        self._relevant = 0
        for required, requires in zip(context.required, context.requires, strict=True):
            self._relevant |= required
            for names, others in requires:
                self._relevant |= names | others
        self._least = max((part.least for part in context.parts), default=0)
        self._limited = any(part.most is not None for part in context.parts)

    def can_end(self, state: ObjectState) -> bool:
        key = _key(state)
        known = self._ways.get(key)
        if known is None:
            known = self._search(state, key)
        return known != _NEVER

    def can_end_after(self, state: ObjectState, member: ObjectState) -> bool:
        """Whether the second can end, which the first becomes by one more member."""
        way = self._ways.get(_key(state))
        new = member.seen & ~state.seen
        if way is not None and way != _NEVER and not way & new and self._is_neutral(state, member):
            self._ways.setdefault(_key(member), way)
        return self.can_end(member)

    def _is_neutral(self, state: ObjectState, member: ObjectState) -> bool:
        """Whether what is asked for remains the same."""
        return (
            state.alive == member.alive
            and not (member.seen ^ state.seen) & self._relevant
            and (state.count == member.count or (state.count >= self._least and not self._limited))
            and not self.context.world.in_order
        )

    def _search(self, state: ObjectState, key: _Key) -> int:
        world = self.context.world
        if key in self._asked:
            world.num_assumed += 1  # as in `World.satisfiable`
            return _NEVER
        if state.closing_result() is not None:
            self._ways[key] = 0
            return 0
        assumed = world.num_assumed
        self._asked[key] = None
        failed: dict[_Key, None] = {}
        found = self._walk(state, failed)
        del self._asked[key]
        if found:
            return self._ways[key]
        if assumed == world.num_assumed or world.is_settled:
            self._ways |= dict.fromkeys(failed, _NEVER)
            self._ways[key] = _NEVER
        return _NEVER

    def _walk(self, start: ObjectState, failed: dict[_Key, None]) -> bool:
        """Depth first; `failed` gets the states of which all ways have been tried."""
        path = [(start, self._steps(start))]
        for _ in range(MAX_STEPS):
            state, steps = path[-1]
            step = next(steps, None)
            if step is None:
                failed[_key(state)] = None
                path.pop()
                if not path:
                    return False
                continue
            key = _key(step)
            way = self._ways.get(key)
            if way is None and key not in failed and step.closing_result() is not None:
                way = self._ways[key] = 0
            if way is not None and way != _NEVER:
                for before, _ in reversed(path):
                    way |= step.seen & ~before.seen
                    self._ways[_key(before)] = way
                    step = before
                return True
            if way is None and key not in failed and all(key != _key(before) for before, _ in path):
                path.append((step, self._steps(step)))
        self.context.world.refused.append(GrammarError("what is asked of an object together is too complex"))
        return False

    def _steps(self, state: ObjectState) -> Iterator[ObjectState]:
        """What a state may become by one more member that brings it on."""
        tried: set[tuple[object, ...]] = set()
        for outcome in self._obliged(state) or state.candidates(self._wanted(state, self.context.formulas[0]) or 0):
            alike = (*self._under(outcome), self.context.keys.bit(outcome) & self._relevant)
            if alike not in tried:
                tried.add(alike)
                for step in self.steps(state, outcome):
                    if not self._is_neutral(state, step):
                        yield step

    def _obliged(self, state: ObjectState) -> list[Outcome]:
        """Names of which one must come sooner or later, so it may as well now: the fewest. Empty when none is known."""
        context = self.context
        if context.world.in_order:
            return []
        hopes = self._hopes(state.alive, context.settled(state.alive, state.seen))
        fewest: list[Outcome] = []
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
        if isinstance(formula, And | Or | One):
            names = [self._wanted(state, part) for part in formula.parts]
            if isinstance(formula, And):
                return None if None in names else reduce(or_, names, 0)
            return min((n for n in names if n is not None), key=lambda n: (n.bit_count(), n), default=None)
        if isinstance(formula, ObjectPart):
            number = context.index[formula]
            return context.needed(number, state.seen) if state.alive >> number & 1 else None
        part = formula.part
        if isinstance(part, One) or not state.alive >> context.index[part] & 1:
            return 0
        number = context.index[part]
        if context.needed(number, state.seen):
            return 0
        breaking = [bit for o in self._breaking(number) if (bit := context.keys.bit(o)) and not bit & state.seen]
        return None if context.cannot_fail(number, state.seen) else breaking[0] if breaking else 0

    def _breaking(self, number: int) -> list[Outcome]:
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

    def steps(self, state: ObjectState, outcome: Outcome) -> Iterator[ObjectState]:
        """What a state may become by a member with this name, as its value may be."""
        bit = self.context.keys.bit(outcome)
        certain, open_goals = self._at(state, outcome)
        together = together_of(self.context.world, tuple(goal for goal, _ in open_goals))
        for truths in _some_truths(together):
            alive = certain + sum(parts for (_, parts), truth in zip(open_goals, truths, strict=True) if truth)
            if not self._is_hopeless(alive, state.seen | bit) and together.possible(truths):
                yield state.with_member(outcome, alive)

    def leads_on(self, state: ObjectState, outcome: Outcome) -> bool:
        """Whether a member with this name may come."""
        return any(self.can_end_after(state, step) for step in self.steps(state, outcome))

    def _under(self, outcome: Outcome) -> _Goals:
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

    def _at(self, state: ObjectState, outcome: Outcome) -> _Goals:
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

    def value(self, state: ObjectState, outcome: Outcome) -> Value:
        """Of the value of a member with this name."""
        context = self.context
        bit = context.keys.bit(outcome)
        certain, open_goals = self._at(state, outcome)
        together = together_of(context.world, tuple(goal for goal, _ in open_goals))
        goals = context.goals(state.alive_after(outcome, bit), outcome)
        need = context.need(goals, outcome, state.seen)
        if together.open is None:
            return Value(need, together.goals, None)
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
        return Value(need, together.goals, next(iter(good)) if len(good) == 1 else None)


def _some_truths(together: Together) -> Iterator[Truths]:
    yield from together.known
    if together.open is not None:
        yield from list(together.open)
    else:
        count = len(together.goals)
        some = [tuple(n == at for n in range(count)) for at in range(count)]
        yield from (truths for truths in [*some, (True,) * count, (False,) * count] if truths not in together.known)


def _key(state: ObjectState) -> _Key:
    return state.alive, state.seen, state.count, bool(state.others) and state.context.world.in_order
