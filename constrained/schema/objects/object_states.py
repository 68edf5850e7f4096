"""States of an object's text.

A state is a value: which parts may still hold, which names have come, and how many members.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ...automaton.actions import QUOTE
from ...automaton.automaton import Automaton, ControlState, Counting, Frame, Limited, TransitionRow
from ...automaton.duplicate_names import used_names
from ...record import record
from ..alternatives.object_search import ObjectEndSearch
from ..formula import Formula, Truths
from ..interface import ONE_SPACE
from ..strings.string_states import result_code
from ..structure_parts import ObjectPart
from ..value_states import SPACES, ValueStart, result_codes
from .name_states import NameClass, NameKind
from .object_context import MemberGoal

CLOSE_OBJECT, COMMA, COLON = 0x7D, 0x2C, 0x3A
# Marks in `others` that some unlisted name has come, where members come in order. A lone surrogate is no name.
SOME_NAME = "\udc00"


@record()
class ObjectState(Counting):
    """State after `{` ("open"), after a member ("after"), or after a comma ("comma"), with `spaces` as in `ValueStart`.

    `alive` are the parts that may still hold, `seen` the listed names that have come. `count` is the range of the
    number of members, and `others` are the unlisted names that have come, as far as they matter.
    """

    search: ObjectEndSearch
    alive: int
    seen: int = 0
    count: int = 0
    others: frozenset[str] = frozenset()
    phase: Literal["open", "after", "comma"] = "open"
    spaces: int = 0

    def __hash__(self) -> int:
        return hash((id(self.search), self.alive, self.seen, self.count, self.others, self.phase))

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.search.context.ranges.limit(self.count)

    def at_limit(self) -> ObjectState | None:
        """Return the state behind a long range. Ranges of one count are left member by member."""
        end = self.search.context.ranges.end(self.count)
        return None if end is None else self.with_count(end)

    def with_count(self, count: int) -> ObjectState:
        return replace(self, count=count)

    def expand(self, automaton: Automaton) -> TransitionRow:
        context = self.search.context
        if self.spaces == ONE_SPACE:
            return TransitionRow({0x20: automaton.goto(self.after_comma(0))})
        edges: dict[int, int] = {}
        if self.phase != "comma" and (result := self.closing_result()) is not None:
            edges[CLOSE_OBJECT] = automaton.pop(result)
        start = self._name_start(automaton)
        if start is not None:
            if self.phase == "after":
                edges[COMMA] = automaton.goto_filled(self.after_comma(context.compiler.spaces))
            else:
                once = self.phase != "open" and not context.remembers_names and context.has_others
                frame = NameFrame(self.search, self.alive, self.seen, self.count, self.others, once)
                edges[QUOTE] = automaton.push(start, frame)
        if self.spaces == 1:
            edges[0x20] = automaton.goto(self.after_comma(0))
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if context.compiler.spaces == 2 else 0)

    def after_comma(self, spaces: int) -> ObjectState:
        """Return the state after a comma and before so many spaces."""
        return ObjectState(self.search, self.alive, self.seen, self.count, self.others, "comma", spaces)

    def closing_result(self) -> int | None:
        """Return the result code if the object may end here, else None."""
        context = self.search.context
        if context.sole_result is not None:
            return context.sole_result if self.holds(0) else None
        index, known = context.index, dict[ObjectPart, bool]()

        def holds(part: ObjectPart) -> bool:
            if part not in known:
                known[part] = self.holds(index[part])
            return known[part]

        result = result_code(context.formulas, holds, context.result)
        return result if result >= 0 else None

    def holds(self, number: int, names: int = -1) -> bool:
        """Return True if a part holds now and needs none of these names."""
        context = self.search.context
        if not self.alive >> number & 1 or self.count < context.parts[number].least:
            return False
        return not context.needed(number, self.seen) & names

    def _name_start(self, automaton: Automaton) -> int | None:
        context = self.search.context
        names = context.names
        if context.any_name_comes:
            # Any name may continue one that has come, so all states share one start, and frames refuse repeated names.
            return names.start(automaton, *context.possible)
        used = self.others - {SOME_NAME} if context.in_order else self.others
        return names.start(automaton, *self.allowed(), used if context.remembers_names else frozenset())

    def candidates(self, wanted: int = 0) -> Iterator[NameClass]:
        """Yield the names that the order allows next: first those in `wanted`, then other listed ones, then kinds."""
        context = self.search.context
        names, first = context.names, 0
        if context.in_order:
            first = self.first_in_order
            wanted = wanted >> first << first
            wanted &= -wanted  # a later one would pass over this
        numbers = [number for number in range(first, len(names.names)) if not self.seen >> number & 1]
        if wanted:
            numbers.sort(key=lambda number: not wanted >> number & 1)
        for number in numbers:
            if names.can_be_spelled(number):
                yield names.named[number]
        for kind in names.kinds:
            yield names.other(kind)

    def allowed(self) -> tuple[int, frozenset[NameKind]]:
        """Return the listed names, and the kinds of other names, that may come next."""
        context = self.search.context
        if context.in_own_orders:
            return self._allowed_in_own_orders(), frozenset()
        if not context.in_order and (context.steady or (context.plain and not context.limited)):
            listed, kinds = context.possible if context.steady else context.possible_names(self._living(self.alive, 0))
            return listed & ~self.seen, kinds
        if (found := self.search.next_names(self)) is not None:
            return found
        listed, others, alive = 0, set[NameKind](), self.alive
        known: dict[Hashable, bool] = {}
        for name in self.candidates():
            bit = context.names.bit(name)
            requiring = context.requiring[name.number] if context.in_order and name.number is not None else 0
            kind: Hashable = name if context.plain or context.in_order else self.search.kind_of(name)
            if kind not in known:
                known[kind] = self._may_come(name, bit, alive)
            if known[kind]:
                listed |= bit
                if not bit:
                    others.add(name.matched)
                elif context.in_order and not self.alive & ~requiring:
                    break
            alive &= ~requiring  # the names after this one leave it out
        return listed, frozenset(others)

    def _allowed_in_own_orders(self) -> int:
        context, listed = self.search.context, 0
        for number, parts in context.following(self.alive, self.seen).items():
            bit = 1 << number
            living = self._living(parts, bit)
            if living and context.member(living, context.names.named[number], self.seen).possible:
                listed |= bit
        return listed

    def _may_come(self, name: NameClass, bit: int, alive: int) -> bool:
        """Return True if a name may come next. `alive`: the parts that do without the names that it passes over."""
        context = self.search.context
        if not context.plain:
            return self.search.may_come(self, name)
        if context.steady:
            return bool(bit & context.possible[0]) if bit else name.matched in context.possible[1]
        return context.member(self.alive_after(name, bit, alive), name, self.seen).possible

    def alive_after(self, name: NameClass, bit: int, alive: int | None = None) -> int:
        """Return the parts that may hold if this name comes now, whatever its value. `alive` as in `_may_come`."""
        context = self.search.context
        if context.steady:
            return self.alive
        if context.in_own_orders:
            return self._living(context.following(self.alive, self.seen).get(bit.bit_length() - 1, 0), bit)
        passed = 0
        if context.in_order:
            num_mentioned = context.names.num_mentioned
            last = min(bit.bit_length() - 1 if bit else num_mentioned, num_mentioned)
            passed = (1 << last) - 1  # no name before this one may come any more
        if alive is None:
            alive = self.alive
            for number in range(self.first_in_order, passed.bit_length()):
                alive &= ~context.requiring[number]
        return self._living(alive, bit, passed)

    def _living(self, alive: int, bit: int, passed: int = 0) -> int:
        """Return those of some parts that may hold if a listed name comes now and others have been passed over."""
        context = self.search.context
        checked = alive & (context.limited | context.unproven)
        while checked:
            part_bit = checked & -checked
            checked ^= part_bit
            number = part_bit.bit_length() - 1
            part, needed = context.parts[number], context.needed(number, self.seen | bit)
            if (
                needed & passed
                or (part.most is not None and self.count + 1 + needed.bit_count() > part.most)
                or (needed and not self._can_come(number, needed))
            ):
                alive &= ~part_bit
        return alive

    @property
    def first_in_order(self) -> int:
        """The number of the first listed name that may still come, if members come in order."""
        num_mentioned = self.search.context.names.num_mentioned
        return num_mentioned if self.others else min(self.seen.bit_length(), num_mentioned)

    def _can_come(self, number: int, listed: int) -> bool:
        """Return False if a part's goal of one of these names is unsatisfiable."""
        context = self.search.context
        names, part, compiler = context.names, context.parts[number], context.compiler
        listed &= ~context.satisfiable[number]
        while listed:
            bit = listed & -listed
            listed ^= bit
            if not compiler.satisfiable(names.goal(part, names.named[bit.bit_length() - 1])):
                return False
            if compiler.is_idle:
                context.satisfiable[number] |= bit
        if not context.required[number] & ~context.satisfiable[number]:
            context.unproven &= ~(1 << number)
        return True

    def after(self, name: NameClass, member: MemberGoal, truths: Truths) -> ObjectState | None:
        """Return the state after a member whose tracked goals have these truths."""
        context = self.search.context
        known: Mapping[Formula, bool] = member.known
        if truths:
            known = {**known, **dict(zip(member.tracked, truths, strict=True))}
        alive = member.certain + sum(parts for goal, parts in member.open_goals if known.get(goal, False))
        state = self.with_member(name, alive)
        if not context.plain:
            return state if self.search.can_end_after(self, state) else None
        return state if context.simple or state.is_possible() else None

    def with_member(self, name: NameClass, alive: int) -> ObjectState:
        """Return the state after a member with this name, `alive` being the parts that may still hold."""
        context = self.search.context
        bit = context.names.bit(name)
        others = self.others
        if context.in_order and not bit & ((1 << context.names.num_mentioned) - 1):
            others |= {SOME_NAME}
        count = context.ranges.after(self.count)
        return ObjectState(self.search, alive, self.seen | bit, count, others, "after")

    def is_possible(self) -> bool:
        """Return False only if the object cannot end."""
        context = self.search.context
        if not context.plain:
            return self.search.can_end(self)
        if not (self.alive & context.choice or context.formulas[0] is True):
            return False
        return self.closing_result() is not None or any(self.allowed())


@record()
class NameFrame(Frame):
    """Stack frame below a name. `once`: unlisted names are compared with the object's text, as no state keeps them."""

    search: ObjectEndSearch
    alive: int
    seen: int
    count: int
    others: frozenset[str]
    once: bool

    def __hash__(self) -> int:
        return hash((id(self.search), self.alive, self.seen, self.count, self.others, self.once))

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return self.search.context.names.num_classes

    @property
    def guarded(self) -> bool:  # type: ignore[override]
        """True if an unlisted name must not come again."""
        return self.once or self.search.context.remembers_names

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.search.context.ranges.limit(self.count)

    def repeats(self, result: int, text: bytes, before: bytes) -> bool:
        context = self.search.context
        if not self.once or context.names.bit(context.names.classes[result]) & context.remembered:
            return False
        if b"\\" not in text and b"\\" not in before and b'"' + text not in before:
            return False  # without escapes a name has one spelling
        return json.loads(b'"' + text) in used_names(before).names

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        names, others = self.search.context.names, self.others
        name = names.classes[result]
        bit = names.bit(name)
        if bit & self.seen:
            return None
        if text and bit == 0 and not self.once:
            unlisted = json.loads(b'"' + text)
            if unlisted in others:
                return None
            others |= {unlisted}
        return MemberStart(ObjectState(self.search, self.alive, self.seen, self.count, others), name)


@record()
class MemberStart(Limited):
    """State between a name and its colon."""

    state: ObjectState
    name: NameClass

    def __hash__(self) -> int:
        return hash((self.state, id(self.name)))

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.state.limit

    def expand(self, automaton: Automaton) -> TransitionRow:
        state, context = self.state, self.state.search.context
        compiler = context.compiler
        alive = state.alive_after(self.name, context.names.bit(self.name))
        member = context.member(alive, self.name, state.seen) if context.plain else self._member(alive)
        tracked = MemberFrame(state, self.name, member) if member.tracked else None
        then: ControlState | Frame | None = tracked or _forgetting(state.after(self.name, member, ()))
        edges: dict[int, int] = {}
        if then is not None and member.possible:
            start = ValueStart(compiler, member.need, member.tracked, compiler.spaces)
            edges[COLON] = automaton.push(start, then)
        if compiler.spaces == 2:
            return TransitionRow(edges, rest=automaton.stay_on(SPACES))
        return TransitionRow(edges)

    def _member(self, alive: int) -> MemberGoal:
        search = self.state.search
        value = search.value(self.state, self.name)
        certain, open_goals = search.context.alive_goals(alive, self.name)
        known: Mapping[Formula, bool] = {value.need: True}
        tracked = () if value.goals == (value.need,) else value.goals
        if value.truths is not None:
            known, tracked = dict(zip(value.goals, value.truths, strict=True)), ()
        return MemberGoal(
            value.need, tracked, certain, open_goals, search.context.compiler.satisfiable(value.need), known
        )


@dataclass(frozen=True)
class MemberFrame(Frame):
    """Stack frame below a member's value whose truths are tracked."""

    state: ObjectState
    name: NameClass
    member: MemberGoal

    def __hash__(self) -> int:
        return hash((self.state, id(self.name)))

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return result_codes(self.state.search.context.compiler, self.member.tracked).likely

    @property
    def limit(self) -> int:  # type: ignore[override]
        ranges = self.state.search.context.ranges
        return ranges.limit(ranges.after(self.state.count))

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        truths = result_codes(self.state.search.context.compiler, self.member.tracked).truths(result)
        return _forgetting(self.state.after(self.name, self.member, truths))


def _forgetting(state: ObjectState | None) -> ObjectState | None:
    """Return the state without the names that frames find in the text."""
    if state is None or not state.seen & ~(remembered := state.search.context.remembered):
        return state
    return ObjectState(state.search, state.alive, state.seen & remembered, state.count, state.others, state.phase)
