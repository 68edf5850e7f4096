"""Search for the end of an object that has begun, from one of its members to the next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Protocol

from ...budget import INTERPRETED, charge
from ..end_search import NEVER, EndSearch, ValueGoal
from ..formula import And, ExactlyOne, Formula, Or, Truths, atoms, conj, evaluate, implied, size_of
from ..joint_truths import joint_truths, restricted
from ..name_states import NameClass, NameKind
from ..object_context import ObjectContext
from ..structure_parts import ObjectPart

MAX_PARTS = 96  # of an object whose end is searched for: the work grows with the fourth power of their number


class ObjectMembers(Protocol):
    """State of an object: what its members so far have decided."""

    @property
    def alive(self) -> int:
        """The parts that may still hold."""

    @property
    def seen(self) -> int:
        """The listed names that have come."""

    @property
    def count(self) -> int:
        """The number of members, as far as it matters."""

    @property
    def others(self) -> frozenset[str]:
        """The names that are not listed and have come, as far as they matter."""

    def closing_result(self) -> int | None:
        """Return the result code if the object may end here, else None."""

    def holds(self, number: int, names: int = -1) -> bool:
        """Return True if a part holds now and needs none of these names."""

    def candidates(self, wanted: int = 0) -> Iterator[NameClass]:
        """Yield the names that the order allows next, first those in `wanted`."""

    def alive_after(self, name: NameClass, bit: int, alive: int | None = None) -> int:
        """Return the parts that may hold if this name comes now, whatever its value.

        `alive`: those of these parts; where members come in order, none may require a name that has been passed over.
        """

    def with_member(self, name: NameClass, alive: int) -> ObjectMembers:
        """Return the state after a member with this name, `alive` being the parts that may still hold."""

    def with_count(self, count: int) -> ObjectMembers:
        """Return the same state at another number of members."""


class ObjectEndSearch(EndSearch[ObjectMembers]):
    """Searches from the states of one object. Steps use up names.

    What is still needed (required names, those that they bring with them, a number of members, parts that must fail)
    depends on the set of members that come and on the truths of their goals, not on their order. Members that must come
    at some time are tried first, and then only those.
    """

    def __init__(self, context: ObjectContext, formula: Formula | None = None, names: int = -1) -> None:
        """Search for members that make `formula` true (None: the context's first), among these listed names."""
        super().__init__(context.compiler, context.parts)
        self.context, self.names = context, names
        self.formula = context.formulas[0] if formula is None else formula
        self.parts = context.bits_of(atoms(self.formula))
        self.num_together = self.parts.bit_count()  # parts that are searched together
        self._implied: dict[tuple[int, int], dict[ObjectPart, bool] | None] = {}
        self._must_fail: dict[tuple[int, int, int], bool] = {}

    def next_names(self, state: ObjectMembers) -> tuple[int, frozenset[NameKind]] | None:
        """Return the listed names, and the kinds of other names, that may come next; None if that is not known."""
        return None

    def holds(self, state: ObjectMembers) -> bool:
        """Return True if the formula holds and needs none of the names."""
        return bool(evaluate(self.formula, lambda part: state.holds(self.context.index[part], self.names)))

    def must_fail(self, alive: int, seen: int) -> bool:
        """Return True if no further members can make the formula true."""
        if self._implied_truths(alive, seen) is None:
            return True
        alive &= self.parts
        complete = sum(self._complete(tied & alive, seen) for tied in self.context.tied)
        if not complete:
            return False
        settled = self.context.settled(alive, seen)
        key = alive, settled, complete
        found = self._must_fail.get(key)
        if found is None:
            found = self._must_fail[key] = any(
                (tied & complete).bit_count() > 1
                and not self._may_hold(alive, settled | tied & complete)
                and not self._may_hold(alive & ~tied, settled & ~tied)
                for tied in self.context.tied
            )
        return found

    def _implied_truths(self, alive: int, seen: int) -> dict[ObjectPart, bool] | None:
        """Return the truths that parts must have for the formula to become true; None if it cannot."""
        key = alive & self.parts, self.context.settled(alive & self.parts, seen)
        if key not in self._implied:
            charge(INTERPRETED * size_of(self.formula))
            self._implied[key] = implied(self.formula, self.context.truth(*key))
        return self._implied[key]

    def _complete(self, parts: int, seen: int) -> int:
        """Return those of some parts that need no further names."""
        complete = 0
        while parts:
            bit = parts & -parts
            parts ^= bit
            if not self.context.needed(bit.bit_length() - 1, seen):
                complete |= bit
        return complete

    def _may_hold(self, alive: int, settled: int) -> bool:
        """Return False if the formula is false whatever becomes of the alive parts that are not settled."""
        return evaluate(self.formula, self.context.truth(alive, settled)) is not False

    def _candidates(self, state: ObjectMembers, wanted: int) -> Iterable[NameClass]:
        """Return the names that may come next, first those in `wanted`."""
        return state.candidates(wanted)

    def _key(self, state: ObjectMembers) -> Hashable:
        return state.alive, state.seen, state.count, bool(state.others) and self.context.in_order

    def _used(self, state: ObjectMembers, step: ObjectMembers) -> int:
        return step.seen & ~state.seen

    def can_end_after(self, state: ObjectMembers, step: ObjectMembers) -> bool:
        """Return True if `step`, which is `state` after one more member, can end."""
        if self._needs_only_names(step):
            return True
        used = self._paths.get(self._key(state))
        remains = used is not None and used != NEVER and not used & self._used(state, step)
        if used is not None and remains and self._is_neutral(state, step):
            self._paths.setdefault(self._key(step), used)
        return self.can_end(step)

    def _needs_only_names(self, state: ObjectMembers) -> bool:
        """Return True if an object of one part can surely end with the names that it needs."""
        context, part = self.context, self.formula
        if not isinstance(part, ObjectPart) or self.names != -1:
            return False
        number, names = context.index[part], context.names
        needed = context.needed(number, state.seen)
        first = 0
        if context.in_order:
            first = names.num_mentioned if state.others else state.seen.bit_length()
        if not state.alive >> number & 1 or state.count < part.least or part.most is not None:
            return False
        if needed & ~context.satisfiable[number] or needed & (1 << first) - 1:
            return False
        while needed and names.can_be_spelled(needed.bit_length() - 1):
            needed ^= 1 << needed.bit_length() - 1
        return not needed

    def _is_neutral(self, state: ObjectMembers, step: ObjectMembers) -> bool:
        """Return True if a step does not change what is still needed."""
        context = self.context
        return (
            state.alive == step.alive
            and not (step.seen ^ state.seen) & context.relevant_names
            and (state.count == step.count or (state.count >= context.least and not context.has_most))
            and not context.in_order
        )

    def _steps(self, state: ObjectMembers) -> Iterator[ObjectMembers]:
        if self._exceeds_limit():
            return
        tried: set[Hashable] = set()
        wanted = self._inevitable_names(state)
        for name in wanted or self._candidates(state, self._cheapest_names(state, self.formula) or 0):
            kind = self.kind_of(name)
            if kind not in tried:
                tried.add(kind)
                for step in self.steps(state, name):
                    if not self._is_neutral(state, step):
                        yield step
        if not wanted:
            yield from self._behind_range(state)

    def kind_of(self, name: NameClass) -> Hashable:
        """Return what names have in common after any of which the object can end if it can after another."""
        return *self.context.open_goals(name), self.context.names.bit(name) & self.context.relevant_names

    def _behind_range(self, state: ObjectMembers) -> Iterator[ObjectMembers]:
        """Yield the state behind a long range of counts, if members that change nothing else lead there."""
        end, names = self.context.ranges.end(state.count), self.context.names
        if end is None:
            return
        for kind in names.kinds:
            for step in self.steps(state, names.other(kind)):
                if (step.alive, bool(step.others)) == (state.alive, bool(state.others)):
                    yield step.with_count(end)
                    return

    def _inevitable_names(self, state: ObjectMembers) -> list[NameClass]:
        """Return the smallest known set of names of which one must come at some time; empty if none is known."""
        context = self.context
        if context.in_order:
            return []
        fewest: list[NameClass] = []
        for part, holds in (self._implied_truths(state.alive, state.seen) or {}).items():
            number = context.index[part]
            needed = context.needed(number, state.seen) & self.names
            if holds and needed:
                return [context.names.named[(needed & -needed).bit_length() - 1]]
            if not holds and not needed and state.count >= part.least:
                names = [name for name in context.falsifying_names(number) if not context.names.bit(name) & state.seen]
                if names and (not fewest or len(names) < len(fewest)):
                    fewest = names
        return fewest

    def _cheapest_names(self, state: ObjectMembers, formula: Formula) -> int | None:
        """Return a small set of names that seems to make a formula true, or None if there seems to be none."""
        context = self.context
        if isinstance(formula, bool):
            return 0 if formula else None
        if isinstance(formula, And | Or | ExactlyOne):
            sets = [self._cheapest_names(state, part) for part in formula.parts]
            if isinstance(formula, And):
                return None if None in sets else reduce(or_, sets, 0)
            return min((n for n in sets if n is not None), key=lambda n: (n.bit_count(), n), default=None)
        if isinstance(formula, ObjectPart):
            number = context.index[formula]
            return context.needed(number, state.seen) & self.names if state.alive >> number & 1 else None
        part = formula.part
        if isinstance(part, ExactlyOne) or not state.alive >> context.index[part] & 1:
            return 0
        number = context.index[part]
        if context.needed(number, state.seen) & self.names:
            return 0
        if context.cannot_fail(number, state.seen):
            return None
        bits = map(context.names.bit, context.falsifying_names(number))
        return next((bit for bit in bits if bit and not bit & state.seen), 0)

    def steps(self, state: ObjectMembers, name: NameClass) -> Iterator[ObjectMembers]:
        """Yield the states after a member with this name, for the values that are possible."""
        if self._exceeds_limit():
            return
        context = self.context
        seen = state.seen | context.names.bit(name)
        certain, open_goals = self._open_goals(state, name)
        joint = joint_truths(context.compiler, tuple(goal for goal, _ in open_goals))
        for truths in joint.candidates():
            alive = certain + sum(parts for (_, parts), truth in zip(open_goals, truths, strict=True) if truth)
            if not self.must_fail(alive, seen) and joint.possible(truths):
                yield state.with_member(name, alive)

    def may_come(self, state: ObjectMembers, name: NameClass) -> bool:
        """Return True if the object can end after a member with this name."""
        return any(self.can_end_after(state, step) for step in self.steps(state, name))

    def _exceeds_limit(self) -> bool:
        context = self.context
        if self.num_together <= MAX_PARTS:
            return False
        hint = '; with additional_properties "schema" there are fewer' if context.compiler.closes_objects else ""
        self._refuse(f"more than {MAX_PARTS} constraints apply to one object together{hint}")
        return True

    def _open_goals(self, state: ObjectMembers, name: NameClass) -> tuple[int, tuple[tuple[Formula, int], ...]]:
        """Return `ObjectContext.open_goals`, for the parts that may still hold when the name has come."""
        alive = state.alive_after(name, self.context.names.bit(name))
        return self.context.alive_goals(alive, name)

    def value(self, state: ObjectMembers, name: NameClass) -> ValueGoal:
        """Return the goal of the value of a member with this name."""
        context = self.context
        bit = context.names.bit(name)
        certain, open_goals = self._open_goals(state, name)
        joint = joint_truths(context.compiler, tuple(goal for goal, _ in open_goals))
        need = context.need(certain, open_goals, name, state.seen, self.formula)
        if joint.unchecked is None:
            return ValueGoal(need, joint.goals, None)
        # The same as `need`, over marks instead of goals, so that truths of goals can be put in.
        marked = context.need(certain, open_goals, name, state.seen, self.formula, marked=True)
        good: set[Truths] = set()
        bad: set[Truths] = set()
        for truths in (*joint.known, *joint.unchecked):
            known = dict(zip(joint.goals, truths, strict=True))
            if evaluate(marked, lambda mark: known[mark[0]]):  # noqa: B023
                alive = certain + sum(parts for (_, parts), truth in zip(open_goals, truths, strict=True) if truth)
                fits = not self.must_fail(alive, state.seen | bit)
                fits = fits and self.can_end_after(state, state.with_member(name, alive))
                (good if fits else bad).add(truths)
        need = conj([need, restricted(joint.goals, good, bad)])
        return ValueGoal(need, joint.goals, next(iter(good)) if len(good) == 1 else None)
