"""Goals of an object: the parts of its formulas, the names that they distinguish, and the goals of each member.

Names that have come (`seen`) and parts that may still hold (`alive`) are bit sets, by the indices in `names` and
`parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .formula import Formula, Or, ResultCodes, atoms, evaluate, has_negation, optimistic
from .interface import SchemaCompiler
from .name_states import MemberNames, NameClass, NameKind
from .structure_parts import CountRanges, ObjectPart

MAX_ORDERED_PARTS = 6  # of a closed object whose members come in order: a search for more takes long


@dataclass(frozen=True)
class MemberGoal:
    """Goals of one member's value: what it needs, what is tracked, and each part's goal. `known` are certain truths."""

    need: Formula
    tracked: tuple[Formula, ...]
    goals: tuple[Formula, ...]
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
        self.in_order = compiler.schema_order or (
            len(self.parts) <= MAX_ORDERED_PARTS and any(each.ordered for part in self.parts for each in part.keywords)
        )
        self.plain = is_plain(formulas[0]) and not (self.in_order and len(self.parts) > 1)
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
        self.simple = self.plain and not self.exact and len(self.parts) <= 1
        self.steady = self.simple and not any(part.most is not None or part.has_dependencies for part in self.parts)
        self.ranges = CountRanges(*self._changes())
        self.satisfiable = [0] * len(self.parts)  # for each part, names known to have satisfiable goals
        self._members: dict[tuple[int, NameClass, int], MemberGoal] = {}
        self._open_goals: dict[NameClass, tuple[int, tuple[tuple[Formula, int], ...]]] = {}
        self._falsifying_names: dict[int, list[NameClass]] = {}
        self._must_fail: dict[tuple[int, int], bool] = {}
        compiler.caches += [self._members, self._open_goals, self._falsifying_names, self._must_fail]

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
        names, satisfiable = self.names, self.compiler.satisfiable

        def possible(name: NameClass) -> bool:
            return all(satisfiable(names.goal(part, name)) for part in self.parts)

        listed = sum(1 << number for number, name in enumerate(names.named) if possible(name))
        return listed, frozenset(kind for kind in names.kinds if possible(names.other(kind)))

    def needed(self, number: int, seen: int) -> int:
        """Return the names that a part requires beside those that have come."""
        required = self.required[number]
        if self.requires[number]:
            before = -1
            while before != required:
                before = required
                for names, others in self.requires[number]:
                    if names & (seen | required):
                        required |= others
        return required & ~seen

    # Goals of members.

    def member(self, alive: int, name: NameClass, seen: int) -> MemberGoal:
        """Return the goals of the value under a name while only the parts `alive` may hold."""
        key = (alive, name, seen if self.exact else 0)
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = self._make_member(alive, name, seen)
        return found

    def _make_member(self, alive: int, name: NameClass, seen: int) -> MemberGoal:
        goals = self.goals(alive, name)
        need = self.need(goals, name, seen)
        different = tuple(dict.fromkeys(goal for goal in goals if goal is not True and goal is not False))
        tracked = () if not different or different == (need,) else different
        return MemberGoal(need, tracked, goals, self.compiler.satisfiable(need), {need: True})

    def goals(self, alive: int, name: NameClass) -> tuple[Formula, ...]:
        """Return each part's goal of the value under a name, False for parts that are not alive."""
        return tuple(
            self.names.goal(part, name) if alive >> number & 1 else False for number, part in enumerate(self.parts)
        )

    def open_goals(self, name: NameClass) -> tuple[int, tuple[tuple[Formula, int], ...]]:
        """Return the parts that every value under a name satisfies, and the other goals with their parts."""
        found = self._open_goals.get(name)
        if found is None:
            certain, parts_of = 0, dict[Formula, int]()
            for number, goal in enumerate(self.goals(self.all_parts, name)):
                if goal is True:
                    certain |= 1 << number
                elif goal is not False:
                    parts_of[goal] = parts_of.get(goal, 0) | 1 << number
            found = self._open_goals[name] = certain, tuple(parts_of.items())
        return found

    def need(self, goals: tuple[Formula, ...], name: NameClass, seen: int) -> Formula:
        """Return what the value under a name must satisfy, given each part's goal."""

        def settled(part: ObjectPart) -> bool:
            number = self.index[part]
            return goals[number] is not False and self.cannot_fail(number, seen | self.names.bit(name))

        return optimistic(self.formulas[0], lambda part: goals[self.index[part]], settled)

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
        part = self.parts[number]
        if part.most is not None or part.least or part.name_goals or self.requires[number]:
            return None
        for each in part.keywords:
            if each.additional is not True or any(goal is not True for goal in each.patterns.values()):
                return None
        constrained = [name for each in part.keywords for name, goal in each.properties.items() if goal is not True]
        return self.required[number] | self.names.bits(constrained)

    def settled(self, alive: int, seen: int) -> int:
        """Return the alive parts that cannot fail."""
        return sum(
            1 << number for number in range(len(self.parts)) if alive >> number & 1 and self.cannot_fail(number, seen)
        )

    def truths(self, alive: int, settled: int) -> dict[ObjectPart, bool | None]:
        """Return the truth of each part as far as it is known."""
        return {
            part: True if settled >> number & 1 else None if alive >> number & 1 else False
            for number, part in enumerate(self.parts)
        }

    def must_fail(self, alive: int, seen: int) -> bool:
        """Return True if no further members can make the first formula true."""
        settled = self.settled(alive, seen)
        found = self._must_fail.get((alive, settled))
        if found is None:
            found = evaluate(self.formulas[0], self.truths(alive, settled).__getitem__) is False
            self._must_fail[alive, settled] = found
        return found

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
