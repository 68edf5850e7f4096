"""Products of character automata with the number of characters of a text, which is counted instead of unrolled.

Automata decide what a text may hold, intervals of counts how long it may be. A text is labelled by both: by the
automata that accept it, and by the interval in which its length lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget, cached_property
from ..errors import GrammarError
from .alphabet import Alphabet, common_alphabet
from .char_dfa import CharDfa, length_char_dfa, trimmed_char_dfa
from .dfa import DEAD, START
from .pair_product import Factor, multiplied

Truths = tuple[bool, ...]
MAX_PRODUCT_STATES = 20_000
_MAX_VISITS = 30_000_000  # transitions that are followed to compare lengths of texts
MAX_COUNT = (1 << 31) - 2  # longer texts than this are never counted exactly; none is ever written
NEVER = 1 << 40  # number of characters to an end that is not reached, or of the longest way to one
_TOO_COMPLEX = "lengths cannot be combined with the patterns and formats of this string: too many states"


class LabelledTexts(NamedTuple):
    """An automaton of S states over characters, with labels by the state and length in which a text ends.

    `labels[q]` is empty, or holds in ascending order (last count, label), with label -1 where no text may end. State q
    may be entered with fewest[q] to most[q] characters: exactly then some longer text, or the text itself, has a label.
    """

    chars: CharDfa
    labels: list[tuple[tuple[int, int], ...]]
    fewest: NDArray[np.int64]  # [S]
    most: NDArray[np.int64]  # [S], NEVER if unbounded

    @property
    def counts_matter(self) -> bool:
        """True if the number of characters decides anything."""
        bounded = self.fewest[1:].any() or (self.most[1:] < NEVER).any()
        return bool(bounded) or any(len(row) > 1 for row in self.labels)


@dataclass(frozen=True, eq=False)
class CountedProduct:
    """Product of character automata over all texts: S states, the dead one first.

    `passed[q]` says which of the automata accept in state q; it is None for the dead one. The i-th interval of counts
    begins at cuts[i], and ends before cuts[i + 1]; the last is unbounded.
    """

    alphabet: Alphabet
    rows: NDArray[np.int32]  # [S, classes]
    passed: list[Truths | None]  # [S]
    cuts: tuple[int, ...]

    def interval(self, number: int) -> tuple[int, int]:
        """Return the first and last count of an interval."""
        last = self.cuts[number + 1] - 1 if number + 1 < len(self.cuts) else NEVER
        return self.cuts[number], last

    @cached_property
    def truths(self) -> list[Truths]:
        """The distinct combinations of automata that accept a text."""
        return list(dict.fromkeys(truths for truths in self.passed if truths is not None))

    @cached_property
    def combinations(self) -> list[tuple[Truths, int]]:
        """The combinations of accepting automata and interval that some text has. Raises GrammarError."""
        if len(self.cuts) == 1:
            return [(truths, 0) for truths in self.truths]
        found: dict[tuple[Truths, int], None] = {}
        begin = np.zeros(len(self.rows), np.bool_)
        begin[START] = True
        forward = _Distances(self.rows, begin, backward=False)
        for number in range(len(self.cuts)):
            for state in np.flatnonzero(forward.within(*self.interval(number))).tolist():
                truths = self.passed[state]
                if truths is not None:
                    found[truths, number] = None
        return list(found)

    def chars(self, truths: Truths) -> CharDfa:
        """Return the automaton of the texts that exactly these automata accept, of any length."""
        return trimmed_char_dfa(self.alphabet, self.rows, [passed == truths for passed in self.passed])

    def labelled(self, label: Callable[[Truths, int], int]) -> LabelledTexts | None:
        """Label the texts by accepting automata and interval; -1 refuses them. Returns None if all are refused.

        Raises GrammarError if the lengths that lead to an end from some state are no single range.
        """
        rows_of = {truths: self._label_row(truths, label) for truths in self.truths}
        labels = [() if passed is None else rows_of[passed] for passed in self.passed]
        fewest, most = self._entries(labels)
        alive = fewest <= most
        alive[DEAD] = False
        if not alive[START]:
            return None
        table = np.where(alive[self.rows], self.rows, DEAD).astype(np.int32)
        number = np.where(alive, np.cumsum(alive), DEAD).astype(np.int32)
        alive[DEAD] = True
        kept = np.flatnonzero(alive)
        labels = [labels[state] if any(each >= 0 for _, each in labels[state]) else () for state in kept.tolist()]
        chars = CharDfa(self.alphabet, number[table[kept]], np.array([bool(row) for row in labels], np.bool_))
        fewest, most = fewest[kept], most[kept]
        fewest[DEAD], most[DEAD] = 0, NEVER
        return LabelledTexts(chars, labels, fewest, most)

    def _label_row(self, truths: Truths, label: Callable[[Truths, int], int]) -> tuple[tuple[int, int], ...]:
        row: list[tuple[int, int]] = []
        for number in range(len(self.cuts)):
            found, last = label(truths, number), self.interval(number)[1]
            if row and row[-1][1] == found:
                row.pop()
            row.append((last, found))
        return tuple(row)

    def _entries(self, labels: list[tuple[tuple[int, int], ...]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the least and greatest number of characters with which each state leads to a labelled text."""
        if len(self.cuts) == 1:
            from . import dfa_kernel  # not at the top: it imports numba

            ends_here = np.array([bool(row) and row[0][1] >= 0 for row in labels], np.bool_)
            alive = dfa_kernel.alive(np.ascontiguousarray(self.rows), ends_here)
            return np.where(alive, 0, NEVER), np.where(alive, NEVER, -1)
        ends: dict[tuple[int, int], list[int]] = {}  # the states in which texts of these lengths have labels
        for state, row in enumerate(labels):
            for window in _windows(row):
                ends.setdefault(window, []).append(state)
        ranges = []
        for (first, last), states in ends.items():
            at_end = np.zeros(len(labels), np.bool_)
            at_end[states] = True
            ranges.append(_Distances(self.rows, at_end, backward=True).entries(first, last))
        if not ranges:
            return np.full(len(labels), NEVER), np.full(len(labels), -1)
        if len(ranges) == 1:
            return ranges[0]
        fewest = np.min([np.where(low <= high, low, NEVER) for low, high in ranges], axis=0)
        most = np.max([high for _, high in ranges], axis=0)
        if any((low[low <= high] > 0).any() for low, high in ranges):
            self._check_joined(ranges)
        return fewest, most

    def _check_joined(self, ranges: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> None:
        """Refuse states whose ranges leave a gap, unless no text reaches them with such a length."""
        begin = np.zeros(len(self.rows), np.bool_)
        begin[START] = True
        forward = _Distances(self.rows, begin, backward=False)
        for state in range(START, len(self.rows)):
            spans = sorted((int(low[state]), int(high[state])) for low, high in ranges if low[state] <= high[state])
            reached = max((high for low, high in spans[:1]), default=0)
            for low, high in spans[1:]:
                if low > reached + 1 and forward.nearest[state] < low and forward.farthest[state] > reached:
                    raise GrammarError(_TOO_COMPLEX)
                reached = max(reached, high)


def counted_product(tests: Sequence[CharDfa], bounds: Sequence[int], budget: CompileBudget) -> CountedProduct:
    """Build the product of automata, with intervals of counts that begin at 0 and at `bounds`.

    Raises GrammarError beyond the budget or `MAX_PRODUCT_STATES`.
    """

    def check(num_states: int, steps: int) -> None:
        budget.check(num_states, steps)
        if num_states > MAX_PRODUCT_STATES + 1:
            raise GrammarError("the constraints on one value are too complex in combination")

    # In pairs, and these in pairs again, so that the work does not grow with the square of their number.
    factors = [_factor(length_char_dfa(0, None), [(), ()]), *(_factor(test, [(False,), (True,)]) for test in tests)]
    while len(factors) > 1:
        pairs = [_multiplied(factors[at], factors[at + 1], check) for at in range(0, len(factors) - 1, 2)]
        factors = pairs + factors[2 * len(pairs) :]
    ((alphabet, (rows, ends, truths)),) = factors
    passed = [None, *(truths[number] for number in ends[1:].tolist())]
    cuts = sorted({0, *(min(bound, MAX_COUNT) for bound in bounds)})
    return CountedProduct(alphabet, rows, passed, tuple(cuts))


def _factor(chars: CharDfa, truths: list[Truths]) -> tuple[Alphabet, Factor]:
    return chars.alphabet, (chars.table, chars.accepting.astype(np.int64), truths)


def _multiplied(
    a: tuple[Alphabet, Factor], b: tuple[Alphabet, Factor], check: Callable[[int, int], None]
) -> tuple[Alphabet, Factor]:
    alphabet, in_a, in_b = common_alphabet(a[0], b[0])
    return alphabet, multiplied((a[1][0][:, in_a], *a[1][1:]), (b[1][0][:, in_b], *b[1][1:]), check)


def text_lengths(chars: CharDfa) -> tuple[int, int]:
    """Return the least and greatest number of characters of an automaton's texts; `NEVER` without a limit."""
    distances = _Distances(chars.table, chars.accepting, backward=True)
    return int(distances.nearest[START]), int(distances.farthest[START])


def _windows(row: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Return the maximal ranges of counts that have a label."""
    windows: list[tuple[int, int]] = []
    first = 0
    for last, label in row:
        if label >= 0 and windows and windows[-1][1] == first - 1:
            windows[-1] = windows[-1][0], last
        elif label >= 0:
            windows.append((first, last))
        first = last + 1
    return windows


class _Distances:
    """Numbers of characters between a set of states and each state: to the set (`backward`) or from it."""

    def __init__(self, rows: NDArray[np.int32], ends: NDArray[np.bool_], *, backward: bool) -> None:
        self._ends = ends
        reached = rows != DEAD
        reached[:, 1:] &= rows[:, 1:] != rows[:, :-1]  # neighbouring classes mostly lead to the same state
        sources, labels = np.nonzero(reached)
        targets = rows[sources, labels].astype(np.int64)
        edges = np.sort(sources * len(rows) + targets)
        edges = edges[np.append(True, edges[1:] != edges[:-1])] if len(edges) else edges  # without characters' classes
        self._from, self._to = edges // len(rows), edges % len(rows)
        if not backward:
            self._from, self._to = self._to, self._from

    def _step(self, states: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the states that are one character away from these."""
        found = np.zeros_like(states)
        found[self._from[states[self._to]]] = True
        return found

    @cached_property
    def nearest(self) -> NDArray[np.int64]:
        """Least number of characters, NEVER if there is no way: int64[S]."""
        distance = np.where(self._ends, 0, NEVER)
        frontier, steps = self._ends, 0
        while frontier.any():
            steps += 1
            frontier = self._step(frontier) & (distance == NEVER)
            distance[frontier] = steps
        return distance

    @cached_property
    def farthest(self) -> NDArray[np.int64]:
        """Greatest number of characters, NEVER if unbounded, -1 if there is no way: int64[S]."""
        connected = self.nearest < NEVER
        kept = connected[self._from] & connected[self._to]
        sources, targets = self._from[kept], self._to[kept]
        distance = np.where(self._ends, 0, -1)
        open_edges = np.bincount(sources, minlength=len(distance))
        closed = np.flatnonzero(connected & (open_edges == 0))
        order = np.argsort(targets, kind="stable")
        sources, first = sources[order], np.searchsorted(targets[order], np.arange(len(distance) + 1))
        todo = closed.tolist()
        for state in todo:  # each state after all that follow it
            for source in sources[first[state] : first[state + 1]].tolist():
                distance[source] = max(distance[source], distance[state] + 1)
                open_edges[source] -= 1
                if not open_edges[source]:
                    todo.append(source)
        return np.where(connected & (open_edges > 0), NEVER, np.where(connected, distance, -1))

    def _by_length(self, last: int) -> tuple[list[NDArray[np.bool_]], int]:
        """Return the states at each distance up to `last`, or up to where they repeat, and where the period begins.

        Without repetition the second value is -1. Raises GrammarError beyond `_MAX_VISITS`.
        """
        found: list[NDArray[np.bool_]] = []
        known: dict[bytes, int] = {}
        states = self._ends
        while len(found) <= last:
            key = np.packbits(states).tobytes()
            if key in known:
                return found, known[key]
            if len(found) * (len(self._from) + len(states)) > _MAX_VISITS:
                raise GrammarError(_TOO_COMPLEX)
            known[key] = len(found)
            found.append(states)
            states = self._step(states)
        return found, -1

    def within(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return the states at some distance from `first` to `last`: bool[S]."""
        if first == 0:
            return self.nearest <= min(last, NEVER - 1)
        if last == NEVER:
            return self.farthest >= first
        found, period_begin = self._by_length(last)
        reached = np.zeros_like(self._ends)
        for distance in range(first, min(last, first + len(found)) + 1):
            if distance >= len(found):
                assert period_begin >= 0
                distance = period_begin + (distance - period_begin) % (len(found) - period_begin)
            reached |= found[distance]
        return reached

    def entries(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the least and greatest count n of each state from which n plus some distance is in `first` to `last`.

        The range is empty (least > greatest) where there is none. Raises GrammarError if the counts are no range.
        """
        most = np.where(self.nearest == NEVER, -1, NEVER if last == NEVER else last - self.nearest)
        if first == 0:
            return np.where(most >= 0, 0, NEVER), most
        farthest = self.farthest
        if last != NEVER:
            farthest, gap = self._gaps(last)
            if gap > last - first + 1:
                raise GrammarError(_TOO_COMPLEX)
        fewest = np.where(farthest < 0, NEVER, np.maximum(first - farthest, 0))
        return np.where(most >= 0, fewest, NEVER), most

    def _gaps(self, last: int) -> tuple[NDArray[np.int64], int]:
        """Return the greatest distance of each state up to `last`, and the widest step between two distances of one."""
        found, period_begin = self._by_length(last)
        if period_begin >= 0:
            found = found + found[period_begin:] + found[period_begin:]
        latest = np.full(len(self._ends), -1, np.int64)
        gap = 0
        for distance, states in enumerate(found):
            gap = max(gap, int((distance - latest[states & (latest >= 0)]).max(initial=0)))
            latest[states] = distance
        return (latest, gap) if period_begin < 0 else (self.farthest, gap)
