"""Goals of an object: the parts of its formulas, the names that they distinguish, and the goals of each member.

Names that have come (`seen`) and parts that may still hold (`alive`) are bit sets, by the indices in `names` and
`parts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from ...budget import INTERPRETED, cached_property, charge
from ...record import record
from ..formula import Formula, Or, ResultCodes, atoms, disj, evaluate, has_negation, optimistic, size_of
from ..interface import SchemaCompiler
from ..strings.string_dfas import pattern_chars
from ..structure_parts import CountRanges, ObjectKeywords, ObjectPart
from .name_states import MemberNames, NameClass, NameKind

MAX_ORDERED_PARTS = 6  # of a closed object whose members come in order: a search for more takes long


OpenGoals = tuple[tuple[Formula, int], ...]  # distinct goals, each with the parts that have it


@record()
class MemberGoal:
    """Goals of one member's value: what it needs, and what is tracked of it. `known` are certain truths.

    `certain` are the parts that every value satisfies. `open_goals` are the other goals, with the parts that have them.
    """

    need: Formula
    tracked: tuple[Formula, ...]
    certain: int
    open_goals: OpenGoals
    possible: bool
    known: Mapping[Formula, bool] = field(default_factory=dict)


def is_plain(formula: Formula) -> bool:
    """Return True if one part, or one of several, is all that is needed, and no keyword of a part obstructs another."""
    parts = formula.parts if isinstance(formula, Or) else [formula]
    return all(isinstance(part, bool) or (isinstance(part, ObjectPart) and not part.is_tight) for part in parts)


class ObjectContext:
    """Formulas of an object: the first must hold, and the truths of the others are its result. Compared by identity.

    - `exact`: truths are tracked or negated, so a part that may hold must also be able to fail.
    - `plain`: whatever brings a part nearer to its end can be ended. Otherwise a way to the end is searched for.
    - `simple`: plain, with at most one part and nothing tracked.
    - `steady`: simple, and the names that may come do not depend on those before, except for being different.
    - `in_own_orders`: it is one of several closed objects, whose members come in the order of that one.
    """

    def __init__(self, compiler: SchemaCompiler, formulas: tuple[Formula, ...], result: ResultCodes) -> None:
        self.compiler, self.formulas, self.result = compiler, formulas, result
        found: dict[ObjectPart, None] = {}
        for formula in formulas:
            for part in atoms(formula):
                assert isinstance(part, ObjectPart)
                found[part] = None
        self.parts = tuple(found)
        if len(found) > 1:
            self.parts = tuple(sorted(found, key=lambda part: (-len(part.names), [each.rank for each in part.ranked])))
        self.index = {part: number for number, part in enumerate(self.parts)}
        self.all_parts = (1 << len(self.parts)) - 1
        self.exact = len(formulas) > 1 or has_negation(formulas[0])
        self.plain = is_plain(formulas[0])
        self.in_own_orders = self.plain and len(found) > 1 and all(part.is_ordered_list for part in found)
        self.in_order = (
            compiler.schema_order
            or self.in_own_orders
            or (
                len(self.parts) <= MAX_ORDERED_PARTS
                and any(each.ordered for part in self.parts for each in part.keywords)
            )
        )
        needed = formulas[0].parts if isinstance(formulas[0], Or) else formulas[:1]
        # In a plain context: the parts of which one must hold.
        self.choice = self.bits_of(part for part in needed if isinstance(part, ObjectPart)) if self.plain else 0
        self.names = MemberNames(compiler, self.parts, list_names=not self.plain)
        self.required = [self.names.bits(part.required) for part in self.parts]
        self.requires = [
            [
                (self.names.bits([name]), self.names.bits(others))
                for each in part.keywords
                for name, others in each.requires.items()
            ]
            for part in self.parts
        ]
        # For each part, what each of its names requires, also by way of others.
        self._brought = [_transitive(pairs) for pairs in self.requires]
        self._bringing = [sum(brought) for brought in self._brought]  # the names that require others
        self.limited = self.bits_of(part for part in self.parts if part.most is not None or part.has_dependencies)
        # Parts that may require a name without any value. A single part is known to have values.
        is_single = self.plain and len(self.parts) < 2
        self.unproven = 0 if is_single else self.bits_of(part for part in self.parts if part.required)
        self.simple = self.plain and not self.exact and len(self.parts) <= 1
        self.steady = self.simple and not any(part.most is not None or part.has_dependencies for part in self.parts)
        self.ranges = CountRanges(*self._changes())
        self.satisfiable = [0] * len(self.parts)  # for each part, names known to have satisfiable goals
        self._members: dict[tuple[int, NameClass, int], MemberGoal] = {}
        self._open_goals: dict[NameClass, tuple[int, OpenGoals]] = {}
        self._choices: dict[int, tuple[int, frozenset[NameKind]]] = {}
        self._falsifying_names: dict[int, list[NameClass]] = {}
        self._following: dict[tuple[int, int], dict[int, int]] = {}
        compiler.caches += [self._members, self._open_goals, self._choices, self._falsifying_names, self._following]

    def _changes(self) -> tuple[set[int], int]:
        """Return the numbers of members from which on limits matter otherwise than before, and a range's margin.

        The margin is more than the number of members that can change `alive` or `seen`, one after the other.
        """
        changes, num_needed = {part.least for part in self.parts}, 0
        for number, part in enumerate(self.parts):
            if part.most is not None:
                needed = self.required[number]
                for _, others in self.requires[number]:
                    needed |= others
                num_needed = max(num_needed, needed.bit_count())
                changes |= {part.most, max(0, part.most - needed.bit_count())}
        return changes, 1 + num_needed if self.plain else 2 + len(self.parts) + len(self.names.names)

    def bits_of(self, parts: Iterable[ObjectPart]) -> int:
        """Return the bit set of parts."""
        return sum(1 << self.index[part] for part in parts)

    # Names.

    @cached_property
    def remembers_names(self) -> bool:
        """True if names that are not listed may run out, so that states must know which have come."""
        if not self.has_others:
            return False
        kinds = self.possible[1] if self.steady else filter(self._may_come, self.names.kinds)
        return self.names.may_run_out(frozenset(kinds))

    def _may_come(self, kind: NameKind) -> bool:
        """Return False only if no name of a kind may come at all."""
        name = self.names.other(kind)
        goals = {part: None if self.names.goal(part, name) is not False else False for part in self.parts}
        return evaluate(self.formulas[0], goals.__getitem__) is not False

    @cached_property
    def has_others(self) -> bool:
        """True if members may have names that are not listed."""
        return bool(self.possible[1] if self.steady else self.names.kinds)

    @cached_property
    def possible(self) -> tuple[int, frozenset[NameKind]]:
        """The listed names, and the kinds of other names, that may come at all in a steady context."""
        names, parts, satisfiable = self.names, self.parts, self.compiler.satisfiable

        def possible(name: NameClass) -> bool:
            return not parts or satisfiable(names.goal(parts[0], name))  # a steady context has no other

        listed = sum(1 << number for number, name in enumerate(names.named) if possible(name))
        return listed, frozenset(kind for kind in names.kinds if possible(names.other(kind)))

    def needed(self, number: int, seen: int) -> int:
        """Return the names that a part requires beside those that have come."""
        required = self.required[number]
        if bringing := self._bringing[number]:
            todo = (seen | required) & bringing
            while todo:
                name = todo & -todo
                brought = self._brought[number][name]
                required |= brought
                todo &= ~(brought | name)
        return required & ~seen

    @cached_property
    def relevant_names(self) -> int:
        """The names that some part requires, or that require others."""
        found = 0
        for required, requires in zip(self.required, self.requires, strict=True):
            found |= required
            for name, others in requires:
                found |= name | others
        return found

    @cached_property
    def sole_result(self) -> int | None:
        """The result code of an object of which one part is all that is needed; None if there is more to it."""
        return self.result(()) if len(self.formulas) == 1 and isinstance(self.formulas[0], ObjectPart) else None

    @cached_property
    def any_name_comes(self) -> bool:
        """True if any name may come at any time, except for those that have come and those without values."""
        return self.steady and not self.in_order and self.names.is_everything(self.possible[1])

    @cached_property
    def remembered(self) -> int:
        """The listed names of which states know whether they have come. Frames find all others in the text.

        So objects with the same members in any number and order share states, and masks.
        """
        return self.relevant_names if self.any_name_comes and not self.remembers_names else -1

    @cached_property
    def least(self) -> int:
        """The largest minimum of the number of members."""
        return max((part.least for part in self.parts), default=0)

    @cached_property
    def has_most(self) -> bool:
        """True if the number of members is limited."""
        return any(part.most is not None for part in self.parts)

    def following(self, alive: int, seen: int) -> dict[int, int]:
        """Return the listed names that may come next by the orders of the parts, each with the parts that allow it.

        None passes over a name that its part requires. The context is `in_own_orders`.
        """
        found = self._following.get((alive, seen))
        if found is None:
            found, left = {}, alive
            while left:
                part_bit = left & -left
                left ^= part_bit
                number = part_bit.bit_length() - 1
                order = self._orders[number]
                charge(INTERPRETED * len(order))
                last = max((place for place, name in enumerate(order) if seen >> name & 1), default=-1)
                for name in order[last + 1 :]:
                    found[name] = found.get(name, 0) | part_bit
                    if self.required[number] >> name & 1:
                        break
            self._following[alive, seen] = found
        return found

    @cached_property
    def _orders(self) -> list[list[int]]:
        """For each part, the numbers of its names in its own order."""
        return [[self.names.bits([name]).bit_length() - 1 for name in part.names] for part in self.parts]

    # Goals of members.

    def member(self, alive: int, name: NameClass, seen: int) -> MemberGoal:
        """Return the goals of the value under a name while only the parts `alive` may hold."""
        key = (alive, name, seen if self.exact else 0)
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = self._make_member(alive, name, seen)
        return found

    def _make_member(self, alive: int, name: NameClass, seen: int) -> MemberGoal:
        if alive and self.plain and self.sole_result is not None:  # so the goal of the part is all
            goal = self.names.goal(self.parts[0], name)
            open_goals: OpenGoals = () if isinstance(goal, bool) else ((goal, 1),)
            return MemberGoal(goal, (), int(goal is True), open_goals, self.compiler.satisfiable(goal), {goal: True})
        certain, open_goals = self.alive_goals(alive, name)
        need = self.need(certain, open_goals, name, seen)
        tracked = tuple(goal for goal, _ in open_goals)
        if tracked == (need,):
            tracked = ()
        return MemberGoal(need, tracked, certain, open_goals, self.compiler.satisfiable(need), {need: True})

    def alive_goals(self, alive: int, name: NameClass) -> tuple[int, OpenGoals]:
        """Return `open_goals` of the parts that are alive."""
        certain, open_goals = self.open_goals(name)
        return certain & alive, tuple((goal, parts & alive) for goal, parts in open_goals if parts & alive)

    def open_goals(self, name: NameClass) -> tuple[int, OpenGoals]:
        """Return the parts that every value under a name satisfies, and the other goals with their parts."""
        found = self._open_goals.get(name)
        if found is None:
            found = self._open_goals[name] = self._find_open_goals(name)
        return found

    def _find_open_goals(self, name: NameClass) -> tuple[int, OpenGoals]:
        names, apart = self.names, self._apart
        matched: Iterable[Any] = name.matched
        if name.number is not None:
            text = names.names[name.number]
            apart |= self._listing.get(text, 0)
            matched = [pattern for pattern in self._having_pattern if pattern_chars(pattern).accepts(text)]
        for test in matched:
            apart |= self._having_pattern.get(test, 0)
        parts_of = {goal: parts & ~apart for goal, parts in self._usual_goals.items() if parts & ~apart}
        while apart:
            bit = apart & -apart
            apart ^= bit
            goal = names.goal(self.parts[bit.bit_length() - 1], name)
            parts_of[goal] = parts_of.get(goal, 0) | bit
        certain = parts_of.pop(True, 0)
        parts_of.pop(False, None)
        return certain, tuple(sorted(parts_of.items(), key=lambda pair: pair[1] & -pair[1]))

    @cached_property
    def _apart(self) -> int:
        """The parts that test all names by a schema."""
        return self.bits_of(part for part in self.parts if part.name_goals)

    @cached_property
    def _having_pattern(self) -> dict[str, int]:
        """For each pattern of names, the parts that have it."""
        found: dict[str, int] = {}
        for number, part in enumerate(self.parts):
            for pattern in part.patterns:
                found[pattern] = found.get(pattern, 0) | 1 << number
        return found

    @cached_property
    def _usual_goals(self) -> dict[Formula, int]:
        """The goals of names that a part neither mentions nor matches, with the parts that have them."""
        found: dict[Formula, int] = {}
        for number, part in enumerate(self.parts):
            if not self._apart >> number & 1:
                goal = part.goal(None, frozenset())
                found[goal] = found.get(goal, 0) | 1 << number
        return found

    @cached_property
    def _listing(self) -> dict[str, int]:
        """For each name, the parts that have a goal of their own for it."""
        found: dict[str, int] = {}
        for number, part in enumerate(self.parts):
            for each in part.keywords:
                for name in each.properties:
                    found[name] = found.get(name, 0) | 1 << number
        return found

    def need(
        self,
        certain: int,
        open_goals: OpenGoals,
        name: NameClass,
        seen: int,
        formula: Formula | None = None,
        marked: bool = False,
    ) -> Formula:
        """Return what the value under a name must satisfy for a formula (None: the first) to become true.

        `marked`: with each goal in a tuple, so as an atom.
        """
        if self.plain:
            if certain & self.choice or self.formulas[0] is True:
                return True
            return disj(goal for goal, parts in open_goals if parts & self.choice)
        formula = self.formulas[0] if formula is None else formula
        charge(INTERPRETED * size_of(formula))
        goal_of: dict[int, Formula] = {}
        for goal, parts in open_goals:
            while parts:
                bit = parts & -parts
                parts ^= bit
                goal_of[bit.bit_length() - 1] = (goal,) if marked else goal

        def value(part: ObjectPart) -> Formula:
            number = self.index[part]
            return True if certain >> number & 1 else goal_of.get(number, False)

        def settled(part: ObjectPart) -> bool:
            number = self.index[part]
            return value(part) is not False and self.cannot_fail(number, seen | self.names.bit(name))

        return optimistic(formula, value, settled)

    # Choices of one part, in a plain context.

    def possible_names(self, alive: int) -> tuple[int, frozenset[NameKind]]:
        """Return the listed names, and the kinds of other names, that may come while only the parts `alive` may hold.

        The context is plain, without limited parts, and the members come in any order.
        """
        found = self._choices.get(alive)
        if found is None:
            names = self.names
            listed = sum(names.bit(name) for name in names.named if self.member(alive, name, 0).possible)
            kinds = frozenset(kind for kind in names.kinds if self.member(alive, names.other(kind), 0).possible)
            found = self._choices[alive] = listed, kinds
        return found

    @cached_property
    def requiring(self) -> list[int]:
        """For each listed name, the parts that require it."""
        found = [0] * len(self.names.names)
        for number, required in enumerate(self.required):
            while required:
                name = required & -required
                required ^= name
                found[name.bit_length() - 1] |= 1 << number
        return found

    # Truths of parts.

    def cannot_fail(self, number: int, seen: int) -> bool:
        """Return True if an alive part holds whatever members follow."""
        names = self._settling_names[number]
        return names is not None and not names & ~seen

    @cached_property
    def _settling_names(self) -> list[int | None]:
        """For each part, the names after which it cannot fail any more; None if it always can."""
        return [self._settling_names_of(number) for number in range(len(self.parts))]

    def _settling_names_of(self, number: int) -> int | None:
        names = self.constrained_names(number)
        return None if names is None or self.requires[number] else names

    @cached_property
    def tied(self) -> list[int]:
        """Groups of parts that differ in required members alone, so that another member fails all of them or none."""
        groups: dict[frozenset[ObjectKeywords], int] = {}
        for number, part in enumerate(self.parts):
            key = frozenset(each for each in part.keywords if not each.only_require)
            groups[key] = groups.get(key, 0) | 1 << number
        return [group for group in groups.values() if group.bit_count() > 1]

    def constrained_names(self, number: int) -> int | None:
        """Return the names on which the truth of a part depends, or None if it may depend on all."""
        part = self.parts[number]
        if part.most is not None or part.least or part.name_goals:
            return None
        for each in part.keywords:
            if each.additional is not True or any(goal is not True for goal in each.patterns.values()):
                return None
        constrained = [name for each in part.keywords for name, goal in each.properties.items() if goal is not True]
        constrained += [name for each in part.keywords for name in each.requires]
        constrained += [other for each in part.keywords for others in each.requires.values() for other in others]
        return self.required[number] | self.names.bits(constrained)

    def settled(self, alive: int, seen: int) -> int:
        """Return the alive parts that cannot fail."""
        settled = 0
        while alive:
            bit = alive & -alive
            alive ^= bit
            if self.cannot_fail(bit.bit_length() - 1, seen):
                settled |= bit
        return settled

    def truth(self, alive: int, settled: int) -> Callable[[ObjectPart], bool | None]:
        """Return the function from a part to its truth as far as it is known."""

        def known(part: ObjectPart) -> bool | None:
            number = self.index[part]
            return True if settled >> number & 1 else None if alive >> number & 1 else False

        return known

    def falsifying_names(self, number: int) -> list[NameClass]:
        """Return the names whose members can make a part fail; empty if something else can, too."""
        found = self._falsifying_names.get(number)
        if found is None:
            part, names = self.parts[number], self.names
            candidates = [
                *(name for name in names.named if names.can_be_spelled(name.number or 0)),
                *(names.other(kind) for kind in names.kinds),
            ]
            found = [name for name in candidates if names.goal(part, name) is not True]
            found = self._falsifying_names[number] = [] if part.most is not None or part.has_dependencies else found
        return found


def _transitive(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return all that each name brings with it, given pairs of a name and others that must come with it, as bits."""
    brought: dict[int, int] = {}
    for name, others in pairs:
        brought[name] = brought.get(name, 0) | others
    for through in reversed(brought):
        others = brought[through]
        for name, found in brought.items():
            if found & through:
                brought[name] = found | others
    return brought
