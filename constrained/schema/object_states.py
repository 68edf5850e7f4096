"""The states of an object's text: which names have come, and which of the parts that ask something of it still hold.

A state is a value: the context (what is asked), and for each part whether it may still hold, the names seen, how many.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..automaton.automaton import Automaton, ControlState, Frame, TransitionRow
from ..automaton.duplicate_names import used_names
from .formula import Formula, evaluate
from .name_states import MatchedTests, NameClass
from .object_context import MemberGoal, ObjectContext
from .string_states import QUOTE
from .value_states import SPACES, ValueStart, result_codes

CLOSE, COMMA, COLON = 0x7D, 0x2C, 0x3A
ANOTHER = "\udc00"  # among the other names: that there has been one, where the order matters; no name is half a pair


@dataclass(frozen=True)
class ObjectState:
    """After `{` ("open"), after a member ("after"), or after a comma, with `spaces` as in ValueStart ("comma").

    `alive`: the parts that may still hold. `seen`: the names that have come, of those that the schema mentions.
    `count`: members, as far as it matters. `others`: the names that it does not mention, where it matters.
    """

    context: ObjectContext
    alive: int
    seen: int = 0
    count: int = 0
    others: frozenset[str] = frozenset()
    phase: Literal["open", "after", "comma"] = "open"
    spaces: int = 0

    def expand(self, automaton: Automaton) -> TransitionRow:
        context, world = self.context, self.context.world
        edges: dict[int, int] = {}
        if self.phase != "comma" and (result := self.closing_result()) is not None:
            edges[CLOSE] = automaton.pop(result)
        start = self._key_start(automaton)
        if start is not None:
            if self.phase == "after":
                edges[COMMA] = automaton.goto(self._moved("comma", world.spaces))
            else:
                once = self.phase != "open" and not self.counts_names and context.has_others
                frame = NameFrame(context, self.alive, self.seen, self.count, self.others, once)
                edges[QUOTE] = automaton.push(start, frame)
        if self.spaces == 1:
            edges[0x20] = automaton.goto(self._moved("comma", 0))
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if world.spaces == 2 else 0)

    def __hash__(self) -> int:
        return hash((id(self.context), self.alive, self.seen, self.count, self.others, self.phase))

    def _moved(self, phase: Literal["comma"], spaces: int) -> ObjectState:
        return ObjectState(self.context, self.alive, self.seen, self.count, self.others, phase, spaces)

    def closing_result(self) -> int | None:
        """None when the object may not end here."""
        context = self.context
        if not context.parts:
            truths = [formula is True for formula in context.formulas]
        else:
            holds = {part: self._holds(number) for number, part in enumerate(context.parts)}
            truths = [bool(evaluate(formula, holds.__getitem__)) for formula in context.formulas]
        if not truths[0]:
            return None
        result = context.result(tuple(truths[1:]))
        return result if result >= 0 else None

    def _holds(self, number: int) -> bool:
        context = self.context
        if not self.alive >> number & 1 or self.count < context.parts[number].least:
            return False
        return not context.needed(number, self.seen)

    def _key_start(self, automaton: Automaton) -> int | None:
        context = self.context
        keys = context.keys
        if context.steady and not context.in_order and keys.is_everything(context.possible[1]):
            # A name may go on anywhere, so one set of states serves, and frames refuse the names that have come.
            return keys.start(automaton, *context.possible)
        used = self.others - {ANOTHER} if context.in_order else self.others
        return keys.start(automaton, *self._allowed(), used if self.counts_names else frozenset())

    @property
    def counts_names(self) -> bool:
        """Where it will matter how many different names there are, or whether a member is written over."""
        return self.context.counts_names(self.count, bool(self.others))

    def candidates(self, wanted: int = 0) -> Iterator[NameClass]:
        """The names that may come as far as their order goes, those that are wanted first, and the kinds of others."""
        context = self.context
        keys, first = context.keys, 0
        if context.in_order:
            first = len(keys.names) if self.others else self.seen.bit_length()
            first, wanted = min(first, keys.num_mentioned), 0
        numbers = [number for number in range(first, len(keys.names)) if not self.seen >> number & 1]
        if wanted:
            numbers.sort(key=lambda number: not wanted >> number & 1)
        for number in numbers:
            if keys.can_be_spelled(number):
                yield keys.named[number]
        for kind in keys.kinds:
            yield keys.other(kind)

    def _allowed(self) -> tuple[int, frozenset[MatchedTests]]:
        """Which names may come, and which kinds of other names."""
        context = self.context
        keys = context.keys
        if context.steady:
            names, kinds = context.possible
            if not context.in_order:
                return names & ~self.seen, kinds
        names, others = 0, set[MatchedTests]()
        for outcome in self.candidates():
            bit = keys.bit(outcome)
            if self._leads_on(outcome, bit):
                names |= bit
                if not bit:
                    others.add(outcome.matched)
                elif context.in_order and all(context.required[number] & bit for number in self._living()):
                    break
        return names, frozenset(others)

    def _living(self) -> list[int]:
        return [number for number in range(len(self.context.parts)) if self.alive >> number & 1]

    def _leads_on(self, outcome: NameClass, bit: int) -> bool:
        if not self.context.plain:
            return self.context.completion.leads_on(self, outcome)
        alive = self.alive_after(outcome, bit)
        member = self.context.member(alive, outcome, self.seen)
        if not member.possible:
            return False
        if self.context.simple:
            return True
        return self.after(outcome, member, None) is not None

    def alive_after(self, outcome: NameClass, bit: int) -> int:
        """The parts that may hold when this name comes now, whatever its value."""
        context, alive = self.context, self.alive
        if context.steady:
            return alive
        for number, part in enumerate(context.parts):
            if alive >> number & 1:
                seen = self.seen | bit
                needed = context.needed(number, seen)
                if (part.most is not None and self.count + 1 + needed.bit_count() > part.most) or (
                    (context.requires[number] or not context.plain) and needed and not self._can_come(number, needed)
                ):
                    alive &= ~(1 << number)
        return alive

    def _can_come(self, number: int, names: int) -> bool:
        context = self.context
        keys, part, world = context.keys, context.parts[number], context.world
        names &= ~context.satisfiable[number]
        while names:
            bit = names & -names
            names ^= bit
            if not world.satisfiable(keys.goal(part, keys.named[bit.bit_length() - 1])):
                return False
            if world.is_settled:
                context.satisfiable[number] |= bit
        return True

    def after(self, outcome: NameClass, member: MemberGoal, truths: tuple[bool, ...] | None) -> ObjectState | None:
        """After a member whose value has these truths of what is tracked (None: as good as can be)."""
        context = self.context
        known: Mapping[Formula, bool] = member.known
        if truths is None:
            known = {**dict.fromkeys(member.tracked, True), **known}
        elif truths:
            known = {**known, **dict(zip(member.tracked, truths, strict=True))}
        alive = 0
        for number, goal in enumerate(member.goals):
            if goal is True or (goal is not False and known.get(goal, False)):
                alive |= 1 << number
        state = self.with_member(outcome, alive)
        if not context.plain:
            return state if context.completion.can_end_after(self, state) else None
        return state if context.simple or state.is_possible(truths is not None) else None

    def with_member(self, outcome: NameClass, alive: int) -> ObjectState:
        """After a member after which these parts may hold."""
        context = self.context
        bit = context.keys.bit(outcome)
        others = self.others
        if context.in_order and not bit & ((1 << context.keys.num_mentioned) - 1):
            others |= {ANOTHER}
        return ObjectState(context, alive, self.seen | bit, min(self.count + 1, context.num_counted), others, "after")

    def is_possible(self, closely: bool) -> bool:
        """Whether it may end well: False only when it cannot."""
        context = self.context
        if not context.plain:
            return context.completion.can_end(self)
        hopes = {part: None if self.alive >> n & 1 else False for n, part in enumerate(context.parts)}
        if context.exact and closely:
            for number, part in enumerate(context.parts):
                if hopes[part] is None and context.cannot_fail(number, self.seen):
                    hopes[part] = True
        if evaluate(context.formulas[0], hopes.__getitem__) is False:
            return False
        if not closely or self.closing_result() is not None:
            return True
        names, kinds = self._allowed()
        return bool(names or kinds)


@dataclass(frozen=True)
class NameFrame(Frame):
    """Below a name."""

    context: ObjectContext
    alive: int
    seen: int
    count: int
    others: frozenset[str]
    once: bool  # other names are compared with the object's text, since nothing else keeps them

    def __hash__(self) -> int:
        return hash((id(self.context), self.alive, self.seen, self.count, self.others, self.once))

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return self.context.keys.num_outcomes

    @property
    def guarded(self) -> bool:  # type: ignore[override]
        """Other names that have come may not come again."""
        return self.once or self.context.counts_names(self.count, bool(self.others))

    def repeats(self, result: int, text: bytes, before: bytes) -> bool:
        if not self.once or self.context.keys.bit(self.context.keys.outcomes[result]):
            return False
        if b"\\" not in text and b"\\" not in before and b'"' + text not in before:
            return False  # no spelling of it, wherever that might stand
        return json.loads(b'"' + text) in used_names(before).names

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        outcome, others = self.context.keys.outcomes[result], self.others
        if self.context.keys.bit(outcome) & self.seen:
            return None
        if text and self.context.keys.bit(outcome) == 0 and not self.once:
            name = json.loads(b'"' + text)
            if name in others:
                return None
            others |= {name}
        state = ObjectState(self.context, self.alive, self.seen, self.count, others)
        return MemberStart(state, outcome)


@dataclass(frozen=True)
class MemberStart:
    """Between a name and its colon."""

    state: ObjectState
    outcome: NameClass

    def __hash__(self) -> int:
        return hash((self.state, id(self.outcome)))

    def expand(self, automaton: Automaton) -> TransitionRow:
        state, context = self.state, self.state.context
        world = context.world
        alive = state.alive_after(self.outcome, context.keys.bit(self.outcome))
        member = context.member(alive, self.outcome, state.seen) if context.plain else self._member(alive)
        tracked = MemberFrame(state, self.outcome, member) if member.tracked else None
        then: ControlState | Frame | None = tracked or state.after(self.outcome, member, ())
        edges: dict[int, int] = {}
        if then is not None and member.possible:
            start = ValueStart(world, member.need, member.tracked, world.spaces)
            edges[COLON] = automaton.push(start, then)
        if world.spaces == 2:
            return TransitionRow(edges, rest=automaton.stay_on(SPACES))
        return TransitionRow(edges)

    def _member(self, alive: int) -> MemberGoal:
        context = self.state.context
        value = context.completion.value(self.state, self.outcome)
        goals = context.goals(alive, self.outcome)
        known: Mapping[Formula, bool] = {value.need: True}
        tracked = () if value.goals == (value.need,) else value.goals
        if value.truths is not None:
            known, tracked = dict(zip(value.goals, value.truths, strict=True)), ()
        return MemberGoal(value.need, tracked, goals, context.world.satisfiable(value.need), known)


@dataclass(frozen=True)
class MemberFrame(Frame):
    """Below a member's value of which something is tracked."""

    state: ObjectState
    outcome: NameClass
    member: MemberGoal

    def __hash__(self) -> int:
        return hash((self.state, id(self.outcome)))

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return result_codes(self.state.context.world, self.member.tracked).size

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        truths = result_codes(self.state.context.world, self.member.tracked).truths[result]
        return self.state.after(self.outcome, self.member, truths)
