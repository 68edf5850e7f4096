"""Ranges of decimal numbers, and their automata: the digits are compared one by one with those of the bounds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import numpy as np

from ..budget import INTERPRETED, CompileBudget
from .dfa import DEAD, Dfa, trimmed_dfa
from .expression import Bytes, Chars, alternation, optional, repeat, sequence

_DIGIT, DIGITS = Chars(((0x30, 0x39),)), repeat(Chars(((0x30, 0x39),)), 1, None)
POSITIVE = sequence(Chars(((0x31, 0x39),)), repeat(_DIGIT, 0, None))
NATURAL = alternation([Bytes(b"0"), POSITIVE])
FRACTION = sequence(Bytes(b"."), DIGITS)
INTEGER = sequence(optional(Bytes(b"-")), NATURAL)
# Larger exponents would be read as infinite by readers of doubles.
_POWER = sequence(optional(alternation([sequence(Chars(((0x30, 0x32),)), _DIGIT), _DIGIT])), _DIGIT)
LARGE_EXPONENT = sequence(Chars(((0x45, 0x45), (0x65, 0x65))), optional(Bytes(b"+")), _POWER)
EXPONENT = sequence(
    Chars(((0x45, 0x45), (0x65, 0x65))),
    alternation([sequence(Bytes(b"-"), repeat(_DIGIT, 1, 3)), sequence(optional(Bytes(b"+")), _POWER)]),
)
_NOT_ZERO = alternation(
    [
        sequence(POSITIVE, optional(FRACTION)),
        sequence(Bytes(b"0."), repeat(Bytes(b"0"), 0, None), Chars(((0x31, 0x39),)), repeat(_DIGIT, 0, None)),
    ]
)
# Without exponents and `-0`.
PLAIN_NUMBER = alternation([sequence(NATURAL, optional(FRACTION)), sequence(Bytes(b"-"), _NOT_ZERO)])
NUMBER = sequence(INTEGER, optional(FRACTION), optional(EXPONENT))
# Classes of bytes: the digits 0 to 9, a minus, a point, and all others.
_MINUS, _POINT, _OTHER = 10, 11, 12
_CLASS_OF = np.full(256, _OTHER, np.uint8)
_CLASS_OF[list(b"0123456789-.")] = np.arange(12)
_ZERO = Decimal(0)


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
    cuts, counts = _coverage(ranges, [])
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


def _coverage(ranges: Iterable[NumberRange], further: Sequence[Decimal]) -> tuple[list[Decimal], list[int]]:
    """Cut the numbers at all bounds and at `further` ones; return the cuts, and how many ranges hold each region.

    Region 2i + 1 is the number cuts[i] itself, region 2i are the numbers before it, and the last region those after.
    """
    kept = list(ranges)
    cuts = sorted({*further, *(bound.value for each in kept for bound in each if bound is not None)})
    number = {value: 2 * index + 1 for index, value in enumerate(cuts)}
    changes = [0] * (2 * len(cuts) + 2)
    for lower, upper in kept:
        first = 0 if lower is None else number[lower.value] + lower.strict
        last = 2 * len(cuts) if upper is None else number[upper.value] - upper.strict
        if first <= last:
            changes[first] += 1
            changes[last + 1] -= 1
    return cuts, list(accumulate(changes))[:-1]


Places = Literal["any", "zeros", "none"]


def in_ranges(ranges: Iterable[NumberRange], budget: CompileBudget, places: Places = "any") -> Dfa:
    """Return the decimals in some range, without exponents. States are linear in the digits of all bounds.

    `places` says which digits may come after a point: "zeros" and "none" allow integers only, and no -0. Raises
    GrammarError beyond the budget.
    """
    cuts, counts = _coverage(ranges, [_ZERO])
    accepted = [count > 0 for count in counts]
    zero = bisect_left(cuts, _ZERO)
    builder = _RangeBuilder(
        _Magnitudes(cuts[zero:], accepted[2 * zero + 1 :]),
        # Of the numbers with a minus, -0 is the first and is equal to 0.
        _Magnitudes([value.copy_negate() for value in cuts[zero::-1]], accepted[2 * zero + 1 :: -1]),
        places,
    )
    return builder.build(budget)


class _Magnitudes:
    """Bounds of the numbers of one sign, without it, in ascending order from 0; and which regions are accepted.

    `accepted[2i]` is for the i-th bound itself, accepted[2i + 1] for the numbers after it.
    """

    def __init__(self, bounds: Sequence[Decimal], accepted: list[bool]) -> None:
        self.accepted = accepted
        written = [format(value.copy_abs(), "f").partition(".") for value in bounds]  # exact; `abs` would round
        self.wholes = [whole for whole, _, _ in written]
        self.fractions = [fraction.rstrip("0") for _, _, fraction in written]
        lengths = list(map(len, self.wholes))
        # Bounds by the digits of their integer parts: (digits, first bound, end).
        self.groups = [(n, bisect_left(lengths, n), bisect_right(lengths, n)) for n in sorted(set(lengths))]
        # Of each number of digits, what is accepted beyond all bounds with at most so many digits.
        self.after = [accepted[2 * bisect_right(lengths, n) - 1] if n else False for n in range(lengths[-1] + 1)]
        self.changes = list(accumulate((a != b for a, b in pairwise(accepted)), initial=0))

    def settled(self, first: int, end: int) -> bool | None:
        """Return whether numbers after the bounds before `first` and before the bound `end` are accepted, if alike."""
        low, high = max(2 * first - 1, 0), min(2 * end - 1, len(self.accepted) - 1)
        return self.accepted[low] if self.changes[low] == self.changes[high] else None

    def is_accepted(self, first: int, place: int) -> bool:
        """Return whether a number is accepted that agrees with the bound `first` up to a decimal place, and ends."""
        is_equal = len(self.fractions[first]) <= place
        return self.accepted[2 * first if is_equal else 2 * first - 1]


class _Agreeing(NamedTuple):
    """Bounds that agree with the digits so far: `first` to `end` without it."""

    first: int
    end: int


class _Whole(NamedTuple):
    """Inside the integer part: the sign, the number of digits, and what they mean for each length in `groups`.

    For the integer part 0, which no digit may follow, the number is 0.
    """

    negative: bool
    digits: int
    by_length: tuple[_Agreeing | bool, ...]


class _Fraction(NamedTuple):
    """After the point: the sign, the number of digits after it, and the bounds that agree with them so far."""

    negative: bool
    place: int
    bounds: _Agreeing


class _Known(NamedTuple):
    """It is known whether the number is accepted: inside its integer part, at the point or after it."""

    accepted: bool
    where: str


_State = _Whole | _Fraction | _Known | str


class _RangeBuilder:
    """Rows of the automaton of the numbers in some ranges, state by state from the start."""

    def __init__(self, positive: _Magnitudes, negative: _Magnitudes, places: Places) -> None:
        self._sides, self._places = (positive, negative), places

    def build(self, budget: CompileBudget) -> Dfa:
        """Return the automaton. Raises GrammarError beyond the budget."""
        numbers: dict[_State, int] = {"start": 1}
        keys: list[_State] = ["start"]
        rows, accepting = [[DEAD] * 13], [False]
        for state in keys:
            budget.check(len(keys), 12 * INTERPRETED)
            row = [DEAD] * 13
            for label, target in self._following(state):
                if target not in numbers:
                    numbers[target] = len(numbers) + 1
                    keys.append(target)
                row[label] = numbers[target]
            rows.append(row)
            accepting.append(self._accepts(state))
        return trimmed_dfa(np.array(rows, np.int32), _CLASS_OF, np.array(accepting))

    def _following(self, state: _State) -> Iterable[tuple[int, _State]]:
        if isinstance(state, str):
            negative = state == "minus"
            first = 1 if negative and self._places != "any" else 0
            yield from ((digit, self._first_digit(negative, digit)) for digit in range(first, 10))
            if not negative:
                yield _MINUS, "minus"
        elif isinstance(state, _Known):
            if state.where in ("zeros", "zeros' point"):
                yield 0, _Known(state.accepted, "zeros")
            elif state.where != "zero":
                where = "whole" if state.where == "whole" else "fraction"
                yield from ((digit, _Known(state.accepted, where)) for digit in range(10))
            if state.where in ("zero", "whole"):
                yield from self._at_point(state.accepted, _Known(state.accepted, "point"))
        elif isinstance(state, _Fraction):
            yield from ((digit, self._next_place(state, digit)) for digit in range(10))
        else:
            if state.digits:
                yield from ((digit, self._next_digit(state, digit)) for digit in range(10))
            bounds = self._of_length(state)
            point = _Known(bounds, "point") if isinstance(bounds, bool) else _Fraction(state.negative, 0, bounds)
            yield from self._at_point(self._accepts(state), point)

    def _accepts(self, state: _State) -> bool:
        match state:
            case str():
                return False
            case _Known(accepted, where):
                return accepted and where not in ("point", "zeros' point")
            case _Fraction(negative, place, bounds):
                return place > 0 and self._sides[negative].is_accepted(bounds.first, place)
            case _Whole(negative):
                found = self._of_length(state)
                return found if isinstance(found, bool) else self._sides[negative].is_accepted(found.first, 0)

    def _of_length(self, state: _Whole) -> _Agreeing | bool:
        """Return what the digits of an integer part mean if no more follow."""
        side, digits = self._sides[state.negative], max(state.digits, 1)
        rest = len(side.groups) - len(state.by_length)
        if state.by_length and side.groups[rest][0] == digits:
            return state.by_length[0]
        return side.after[min(digits, len(side.after) - 1)]

    def _first_digit(self, negative: bool, digit: int) -> _State:
        side = self._sides[negative]
        start = tuple(_Agreeing(first, end) for _, first, end in side.groups)
        if digit:
            return self._next_digit(_Whole(negative, 0, start), digit)
        found = self._narrowed(side, start[0], side.wholes, 0, 0)
        longer = (False,) * (len(start) - 1)
        return _Known(found, "zero") if isinstance(found, bool) else _Whole(negative, 0, (found, *longer))

    def _next_digit(self, state: _Whole, digit: int) -> _State:
        side = self._sides[state.negative]
        skipped = len(side.groups) - len(state.by_length)
        longer = [
            found if isinstance(found, bool) else self._narrowed(side, found, side.wholes, state.digits, digit)
            for (length, _, _), found in zip(side.groups[skipped:], state.by_length, strict=True)
            if length > state.digits
        ]
        digits = state.digits + 1
        beyond = side.after[digits:] or side.after[-1:]
        if all(found is beyond[0] for found in (*longer, *beyond)):
            return _Known(beyond[0], "whole")
        return _Whole(state.negative, digits, tuple(longer))

    def _at_point(self, accepted: bool, point: _State) -> Iterable[tuple[int, _State]]:
        """Yield the transition at the point after an integer part, which is a number that is accepted or not."""
        if self._places != "none":
            yield _POINT, _Known(accepted, "zeros' point") if self._places == "zeros" else point

    def _next_place(self, state: _Fraction, digit: int) -> _State:
        side, place = self._sides[state.negative], state.place
        found = self._narrowed(side, state.bounds, side.fractions, place, digit)
        if isinstance(found, bool):
            return _Known(found, "fraction")
        # After the last digit of a bound only zeros agree with it.
        longest = max(len(side.fractions[found.first]), len(side.fractions[found.end - 1]), 1)
        return _Fraction(state.negative, place + 1 if found.end - found.first > 1 else min(place + 1, longest), found)

    @staticmethod
    def _narrowed(side: _Magnitudes, bounds: _Agreeing, written: list[str], place: int, digit: int) -> _Agreeing | bool:
        """Return the bounds whose next digit is this one too, or what is known of the number."""

        def digit_of(number: int) -> int:
            return int(written[number][place]) if place < len(written[number]) else 0

        inside = range(bounds.first, bounds.end)
        first = bounds.first + bisect_left(inside, digit, key=digit_of)
        end = bounds.first + bisect_right(inside, digit, key=digit_of)
        known = side.settled(first, end)
        return _Agreeing(first, end) if known is None else known
