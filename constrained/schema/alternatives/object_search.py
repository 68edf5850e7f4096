"""Search for the end of an object that has begun, from one of its members to the next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Protocol

from ...budget import INTERPRETED, charge
from ..end_search import NO_END, EndSearch, ValueGoal
from ..formula import And, ExactlyOne, Formula, Or, Truths, atoms, conj, evaluate, has_negation, implied, size_of
from ..joint_truths import MAX_COMBINED_GOALS, joint_truths, restricted
from ..objects.name_states import NameClass, NameKind
from ..objects.object_context import ObjectContext
from ..structure_parts import ObjectPart

MAX_PARTS = 96  # of an object whose end is searched for: the work grows with the fourth power of their number
MAX_PASSED = 8  # names that cannot come among those that are looked at because a number of members is needed


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
        self._implied: dict[tuple[int, int], dict[ObjectPart, bool] | None] = {}
        self._must_fail: dict[tuple[int, int, int], bool] = {}
        self._holding: dict[tuple[int, int], bool] = {}  # by alive and settled parts
        self._harmless: dict[int, int] = {}  # for alive parts, names whose members can leave all of them alive
        context.compiler.caches += [self._implied, self._must_fail, self._holding, self._harmless]
        self._is_easy = self.parts.bit_count() > MAX_PARTS and self._needs_no_search()
        self.num_together = 0 if self._is_easy else self.parts.bit_count()  # parts that are searched together

    def _needs_no_search(self) -> bool:
        """Return True if all names that may be needed can come, in any order, without making a part fail."""
        context = self.context
        if has_negation(self.formula) or context.least or context.has_most or context.in_order:
            return False
        for name in (*context.names.named, *map(context.names.other, context.names.kinds)):
            _, open_goals = context.alive_goals(self.parts, name)
            for kind in ("string", "object", "array") if len(open_goals) > MAX_COMBINED_GOALS else ():
                typed = {context.compiler.typed(goal, kind) for goal, _ in open_goals}
                if sum(not isinstance(formula, bool) for formula in typed) > MAX_COMBINED_GOALS:
                    return False  # too many to combine
        return self._left_by(context.relevant_names & self.names, self.parts) == self.parts

    def next_names(self, state: ObjectMembers) -> tuple[int, frozenset[NameKind]] | None:
        """Return the listed names, and the kinds of other names, that may come next; None if that is not known."""
        return None

    def holds(self, state: ObjectMembers) -> bool:
        """Return True if the formula holds and needs none of the names."""
        return bool(evaluate(self.formula, lambda part: state.holds(self.context.index[part], self.names)))

    def must_fail(self, alive: int, seen: int) -> bool:
        """Return True if no further members can make the formula true."""
        alive &= self.parts
        if self._is_easy:
            return not self._may_hold(alive, alive)
        if self._implied_truths(alive, seen) is None:
            return True
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
        key = alive, settled
        if key not in self._holding:
            self._holding[key] = evaluate(self.formula, self.context.truth(alive, settled)) is not False
        return self._holding[key]

    def can_end(self, state: ObjectMembers) -> bool:
        return not self.must_fail(state.alive, state.seen) if self._is_easy else super().can_end(state)

    def _candidates(self, state: ObjectMembers, wanted: int) -> Iterable[NameClass]:
        """Return the names that may come next, first those in `wanted`."""
        return state.candidates(wanted)

    def _key(self, state: ObjectMembers) -> Hashable:
        return state.alive, state.seen, state.count, bool(state.others) and self.context.in_order

    def _used(self, state: ObjectMembers, step: ObjectMembers) -> int:
        return step.seen & ~state.seen

    def can_end_after(self, state: ObjectMembers, step: ObjectMembers) -> bool:
        """Return True if `step`, which is `state` after one more member, can end."""
        used = self._paths.get(self._key(state))
        remains = used is not None and used != NO_END and not used & self._used(state, step)
        if used is not None and remains and self._is_neutral(state, step):
            self._paths.setdefault(self._key(step), used)
        return self.can_end(step)

    def _is_complete(self, state: ObjectMembers) -> bool:
        """Return True if nothing more is needed."""
        return state.closing_result() is not None

    def _way(self, state: ObjectMembers) -> int | None:
        if self._is_complete(state):
            return 0
        if isinstance(self.formula, ExactlyOne):  # which is false if all goals hold
            return None
        context, alive, seen = self.context, state.alive, state.seen
        first = 0  # of the names that may still come
        if context.in_order:
            first = context.names.num_mentioned if state.others else seen.bit_length()
        count = state.count
        while (wanted := self._cheapest_names(alive, seen, self.formula)) is not None:
            wanted = wanted or self._more_names(alive, seen, first, count)
            if not wanted or wanted & ((1 << first) - 1 | ~self.names):
                return None
            seen |= wanted
            alive = self._left_by(wanted, alive & self.parts)
            count = state.count + (seen & ~state.seen).bit_count()
            if self._holds_after(alive, seen, count, state.count):
                return seen & ~state.seen
        return None

    def _more_names(self, alive: int, seen: int, first: int, count: int) -> int:
        """Return listed names from a number on with which members are as many as they must be, 0 if there are none."""
        names, missing = 0, self.context.least - count
        left = ((1 << len(self.context.names.names)) - 1) & self.names & ~seen & ~((1 << first) - 1)
        for _ in range(missing + MAX_PASSED if missing > 0 else 0):
            bit = left & -left
            left ^= bit
            if bit and self._left_by(bit, alive & self.parts) == alive & self.parts:
                names |= bit
                missing -= 1
            if not missing or not left:
                break
        return 0 if missing else names

    def _holds_after(self, alive: int, seen: int, count: int, before: int) -> bool:
        """Return True if the formula holds in a state that more members lead to, from a state of `before` members."""
        context = self.context
        is_exact = context.ranges.end(before) is None

        def holds(part: ObjectPart) -> bool:
            number = context.index[part]
            fits = part.most is None or (is_exact and count <= part.most)
            return (
                bool(alive >> number & 1)
                and count >= part.least
                and fits
                and not (context.needed(number, seen) & self.names)
            )

        return bool(evaluate(self.formula, holds))

    def _left_by(self, names: int, alive: int) -> int:
        """Return the alive parts that hold on after members whose values satisfy all goals of their names."""
        names &= ~self._harmless.get(alive, 0)
        left = alive
        while names:
            bit = names & -names
            names ^= bit
            found = self._left_by_one(self.context.names.named[bit.bit_length() - 1], left)
            if found == left == alive and self._compiler.is_idle:
                self._harmless[alive] = self._harmless.get(alive, 0) | bit
            left = found
        return left

    def _left_by_one(self, name: NameClass, alive: int) -> int:
        context = self.context
        if name.number is not None and not context.names.can_be_spelled(name.number):
            return 0
        certain, open_goals = context.alive_goals(alive, name)
        left = certain + sum(parts for _, parts in open_goals)
        goals = tuple(goal for goal, _ in open_goals)
        if len(goals) > 1:
            return left if joint_truths(context.compiler, goals).possible((True,) * len(goals)) else 0
        return left if context.compiler.satisfiable(conj(goals)) else 0

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
        for name in wanted or self._candidates(state, self._cheapest_names(state.alive, state.seen, self.formula) or 0):
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

    def _cheapest_names(self, alive: int, seen: int, formula: Formula) -> int | None:
        """Return a small set of names that seems to make a formula true, or None if there seems to be none."""
        context = self.context
        if isinstance(formula, bool):
            return 0 if formula else None
        if isinstance(formula, And | Or | ExactlyOne):
            sets = [self._cheapest_names(alive, seen, part) for part in formula.parts]
            if isinstance(formula, And):
                return None if None in sets else reduce(or_, sets, 0)
            return min((n for n in sets if n is not None), key=lambda n: (n.bit_count(), n), default=None)
        if isinstance(formula, ObjectPart):
            number = context.index[formula]
            return context.needed(number, seen) & self.names if alive >> number & 1 else None
        part = formula.part
        if isinstance(part, ExactlyOne) or not alive >> context.index[part] & 1:
            return 0
        number = context.index[part]
        if context.needed(number, seen) & self.names:
            return 0
        if context.cannot_fail(number, seen):
            return None
        bits = map(context.names.bit, context.falsifying_names(number))
        return next((bit for bit in bits if bit and not bit & seen), 0)

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
        if self._exceeds_limit():
            return False
        if not isinstance(self.formula, ExactlyOne):  # all goals may hold
            bit = self.context.names.bit(name)
            alive = self._left_by_one(name, state.alive_after(name, bit))
            fits = alive & self.parts and not self.must_fail(alive, state.seen | bit)
            if fits and (self._is_easy or self._way(state.with_member(name, alive)) is not None):
                return True  # without the truths that its goals can have together, nor a search
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
