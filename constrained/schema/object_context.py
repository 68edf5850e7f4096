"""What is asked of an object: the parts of a formula, the names that they tell apart, and what each asks of a member.

Knows goals and names; no states, not what has come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .formula import Formula, Or, atoms, has_negation, optimistic
from .goals import SchemaCompiler
from .name_states import MatchedTests, MemberNames, NameClass
from .object_end_search import ObjectEndSearch
from .structure_parts import ObjectPart
from .value_states import ResultCodes

MAX_ORDERED = 6  # parts of an object whose members come in order because it is closed: a search for more takes long


@dataclass(frozen=True)
class MemberGoal:
    """What is asked of one member's value: what it must satisfy, what is tracked, the goal of each part, and those
    goals of which it is certain whether they hold."""

    need: Formula
    tracked: tuple[Formula, ...]
    goals: tuple[Formula, ...]
    possible: bool
    known: Mapping[Formula, bool] = field(default_factory=dict)


def is_plain(formula: Formula) -> bool:
    """Whether one part, or one of several, is all that is asked for, and nothing in a part is in another's way."""
    parts = formula.parts if isinstance(formula, Or) else [formula]
    return all(isinstance(part, bool) or (isinstance(part, ObjectPart) and not part.is_tight) for part in parts)


class ObjectContext:
    """What is asked of an object: a formula over parts, and others whose truth is its result. Compared by identity."""

    def __init__(self, world: SchemaCompiler, formulas: tuple[Formula, ...], result: ResultCodes) -> None:
        self.world, self.formulas, self.result = world, formulas, result
        found: dict[ObjectPart, None] = {}
        for formula in formulas:
            for part in atoms(formula):
                assert isinstance(part, ObjectPart)
                found[part] = None
        self.parts = tuple(found)
        if len(found) > 1:
            self.parts = tuple(sorted(found, key=lambda part: (-len(part.names), [lo.place for lo in part.ordered])))
        self.index = {part: number for number, part in enumerate(self.parts)}
        self.everything = (1 << len(self.parts)) - 1
        self.exact = len(formulas) > 1 or has_negation(formulas[0])
        # Where it is plain, whatever brings a part nearer to its end can be ended. Else a way to the end is looked for.
        self.in_order = world.in_order or (
            len(self.parts) <= MAX_ORDERED and any(local.ordered for part in self.parts for local in part.locals)
        )
        self.plain = is_plain(formulas[0]) and not (self.in_order and len(self.parts) > 1)
        self.keys = MemberNames(world, self.parts, lists_names=not self.plain)
        self.required = [self.keys.bits(part.required) for part in self.parts]
        self.requires = [
            [
                (self.keys.bits([name]), self.keys.bits(others))
                for lo in part.locals
                for name, others in lo.requires.items()
            ]
            for part in self.parts
        ]
        self.simple = self.plain and not self.exact and len(self.parts) <= 1
        # Whether a name may come does not depend on those before it, but for their being different.
        self.steady = self.simple and not any(part.most is not None or part.requires for part in self.parts)
        limits = [part.least for part in self.parts]
        limits += [part.most + 1 for part in self.parts if part.most is not None]
        self.num_counted = max(limits, default=0)
        self.satisfiable = [0] * len(self.parts)  # of each, names of which is known that values may be under them
        self._least = max((part.least for part in self.parts), default=0)
        self._most = max((part.most for part in self.parts if part.most is not None), default=-1)
        self._members: dict[tuple[int, NameClass, int], MemberGoal] = {}
        self.completion = ObjectEndSearch(self)

    def counts_names(self, count: int, has_others: bool) -> bool:
        """Whether it will matter how many different names there are, or whether a member is written over, after so many
        members; `has_others`: of some names it is remembered that they have come."""
        if self.exact and count <= self._most:
            return True  # so many different names that a maximum is exceeded, which may be what is asked for
        if self.overwritable or self._are_limited:
            return True
        return count + 1 < self._least or (count < self._least and has_others)

    @cached_property
    def has_others(self) -> bool:
        """Return True if members may have names that no schema mentions."""
        return bool(self.possible[1] if self.steady else self.keys.kinds)

    @cached_property
    def _are_limited(self) -> bool:
        """Return True if unmentioned names are limited by a pattern or schema, so that they may run out.

        States then remember the names that have been used.
        """
        keys = self.keys
        if self.steady:
            return self.has_others and not keys.is_everything(self.possible[1])
        if not keys.is_everything(frozenset(keys.kinds)):
            return bool(keys.kinds)
        return any(keys.goal(part, keys.other(kind)) is False for part in self.parts for kind in keys.kinds)

    @cached_property
    def overwritable(self) -> bool:
        """Whether the truth of a part can depend on a member that another one of the same name writes over."""
        outcomes = [self.keys.other(kind) for kind in self.keys.kinds]
        goals = [self.keys.goal(part, outcome) for part in self.parts for outcome in outcomes]
        return self.exact and any(goal is not True and goal is not False for goal in goals)

    @cached_property
    def possible(self) -> tuple[int, frozenset[MatchedTests]]:
        """The names, and the kinds of other names, that may come at all, where the context is steady."""
        keys, satisfiable = self.keys, self.world.satisfiable

        def possible(outcome: NameClass) -> bool:
            return all(satisfiable(keys.goal(part, outcome)) for part in self.parts)

        names = sum(1 << number for number, outcome in enumerate(keys.named) if possible(outcome))
        return names, frozenset(kind for kind in keys.kinds if possible(keys.other(kind)))

    def member(self, alive: int, outcome: NameClass, seen: int) -> MemberGoal:
        """Of the value under a name, while only these parts may hold."""
        key = (alive, outcome, seen if self.exact else 0)
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = self._make_member(alive, outcome, seen)
        return found

    def _make_member(self, alive: int, outcome: NameClass, seen: int) -> MemberGoal:
        goals = self.goals(alive, outcome)
        need = self.need(goals, outcome, seen)
        different = tuple(dict.fromkeys(goal for goal in goals if goal is not True and goal is not False))
        tracked = () if not different or different == (need,) else different
        return MemberGoal(need, tracked, goals, self.world.satisfiable(need), {need: True})

    def goals(self, alive: int, outcome: NameClass) -> tuple[Formula, ...]:
        """Each part's of the value under a name, while only these parts may hold."""
        return tuple(
            self.keys.goal(part, outcome) if alive >> number & 1 else False for number, part in enumerate(self.parts)
        )

    def need(self, goals: tuple[Formula, ...], outcome: NameClass, seen: int) -> Formula:
        """What must hold of the value under a name, these being the goals of the parts."""

        def settled(part: ObjectPart) -> bool:
            number = self.index[part]
            return goals[number] is not False and self.cannot_fail(number, seen | self.keys.bit(outcome))

        return optimistic(self.formulas[0], lambda part: goals[self.index[part]], settled)

    def cannot_fail(self, number: int, seen: int) -> bool:
        """Whether a part holds whatever members come after these."""
        names = self._settling[number]
        return names is not None and not names & ~seen

    @cached_property
    def _settling(self) -> list[int | None]:
        """Of each part, the names after which it cannot fail any more; None where it always can."""
        return [self._settles(number) for number in range(len(self.parts))]

    def _settles(self, number: int) -> int | None:
        part = self.parts[number]
        if part.most is not None or part.least or part.name_goals or self.requires[number]:
            return None
        for local in part.locals:
            if local.additional is not True or any(goal is not True for goal in local.patterns.values()):
                return None
        asked = [name for local in part.locals for name, goal in local.properties.items() if goal is not True]
        return self.required[number] | self.keys.bits(asked)

    def settled(self, alive: int, seen: int) -> int:
        """Those of some parts that cannot fail."""
        return sum(
            1 << number for number in range(len(self.parts)) if alive >> number & 1 and self.cannot_fail(number, seen)
        )

    def needed(self, number: int, seen: int) -> int:
        """The names that a part requires beside those seen."""
        required = self.required[number]
        if self.requires[number]:
            before = -1
            while before != required:
                before = required
                for names, others in self.requires[number]:
                    if names & (seen | required):
                        required |= others
        return required & ~seen
