"""States of objects and arrays that must be unlike earlier items, where items of an array must differ.

A state keeps what is left of each earlier item that the text equals so far: the members or items still to come. So only
the last choice that would repeat an item is refused, and earlier ones only if no other choice is left behind them.
Structures that can always be continued need no such states: the frame that compares the whole item is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...automaton.actions import QUOTE
from ...automaton.automaton import Automaton, ControlState, Counting, Frame, Limited, TransitionRow
from ..array_states import CLOSE_ARRAY, ArrayState, ItemGoal, repeats_item
from ..formula import conj, neg
from ..interface import ONE_SPACE, SchemaCompiler
from ..objects.name_states import NameClass
from ..objects.object_context import MemberGoal
from ..objects.object_states import CLOSE_OBJECT, COLON, COMMA, SOME_NAME, MemberStart, ObjectState
from ..structure_parts import ArrayPart
from ..value_states import SPACES, ValueStart, result_codes
from .finite_values import Canonical, canonical, value_of

Members = frozenset[tuple[str, Canonical]]  # of an earlier object, those that have not come
MAX_KNOWN = 1 << 14
Items = tuple[Canonical, ...]  # of an earlier array, those that have not come


def unlike_start(state: ObjectState | ArrayState, forms: Iterable[Canonical]) -> ControlState | None:
    """Return the state after an opening bracket where the value must be unlike others; None if there is no such value.

    Raises ValueError if the truths of too many goals matter to tell.
    """
    contents = [content for kind, content in forms if kind == "structure"]
    if isinstance(state, ObjectState):
        members: frozenset[Members] = frozenset(content for content in contents if isinstance(content, frozenset))
        if not members or _object_goes_on(state):
            return state
        if not state.search.context.plain:
            raise ValueError
        return UnlikeObject(state, members) if _object_can_differ(state, members) else None
    items: frozenset[Items] = frozenset(content for content in contents if isinstance(content, tuple))
    if not items or _array_goes_on(state):
        return state
    if not state.context.plain:
        raise ValueError
    return UnlikeArray(state, items) if _array_can_differ(state, items) else None


def _object_goes_on(state: ObjectState) -> bool:
    """Return True if one more member may always come, so that no beginning of the object is a dead end."""
    context = state.search.context
    if (
        not context.plain
        or context.exact
        or len(context.parts) > 1
        or any(part.most is not None for part in context.parts)
    ):
        return False
    names = context.names
    return any(
        all(context.compiler.satisfiable(names.goal(part, names.other(kind))) for part in context.parts)
        and not names.may_run_out(frozenset([kind]))
        for kind in names.kinds
    )


def _array_goes_on(state: ArrayState) -> bool:
    """Return True if one more item may always come, so that no beginning of the array is a dead end."""
    context = state.context
    if not context.simple:
        return False
    return all(
        part.most is None and all(context.compiler.satisfiable(part.goal(n)) for n in range(part.num_item_goals))
        for part in context.parts
        if isinstance(part, ArrayPart)
    )


def _holds(compiler: SchemaCompiler, goal: Any, form: Canonical) -> bool:
    """Return True if a value satisfies a goal."""
    if isinstance(goal, bool):
        return goal
    key = ("holds", goal, form)
    if key not in compiler.cache:
        compiler.cache[key] = compiler.satisfiable(conj([goal, compiler.goal_of({"enum": [value_of(form)]})]))
    return compiler.cache[key]  # type: ignore[no-any-return]


# Objects.


def _under(members: frozenset[Members], key: str) -> dict[Canonical, frozenset[Members]]:
    """Return the values under a name, with what is left of the objects that have each of them."""
    found: dict[Canonical, set[Members]] = {}
    for rest in members:
        for member in rest:
            if member[0] == key:
                found.setdefault(member[1], set()).add(rest - {member})
    return {value: frozenset(rests) for value, rests in found.items()}


def _object_can_differ(state: ObjectState, members: frozenset[Members]) -> bool:
    """Return True if the object can end unlike each of those of which these members are left."""
    if not members or (frozenset() not in members and state.closing_result() is not None):
        return True
    known = _known(state.search.context.compiler)
    key = state.search, state.alive, state.seen, state.count, state.others, members
    if key not in known:
        known[key] = _some_member_can_come(state, members)
    return known[key]


def _known(compiler: SchemaCompiler) -> dict[Any, bool]:
    """Return what is known of objects and arrays that can differ, forgotten from time to time."""
    known: dict[Any, bool] = compiler.cache.setdefault("can differ", {})
    if len(known) > MAX_KNOWN:
        known.clear()
    return known


def _some_member_can_come(state: ObjectState, members: frozenset[Members]) -> bool:
    return any(_member_can_come(state, members, name, key) for name, key in _next_names(state, members))


def _next_names(state: ObjectState, members: frozenset[Members]) -> Iterator[tuple[NameClass, str | None]]:
    """Yield the names that may come next; None for one that neither has come nor is left of another object."""
    names = state.search.context.names
    listed, kinds = state.allowed()
    named = {name for rest in members for name, _ in rest}
    for kind in kinds:
        few = names.few(kind)
        if few is None:
            yield names.other(kind), None
            few = [name for name in named if name not in names.names and names.kind_of(name) == kind]
        for name in sorted(few, key=lambda name: name in named):
            if name not in state.others:
                yield names.other(kind), name
    for number, name in enumerate(names.names):
        if listed >> number & 1:
            yield names.named[number], name


def _member_goal(state: ObjectState, name: NameClass) -> MemberGoal:
    context = state.search.context
    return context.member(state.alive_after(name, context.names.bit(name)), name, state.seen)


def _member_can_come(state: ObjectState, members: frozenset[Members], name: NameClass, key: str | None) -> bool:
    """Return True if the object can end unlike the others after a member with this name."""
    found = _under(members, key) if key is not None else {}
    member, compiler = _member_goal(state, name), state.search.context.compiler
    if compiler.satisfiable_unlike(member.need, frozenset(found)):
        return True
    if key is not None and not state.search.context.names.bit(name):
        state = replace(state, others=state.others | {key})
    return any(_member_can_repeat(state, name, member, value, rests) for value, rests in found.items())


def _member_can_repeat(
    state: ObjectState, name: NameClass, member: MemberGoal, value: Canonical, rests: frozenset[Members]
) -> bool:
    """Return True if the object can end unlike the others after a member with this value."""
    compiler = state.search.context.compiler
    if not _holds(compiler, member.need, value):
        return False
    following = state.after(name, member, tuple(_holds(compiler, goal, value) for goal in member.tracked))
    return following is not None and _object_can_differ(following, rests)


@dataclass(frozen=True)
class UnlikeObject(Counting):
    """An `ObjectState` in an object that equals others so far, of which these `members` are left."""

    state: ObjectState
    members: frozenset[Members]

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.state.limit

    def at_limit(self) -> UnlikeObject | None:
        following = self.state.at_limit()
        return None if following is None else UnlikeObject(following, self.members)

    def expand(self, automaton: Automaton) -> TransitionRow:
        state, members = self.state, self.members
        context = state.search.context
        compiler, names = context.compiler, context.names
        edges: dict[int, int] = {}
        if state.spaces == ONE_SPACE:
            return TransitionRow({0x20: automaton.goto(UnlikeObject(state.after_comma(0), members))})
        result = state.closing_result() if state.phase != "comma" and frozenset() not in members else None
        if result is not None:
            edges[CLOSE_OBJECT] = automaton.pop(result)
        listed, dead = 0, set[str]()
        for name, key in _next_names(state, members):
            bit = names.bit(name)
            if key is not None and not _member_can_come(state, members, name, key):
                dead.add(key)
            else:
                listed |= bit
        used = frozenset(state.others - {SOME_NAME} | {name for name in dead if name not in names.names})
        start = names.start(automaton, listed, state.allowed()[1], used)
        if start is not None and state.phase == "after":
            edges[COMMA] = automaton.goto(UnlikeObject(state.after_comma(compiler.spaces), members))
        elif start is not None:
            edges[QUOTE] = automaton.push(start, UnlikeName(state, members))
        if state.spaces == 1:
            edges[0x20] = automaton.goto(UnlikeObject(state.after_comma(0), members))
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if compiler.spaces == 2 else 0)


@dataclass(frozen=True)
class UnlikeName(Frame):
    """Stack frame below a name of such an object."""

    state: ObjectState
    members: frozenset[Members]
    guarded = True

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return self.state.search.context.names.num_classes

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.state.limit

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        state, context = self.state, self.state.search.context
        name, key = context.names.classes[result], json.loads(b'"' + text)
        bit = context.names.bit(name)
        if bit & state.seen or (not bit and key in state.others):
            return None
        others = state.others if bit else state.others | {key}
        state = ObjectState(state.search, state.alive, state.seen, state.count, others)
        found = _under(self.members, key)
        if not found:
            return MemberStart(_forgetting(state), name)
        return UnlikeMember(state, name, key, self.members)


def _forgetting(state: ObjectState) -> ObjectState:
    """Return the state without the names that only states of objects unlike others remember."""
    if state.search.context.remembers_names or not state.others:
        return state
    return replace(state, others=state.others & {SOME_NAME})


@dataclass(frozen=True)
class UnlikeMember(Limited):
    """State between a name of such an object and its colon."""

    state: ObjectState
    name: NameClass
    key: str
    members: frozenset[Members]

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.state.limit

    def expand(self, automaton: Automaton) -> TransitionRow:
        compiler, member = self.state.search.context.compiler, _member_goal(self.state, self.name)
        found = _under(self.members, self.key)
        refused = [
            value
            for value, rests in found.items()
            if not _member_can_repeat(self.state, self.name, member, value, rests)
        ]
        start = unlike_value(compiler, member.need, member.tracked, compiler.spaces, refused)
        edges = {COLON: automaton.push(start, UnlikeMemberFrame(self, member))}
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if compiler.spaces == 2 else 0)


def unlike_value(
    compiler: SchemaCompiler, need: Any, tracked: tuple[Any, ...], spaces: int, refused: Iterable[Canonical]
) -> ValueStart:
    """Return the state before a value that satisfies a goal and is none of those refused."""
    refused = list(refused)
    return ValueStart(
        compiler,
        conj([need, neg(compiler.one_of(form for form in refused if form[0] != "structure"))]),
        tracked,
        spaces,
        frozenset(form for form in refused if form[0] == "structure"),
    )


@dataclass(frozen=True)
class UnlikeMemberFrame(Frame):
    """Stack frame below the value of a member that may equal that of another object."""

    start: UnlikeMember
    member: MemberGoal
    guarded = True

    def __hash__(self) -> int:
        return hash((UnlikeMemberFrame, self.start))

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return result_codes(self.start.state.search.context.compiler, self.member.tracked).likely

    @property
    def limit(self) -> int:  # type: ignore[override]
        ranges = self.start.state.search.context.ranges
        return ranges.limit(ranges.after(self.start.state.count))

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        start, tracked = self.start, self.member.tracked
        truths = result_codes(start.state.search.context.compiler, tracked).truths(result) if tracked else ()
        following = start.state.after(start.name, self.member, truths)
        members = _under(start.members, start.key).get(canonical(json.loads(text)), frozenset())
        if following is None or not _object_can_differ(following, members):
            return None
        return UnlikeObject(following, members) if members else _forgetting(following)


# Arrays.


def _heads(items: frozenset[Items]) -> dict[Canonical, frozenset[Items]]:
    """Return the items that come next in other arrays, with what is left of these behind each."""
    found: dict[Canonical, set[Items]] = {}
    for rest in items:
        if rest:
            found.setdefault(rest[0], set()).add(rest[1:])
    return {value: frozenset(rests) for value, rests in found.items()}


def _array_can_differ(state: ArrayState, items: frozenset[Items]) -> bool:
    """Return True if the array can end unlike each of those of which these items are left."""
    if not items or (() not in items and state.closing_result() is not None):
        return True
    known, key = _known(state.context.compiler), (replace(state, phase="after"), items)
    if key not in known:
        known[key] = _some_item_can_come(state, items)
    return known[key]


def _some_item_can_come(state: ArrayState, items: frozenset[Items]) -> bool:
    item, heads = state.item(), _heads(items)
    if item is None:
        return False
    if state.context.compiler.satisfiable_unlike(item.need, item.unlike | frozenset(heads)):
        return True
    return any(_item_can_repeat(state, item, value, rests) for value, rests in heads.items())


def _item_can_repeat(state: ArrayState, item: ItemGoal, value: Canonical, rests: frozenset[Items]) -> bool:
    """Return True if the array can end unlike the others after this item."""
    compiler = state.context.compiler
    if value in item.unlike or not _holds(compiler, item.need, value):
        return False
    following = state.after(item, tuple(_holds(compiler, goal, value) for goal in item.tracked), value)
    return following is not None and _array_can_differ(following, rests)


@dataclass(frozen=True)
class UnlikeArray(Counting):
    """An `ArrayState` in an array that equals others so far, of which these `items` are left."""

    state: ArrayState
    items: frozenset[Items]

    @property
    def limit(self) -> int:  # type: ignore[override]
        return self.state.limit

    def at_limit(self) -> UnlikeArray | None:
        following = self.state.at_limit()
        return None if following is None else UnlikeArray(following, self.items)

    def expand(self, automaton: Automaton) -> TransitionRow:
        state, compiler = self.state, self.state.context.compiler
        edges: dict[int, int] = {}
        item, heads = state.item(), _heads(self.items)
        if item is not None:
            refused = [value for value, rests in heads.items() if not _item_can_repeat(state, item, value, rests)]
            spaces = compiler.spaces if state.phase == "after" else 0
            if compiler.satisfiable_unlike(item.need, item.unlike | frozenset(refused)):
                start = unlike_value(compiler, item.need, item.tracked, spaces, {*item.unlike, *refused})
                frame = UnlikeItemFrame(self, item)
                if state.phase == "after":
                    edges[COMMA] = automaton.push(start, frame)
                else:
                    code = automaton.push_before(start, frame)
                    edges = dict.fromkeys(automaton.edges_of(automaton.number(start)), code)
        if () not in self.items and (result := state.closing_result()) is not None:
            edges[CLOSE_ARRAY] = automaton.pop(result)
        return TransitionRow(edges, rest=automaton.stay_on(SPACES) if compiler.spaces == 2 else 0)


@dataclass(frozen=True)
class UnlikeItemFrame(Frame):
    """Stack frame below an item of such an array."""

    array: UnlikeArray
    item: ItemGoal
    guarded = True

    def __hash__(self) -> int:
        return hash((UnlikeItemFrame, self.array))

    @property
    def num_results(self) -> int:  # type: ignore[override]
        return result_codes(self.array.state.context.compiler, self.item.tracked).likely

    @property
    def limit(self) -> int:  # type: ignore[override]
        ranges = self.array.state.context.ranges
        return ranges.limit(ranges.after(self.array.state.index))

    def repeats(self, result: int, text: bytes, before: bytes) -> bool:
        return self.array.state.context.forgets and repeats_item(text, before)

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        state, tracked = self.array.state, self.item.tracked
        truths = result_codes(state.context.compiler, tracked).truths(result) if tracked else ()
        value = canonical(json.loads(text))
        following, items = state.after(self.item, truths, value), _heads(self.array.items).get(value, frozenset())
        if following is None or not _array_can_differ(following, items):
            return None
        return UnlikeArray(following, items) if items else following
