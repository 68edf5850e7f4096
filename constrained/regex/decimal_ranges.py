"""Ranges of decimal numbers, and their automata: the digits are compared one by one with those of the bounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, CompileBudget
from .dfa import DEAD, START, Dfa, trimmed_dfa
from .exponents import EXPONENT, INSIDE, MAX_SCALED, MINUS, MOST, OTHER, POINT, scaled_positions
from .syntax.expression import Bytes, Chars, alternation, optional, repeat, sequence

_DIGIT, _DIGITS = Chars(((0x30, 0x39),)), repeat(Chars(((0x30, 0x39),)), 1, None)
POSITIVE = sequence(Chars(((0x31, 0x39),)), repeat(_DIGIT, 0, None))
NATURAL = alternation([Bytes(b"0"), POSITIVE])
FRACTION = sequence(Bytes(b"."), _DIGITS)
INTEGER = sequence(optional(Bytes(b"-")), NATURAL)
_NOT_ZERO = alternation(
    [
        sequence(POSITIVE, optional(FRACTION)),
        sequence(Bytes(b"0."), repeat(Bytes(b"0"), 0, None), Chars(((0x31, 0x39),)), repeat(_DIGIT, 0, None)),
    ]
)
# Without exponents and `-0`.
PLAIN_NUMBER = alternation([sequence(NATURAL, optional(FRACTION)), sequence(Bytes(b"-"), _NOT_ZERO)])
NUMBER = sequence(INTEGER, optional(FRACTION), optional(EXPONENT))
CLASS_OF = np.full(256, OTHER, np.uint8)
CLASS_OF[list(b"0123456789-.e+")] = np.arange(OTHER)
CLASS_OF[ord("E")] = CLASS_OF[ord("e")]


@dataclass(frozen=True)
class NumberBound:
    """Bound of a range, which includes `value` unless it is `strict`."""

    value: Decimal
    strict: bool


class NumberRange(NamedTuple):
    """The numbers between two bounds, which are None where there is no bound."""

    lower: NumberBound | None
    upper: NumberBound | None


def covered(ranges: Iterable[NumberRange], least: int = 1, most: int | None = None) -> tuple[NumberRange, ...]:
    """Return the numbers that are in `least` to `most` of some ranges, as disjoint ranges in ascending order."""
    cuts, counts = _coverage(ranges)
    found: list[NumberRange] = []
    begin: NumberBound | None = None
    is_inside = False
    for region, count in enumerate([*counts, least - 1]):
        wanted = count >= least and (most is None or count <= most)
        if wanted and not is_inside:
            begin = None if region == 0 else NumberBound(cuts[(region - 1) // 2], region % 2 == 0)
        elif is_inside and not wanted:
            last = region - 1
            end = None if last == len(counts) - 1 else NumberBound(cuts[last // 2], last % 2 == 0)
            found.append(NumberRange(begin, end))
        is_inside = wanted
    return tuple(found)


def _coverage(ranges: Iterable[NumberRange]) -> tuple[list[Decimal], list[int]]:
    """Cut the numbers at all bounds; return the cuts, and how many ranges hold each region.

    Region 2i + 1 is the number cuts[i] itself, region 2i are the numbers before it, and the last region those after.
    """
    kept = list(ranges)
    cuts = sorted({bound.value for each in kept for bound in each if bound is not None})
    number = {value: 2 * index + 1 for index, value in enumerate(cuts)}
    changes = [0] * (2 * len(cuts) + 2)
    for lower, upper in kept:
        first = 0 if lower is None else number[lower.value] + lower.strict
        last = 2 * len(cuts) if upper is None else number[upper.value] - upper.strict
        if first <= last:
            changes[first] += 1
            changes[last + 1] -= 1
    return cuts, list(accumulate(changes))[:-1]


Positions = tuple[NDArray[np.int32], NDArray[np.int32]]  # as `decimal_positions` returns


def in_ranges(ranges: Iterable[NumberRange], compared: Callable[[Sequence[Decimal]], Positions]) -> Dfa:
    """Return the numbers in some range, as an automaton reads them that compares numbers with values.

    States are linear in the digits of all bounds. Raises GrammarError beyond the budget.
    """
    cuts, counts = _coverage(ranges)
    table, positions = compared(cuts)
    is_covered = np.array([*(count > 0 for count in counts), False])  # the last one for states inside a number
    return trimmed_dfa(table, CLASS_OF, is_covered[positions])


def number_positions(values: Sequence[Decimal], integers: bool = False) -> Positions:
    """Build the automaton of `scaled_positions` of a few values, or that of `decimal_positions` of many."""
    return scaled_positions(values, integers) if takes_exponents(values) else decimal_positions(values)


def takes_exponents(values: Collection[Decimal]) -> bool:
    """Return True if numbers with exponents are compared with these values: a few, below what any exponent reaches."""
    return len(values) <= MAX_SCALED and all(value.adjusted() < MOST for value in values)


def decimal_positions(values: Sequence[Decimal]) -> Positions:
    """Build an automaton that compares a decimal without exponent with all of some distinct, ascending values.

    Returns the table int32[S, C] over the columns `CLASS_OF`, and for each state the position of its number: int32[S].
    Position 2n + 1 is that of the n-th value, 2n is between the values before it and it; a state inside a number has
    none, but -1. States are linear in the digits of all values. Raises GrammarError beyond the budget.
    """
    builder = _PositionBuilder()
    start, minus = builder.state(), builder.state()
    assert start == START
    negative = [_Magnitude(value) for value in reversed(values) if value <= 0]
    positive = [_Magnitude(value) for value in values if value >= 0]
    num_below, num_to_zero = len(values) - len(positive), len(negative)
    # Zero has both signs.
    builder.add_magnitudes(start, positive, lambda position: 2 * num_below + position)
    builder.add_magnitudes(minus, negative, lambda position: 2 * num_to_zero - position)
    builder.rows[start][MINUS] = minus
    return np.array(builder.rows, np.int32), np.array(builder.positions, np.int32)


class _Magnitude:
    """Digits of a number without its sign: the integer part, and the fraction without zeros at its end."""

    def __init__(self, value: Decimal) -> None:
        whole, _, fraction = format(value.copy_abs(), "f").partition(".")
        self.whole, self.fraction = int(whole), fraction.rstrip("0")


class _PositionBuilder:
    """Rows of the automaton, and for each state the position of its number."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = [[DEAD] * (OTHER + 1)]
        self.positions: list[int] = [INSIDE]
        self._budget = CompileBudget()
        self._num_charged = 0

    def state(self, position: int = INSIDE) -> int:
        self.rows.append([DEAD] * (OTHER + 1))
        self.positions.append(position)
        return len(self.rows) - 1

    def charge(self) -> None:
        """Charge for the states since the last call. Raises GrammarError beyond the budget."""
        self._budget.check(len(self.rows), (len(self.rows) - self._num_charged) * INTERPRETED)
        self._num_charged = len(self.rows)

    def add_magnitudes(self, start: int, values: list[_Magnitude], meaning: Callable[[int], int]) -> None:
        """Add the numbers without a sign, from `start` on, compared with ascending magnitudes.

        `meaning` is what a position among the magnitudes says about the numbers.
        """
        _MagnitudeStates(self, values, meaning).add(start)


class _MagnitudeStates:
    """States of the numbers without a sign.

    `_prefixes[k]` are the first k digits that integer parts of the values have, sorted. The digits of an integer part
    are compared with those of the same number: a place 2n + 1 is that of the n-th prefix, 2n is between the prefixes
    before it and it. The place of the digits decides all that follows, whatever the length of the number.
    """

    def __init__(self, builder: _PositionBuilder, values: list[_Magnitude], meaning: Callable[[int], int]) -> None:
        self._builder, self._meaning = builder, meaning
        self._wholes = [value.whole for value in values]
        self._fractions = [value.fraction for value in values]
        digits = [str(whole) for whole in dict.fromkeys(self._wholes) if whole]
        length = max(map(len, digits), default=0)
        found: list[set[int]] = [set() for _ in range(length + 1)]
        for each in digits:
            for size in range(1, len(each) + 1):
                found[size].add(int(each[:size]))
        self._prefixes = [sorted(prefixes) for prefixes in found]
        self._places: dict[tuple[int, int], int] = {}  # states by the number of digits and their place
        self._todo: list[tuple[int, int]] = []
        self._settled: dict[int, tuple[int, int]] = {}

    def add(self, start: int) -> None:
        rows, longer = self._builder.rows, 0
        rows[start][0] = self._whole(0)
        for digit in range(1, 10):
            rows[start][digit] = self._after(1, digit)
        while self._todo:
            self._builder.charge()
            size, place = key = self._todo.pop()
            state, prefixes = self._places[key], self._prefixes[size] if size < len(self._prefixes) else []
            if size >= len(self._prefixes) - 1:  # more digits than any value has
                longer = longer or self._longer()
                rows[state][:10] = [longer] * 10
            elif place % 2:
                rows[state][:10] = [self._after(size + 1, 10 * prefixes[place // 2] + digit) for digit in range(10)]
            else:
                rows[state][:10] = [self._after(size + 1, 10 * self._first_at(size, place))] * 10

    def _first_at(self, size: int, place: int) -> int:
        """Return the first digits at a place between prefixes."""
        return self._prefixes[size][place // 2 - 1] + 1 if place else 10 ** (size - 1)

    def _after(self, size: int, digits: int) -> int:
        """Return the state after so many digits of the integer part."""
        prefixes = self._prefixes[size] if size < len(self._prefixes) else []
        at = bisect_left(prefixes, digits)
        key = size, 2 * at + (at < len(prefixes) and prefixes[at] == digits)
        if key not in self._places:
            self._places[key] = self._whole(digits)
            self._todo.append(key)
        return self._places[key]

    def _longer(self) -> int:
        """Add the states of the numbers that have more digits than any value."""
        position = 2 * len(self._wholes)
        state = self._builder.state(self._meaning(position))
        self._builder.rows[state][:10], self._builder.rows[state][POINT] = [state] * 10, self._point(position)
        return state

    def _whole(self, digits: int) -> int:
        """Add the state after an integer part, which may end or go on with a fraction, and the states of that."""
        first, last = bisect_left(self._wholes, digits), bisect_right(self._wholes, digits)
        is_value = first < last and not self._fractions[first]
        state = self._builder.state(self._meaning(2 * first + is_value))
        self._builder.rows[state][POINT] = self._add_fractions(first, last) if first < last else self._point(2 * first)
        return state

    def _point(self, position: int) -> int:
        """Return the state after the point of a number whose position is known."""
        return self._known(position)[0]

    def _digits(self, position: int) -> int:
        """Return the state inside the fraction of a number whose position is known."""
        return self._known(position)[1]

    def _known(self, position: int) -> tuple[int, int]:
        found = self._settled.get(position)
        if found is None:
            rows = self._builder.rows
            point, digits = self._builder.state(), self._builder.state(self._meaning(position))
            rows[point][:10] = rows[digits][:10] = [digits] * 10
            found = self._settled[position] = point, digits
        return found

    def _add_fractions(self, first: int, last: int) -> int:
        """Add the fractions after the integer part of the values from `first` up to `last`; return the first state."""
        values, rows = self._fractions[first:last], self._builder.rows
        states = {"": self._builder.state()}
        todo = [""]
        for value in values:
            self._builder.charge()
            for size in range(1, len(value) + 1):
                if value[:size] not in states:
                    states[value[:size]] = self._builder.state(self._meaning(self._among(values, first, value[:size])))
                    todo.append(value[:size])
        for digits in todo:
            position = self._among(values, first, digits)
            zeros = 0
            if position % 2 and digits + "0" not in states:  # equal to a value, however many zeros follow
                zeros = self._builder.state(self._meaning(position))
                rows[zeros][:10] = [zeros, *[self._digits(position + 1)] * 9]
            for digit, letter in enumerate("0123456789"):
                if digit == 0 and zeros:
                    target = zeros
                else:
                    target = states.get(digits + letter) or self._digits(
                        2 * (first + bisect_left(values, digits + letter))
                    )
                rows[states[digits]][digit] = target
        return states[""]

    def _among(self, values: list[str], first: int, digits: str) -> int:
        """Return the position of a number with these digits of the fraction."""
        value = digits.rstrip("0")
        at = bisect_left(values, value)
        return 2 * (first + at) + (at < len(values) and values[at] == value)
