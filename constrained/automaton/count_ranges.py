"""Ranges of a number of items or members in which nothing depends on the number, so that one state serves a range."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from ..automaton.actions import UNBOUNDED

MORE_THAN_ANY = 1 << 64  # count
LEAST_LONG = 8  # counts of a range that one state serves; shorter ones have a state for each count


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
        at = bisect_right(self._firsts, first) - 1
        return self._ends[at] if at >= 0 and self._firsts[at] == first else None

    def after(self, first: int) -> int:
        """Return the range after one more item or member, short of the end of a long one."""
        return first if first == self.last or self.end(first) is not None else first + 1

    def limit(self, first: int) -> int:
        """Return the end of this long range or of the next; 0 if there is none that an output can reach.

        States must count up to there.
        """
        at = bisect_right(self._ends, first)
        return self._ends[at] if at < len(self._ends) and self._ends[at] < UNBOUNDED else 0
