"""Parts for objects and arrays: conjunctions of the keywords of several schemas, with goals of members and items.

`CountRanges` are the numbers of items or members that one state serves.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Any

from ..automaton.actions import UNBOUNDED
from ..budget import cached_property
from ..record import record
from .document import Document
from .formula import Formula, conj, evaluate
from .interface import SchemaCompiler, joined_goal
from .strings.string_dfas import pattern_chars

MORE_THAN_ANY = 1 << 64  # count
LEAST_LONG = 8  # counts of a range that one state serves; shorter ones have a state for each count


@record(eq=False)
class ObjectKeywords:
    """The object keywords of one schema.

    `names` is the goal of `propertyNames`; `requires` maps a name to those that must come with it; `least` and `most`
    are numbers of members. `ordered`: members come in the order of the properties.
    """

    document: Document
    properties: dict[str, Formula]
    patterns: dict[str, Formula]
    additional: Formula
    names: Formula
    required: tuple[str, ...]
    requires: dict[str, tuple[str, ...]]
    least: int
    most: int | None
    ordered: bool
    pointer: str = ""

    @property
    def allow_everything(self) -> bool:
        """True if every object is valid. With `properties` it never is: these come once and in their order."""
        has_limits = self.properties or self.required or self.requires or self.least or self.most is not None
        goals = (*self.patterns.values(), self.additional, self.names)
        return not has_limits and all(goal is True for goal in goals)

    @property
    def only_require(self) -> bool:
        """True if the keywords are no more than a list of required members: no member makes them fail."""
        has_limits = self.properties or self.requires or self.least or self.most is not None
        return not has_limits and all(goal is True for goal in (*self.patterns.values(), self.additional, self.names))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Equal for keywords that allow the same objects in the same order."""
        mappings = tuple(tuple(each.items()) for each in (self.properties, self.patterns, self.requires))
        return (*mappings, self.additional, self.names, self.required, self.least, self.most, self.ordered)

    @property
    def rank(self) -> tuple[int, list[tuple[int, str]]]:
        """Sort key among the keywords of one object, independent of the order in which they were compiled."""
        order = self.document.name_order
        # Names outside the document belong to listed items of an array with unique items.
        return -len(self.properties), [(order.get(name, len(order)), name) for name in self.properties]

    def goal(self, name: str | None, matched: frozenset[Any]) -> Formula:
        """Return the goal of the value under a name (None: one that is not listed) that matches these patterns."""
        goals = [goal for pattern, goal in self.patterns.items() if pattern in matched]
        if name is not None and name in self.properties:
            goals.append(self.properties[name])
        elif not goals:
            goals.append(self.additional)
        return joined_goal(goals)


@record(eq=False)
class ObjectPart:
    """Conjunction of the object keywords of several schemas. A compiler makes one part for the same set of keywords."""

    keywords: tuple[ObjectKeywords, ...]

    @cached_property
    def ranked(self) -> tuple[ObjectKeywords, ...]:
        """The keywords by `rank`."""
        return self.keywords if len(self.keywords) == 1 else tuple(sorted(self.keywords, key=lambda each: each.rank))

    @cached_property
    def least(self) -> int:
        return max(each.least for each in self.keywords)

    @cached_property
    def most(self) -> int | None:
        return min((each.most for each in self.keywords if each.most is not None), default=None)

    @cached_property
    def required(self) -> dict[str, None]:
        return {name: None for each in self.ranked for name in each.required}

    @cached_property
    def names(self) -> dict[str, None]:
        """All names that are mentioned, in the schema's order."""
        found: dict[str, None] = {}
        for each in self.ranked:
            found |= dict.fromkeys(each.properties)
        for each in self.ranked:
            found |= dict.fromkeys(each.required)
            for name, others in each.requires.items():
                found |= dict.fromkeys((name, *others))
        return found

    @cached_property
    def has_dependencies(self) -> bool:
        """True if some names require others."""
        return any(each.requires for each in self.keywords)

    @cached_property
    def is_closed(self) -> bool:
        """True if only names that are mentioned are allowed."""
        return any(each.additional is False and not each.patterns for each in self.keywords)

    @cached_property
    def is_ordered_list(self) -> bool:
        """True if the members are some of a list, in its order, whose required ones suffice."""
        keywords = self.keywords[0]
        is_plain = keywords.names is True and self.most is None and not self.is_tight
        return len(self.keywords) == 1 and keywords.ordered and not keywords.patterns and is_plain

    @cached_property
    def is_tight(self) -> bool:
        """True if the required members may exceed the maximum, or the minimum the names that are allowed."""
        has_limited_names = any(
            each.names is not True
            or each.additional is not True
            or any(goal is not True for goal in each.patterns.values())
            for each in self.keywords
        )
        return self.has_dependencies or (has_limited_names and self.least > len(self.required))

    @cached_property
    def patterns(self) -> dict[str, None]:
        return {pattern: None for each in self.ranked for pattern in each.patterns}

    @cached_property
    def name_goals(self) -> list[Formula]:
        """The goals of `propertyNames`."""
        return [each.names for each in self.ranked if each.names is not True]

    def goal(self, name: str | None, matched: frozenset[Any]) -> Formula:
        """Return the goal of the value under a name, as `ObjectKeywords.goal` does."""
        return joined_goal(each.goal(name, matched) for each in self.ranked)

    def goal_under(self, compiler: SchemaCompiler, name: str) -> Formula:
        """Return the goal of the value under a given name: False if the name is not allowed."""
        if not self.patterns and not self.name_goals and len(self.keywords) == 1:
            (keywords,) = self.keywords
            return keywords.properties.get(name, keywords.additional)
        for goal in self.name_goals:
            if not evaluate(compiler.typed(goal, "string"), lambda part: part.holds(name)):
                return False
        return self.goal(name, frozenset(p for p in self.patterns if pattern_chars(p).accepts(name)))

    def has_values(self, compiler: SchemaCompiler) -> bool:
        """Return False only if no object satisfies the part."""
        if self.most is not None and (self.most < self.least or self.most < len(self.required)):
            return False
        if not all(compiler.satisfiable(self.goal_under(compiler, name)) for name in self.required):
            return False
        allows_no_name = any(compiler.typed(goal, "string") is False for goal in self.name_goals)
        if self.least > len(self.required) and (allows_no_name or self.is_closed):
            return sum(compiler.satisfiable(self.goal_under(compiler, name)) for name in self.names) >= self.least
        return True


@record(eq=False)
class ArrayKeywords:
    """The array keywords of one schema.

    `first` are the goals of `prefixItems` and `rest` that of the other items; `least` and `most` are numbers of items.
    `contains` is a goal, with the least and most number of items that satisfy it.
    """

    first: tuple[Formula, ...]
    rest: Formula
    least: int
    most: int | None
    unique: bool
    contains: tuple[Formula, int, int | None] | None
    pointer: str = ""

    @property
    def allow_everything(self) -> bool:
        """True if every array is valid."""
        has_limits = self.least or self.most is not None or self.unique or self.contains
        return not has_limits and all(goal is True for goal in (*self.first, self.rest))

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Equal for keywords that allow the same arrays."""
        return self.first, self.rest, self.least, self.most, self.unique, self.contains

    def goal(self, index: int) -> Formula:
        return self.first[index] if index < len(self.first) else self.rest


@record(eq=False)
class ArrayPart:
    """Conjunction of the array keywords of several schemas. A compiler makes one part for the same set of keywords."""

    keywords: tuple[ArrayKeywords, ...]

    @cached_property
    def least(self) -> int:
        return max(each.least for each in self.keywords)

    @cached_property
    def most(self) -> int | None:
        return min((each.most for each in self.keywords if each.most is not None), default=None)

    @cached_property
    def unique(self) -> bool:
        return any(each.unique for each in self.keywords)

    @cached_property
    def contains(self) -> tuple[tuple[Formula, int, int | None], ...]:
        return tuple(each.contains for each in self.keywords if each.contains is not None)

    @cached_property
    def num_item_goals(self) -> int:
        """Number of leading indices that cover all item goals: from the last of them on, the goal stays the same."""
        return 1 + max(len(each.first) for each in self.keywords)

    @cached_property
    def changes(self) -> frozenset[int]:
        """Numbers of items from which on the goals of items or the limits of the length differ from those before."""
        limits = [count for each in self.keywords for count in (each.least, each.most) if count is not None]
        return frozenset((*range(self.num_item_goals), *limits))

    def goal(self, index: int) -> Formula:
        """Return the goal of the item at an index."""
        return joined_goal(each.goal(index) for each in self.keywords)

    def has_values(self, compiler: SchemaCompiler) -> bool:
        """Return False only if no array satisfies the part."""
        num_item_goals = self.num_item_goals
        most = math.inf if self.most is None else self.most
        for index in range(num_item_goals):
            if index < most and not compiler.satisfiable(self.goal(index)):
                most = index
        if most < self.least:
            return False
        for condition, least, at_most in self.contains:
            if least > most or (at_most is not None and at_most < least):
                return False
            indices = range(int(min(most, num_item_goals)))
            if least and not any(compiler.satisfiable(conj([self.goal(index), condition])) for index in indices):
                return False
        return True


class CountRanges:
    """Partition of all counts into ranges, which are named by their first count.

    `changes` are the counts from which on something differs from the count before. Of the counts between two changes,
    the last `margin` are ranges of their own, as are all if they are few; the others form one long range. All counts
    from the last change on are one range.

    Why a search may treat a long range as one state: let each step either change something that can change fewer than
    `margin` times before the next change (conditions that fail, names that come), or nothing but the count. From
    whatever count of the long range the next change is reached, some step on the way changes nothing but the count. It
    can be repeated or left out, so a way to the end exists from all counts of the range or from none. A way that ends
    before the next change needs fewer than `margin` steps, which fit behind every count of the range. So in a search
    the step that changes nothing leads to the first count behind the range. The first count behind is no different
    either: `margin` steps are left there.
    """

    def __init__(self, changes: Iterable[int], margin: int) -> None:
        found = sorted({0, *changes})
        self.last = found[-1]
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, following in pairwise(found):
            if following - margin - first >= max(LEAST_LONG, margin):
                self._firsts.append(first)
                self._ends.append(following - margin)

    def end(self, first: int) -> int | None:
        """Return the first count behind a long range, or None if the range is not long."""
        if not self._firsts:
            return None
        at = bisect_right(self._firsts, first) - 1
        return self._ends[at] if at >= 0 and self._firsts[at] == first else None

    def after(self, first: int) -> int:
        """Return the range after one more item or member, short of the end of a long one."""
        return first if first == self.last or self.end(first) is not None else first + 1

    def limit(self, first: int) -> int:
        """Return the end of this long range or of the next; 0 if there is none that an output can reach.

        States must count up to there.
        """
        if not self._ends:
            return 0
        at = bisect_right(self._ends, first)
        return self._ends[at] if at < len(self._ends) and self._ends[at] < UNBOUNDED else 0
