"""Automata that compare numbers with exponents to given values.

For given digits, an exponent's meaning has few steps: so exponents are read digit by digit only near those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...loops import compiled
from ..budget import INTERPRETED, CompileBudget
from .dfa import DEAD, START
from .syntax.expression import Bytes, Chars, alternation, optional, repeat, sequence

MAX_SCALED = 4  # values that numbers with exponents are compared with; beside more no exponents are read
MAX_PLACES = 6  # digits before the point, and zeros after it, of a number with an exponent
LEAST, MOST = -999, 299  # exponents; readers of doubles would take larger ones for infinite
INSIDE = -1  # the label of a state that no number ends in
# Columns of a table: the digits 0 to 9, a minus, a point, the letter of an exponent, a plus, and all other bytes.
MINUS, POINT, LETTER, PLUS, OTHER = 10, 11, 12, 13, 14
_DIGIT, _E = Chars(((0x30, 0x39),)), Chars(((0x45, 0x45), (0x65, 0x65)))
_POWER = sequence(optional(alternation([sequence(Chars(((0x30, 0x32),)), _DIGIT), _DIGIT])), _DIGIT)
LARGE_EXPONENT = sequence(_E, optional(Bytes(b"+")), _POWER)
EXPONENT = sequence(
    _E, alternation([sequence(Bytes(b"-"), repeat(_DIGIT, 1, 3)), sequence(optional(Bytes(b"+")), _POWER)])
)

Steps = tuple[tuple[int, int], ...]  # the exponents from which on a label is that of a number, ascending from `LEAST`


def steps_of(changes: Iterable[tuple[int, int]]) -> Steps:
    """Return the steps of a function of the exponent, given by ascending exponents and the labels from there on."""
    found: list[tuple[int, int]] = []
    for exponent, label in changes:
        if exponent <= LEAST:
            found = [(LEAST, label)]
        elif exponent <= MOST and found[-1][1] != label:
            found.append((exponent, label))
    return tuple(found)


class ExponentStates:
    """Adds the states after a number's digits to the rows of an automaton, and the labels of its states."""

    def __init__(self, rows: list[list[int]], labels: list[int], *, negative: bool = True) -> None:
        """`negative`: exponents may be negative."""
        self._rows, self._labels, self._negative = rows, labels, negative
        self._after_letters: dict[Steps, int] = {}
        self._ends: dict[tuple[bool, int, bool, int], int] = {}

    def state(self, label: int = INSIDE) -> int:
        """Add a state without transitions."""
        self._rows.append([DEAD] * (OTHER + 1))
        self._labels.append(label)
        return len(self._rows) - 1

    def after_letter(self, steps: Steps) -> int:
        """Return the state after the letter of an exponent, of a number with these steps."""
        found = self._after_letters.get(steps)
        if found is None:
            labels = [label for _, label in steps]
            starts = tuple(exponent for exponent, _ in steps)
            plus = self._added(starts, False, labels)
            found = self._after_letters[steps] = self.state()
            self._rows[found][:10], self._rows[found][PLUS] = self._rows[plus][:10], plus
            if self._negative:
                self._rows[found][MINUS] = self._added(starts, True, labels)
        return found

    def _added(self, starts: tuple[int, ...], negative: bool, labels: list[int]) -> int:
        """Add the states of exponents of one sign, and return the one before their first digit."""
        table, own, ends = _digits_of(starts, negative)
        targets = [self._end(negative, size, bool(may_grow), labels[label]) for size, may_grow, label in ends]
        first = len(self._rows)
        numbers = np.array([*range(first, first + len(table)), *targets, DEAD])
        self._rows += numbers[table].tolist()
        self._labels += [INSIDE if label < 0 else labels[label] for label in own]
        return first

    def _end(self, negative: bool, size: int, may_grow: bool, label: int) -> int:
        """Return the state after so many digits of an exponent, all continuations of which have one label."""
        key = (negative, size, may_grow, label)
        found = self._ends.get(key)
        if found is None:
            found = self._ends[key] = self.state(label)
            if size == 1:
                long, short = self._end(negative, 2, True, label), self._end(negative, 2, False, label)
                self._rows[found][:10] = [long if may_grow else short] * 10
            elif may_grow:
                self._rows[found][:10] = [self._end(negative, 3, False, label)] * 10
        return found


@lru_cache(maxsize=1024)
def _digits_of(starts: tuple[int, ...], negative: bool) -> tuple[NDArray[np.int64], list[int], list[list[int]]]:
    """Return the states of exponents without their sign. The n-th label is that of the exponents from starts[n] on.

    They are a table over all columns, their own labels (-1: none), and the ends that the numbers behind those of the
    states mean: how many digits have come, whether three may, and the label of all exponents that may follow. The
    number behind those of the ends is that of the dead state.
    """
    table, own, ends = _digit_states(np.array(starts, np.int64), negative, -LEAST if negative else MOST)
    return table, own.tolist(), ends.tolist()


@compiled("(int64[::1], boolean, int64)")
def _label_at(starts: NDArray[np.int64], negative: bool, digits: int) -> int:
    """Return the label of an exponent, given without its sign."""
    found = -1
    while found + 1 < len(starts) and starts[found + 1] <= (-digits if negative else digits):
        found += 1
    return found


@compiled("(int64[::1], boolean, int64)")
def _digit_states(
    starts: NDArray[np.int64], negative: bool, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Compute what `_digits_of` returns, for exponents up to `most`."""
    table, ends = np.full((111, OTHER + 1), -1), np.zeros((6 * len(starts), 3), np.int64)
    values, sizes = np.zeros(111, np.int64), np.zeros(111, np.int64)
    own = np.full(111, -1)
    number, num_ends, at = 1, 0, 0
    while at < number:
        size = sizes[at] + 1
        for digit in range(10):
            value = 10 * values[at] + digit
            if value > most:
                break
            label, first, after, is_one = _label_at(starts, negative, value), value, value + 1, True
            for _ in range(3 - size):
                first, after = 10 * first, 10 * after
                if first > most:
                    break
                last = min(after - 1, most)
                is_one &= label == _label_at(starts, negative, first) == _label_at(starts, negative, last)
            if not is_one:
                values[number], sizes[number], own[number] = value, size, label
                table[at, digit] = number
                number += 1
                continue
            may_grow = int(size < 3 and value * 10 ** (3 - size) <= most)
            end = 0
            while end < num_ends and (ends[end, 0] != size or ends[end, 1] != may_grow or ends[end, 2] != label):
                end += 1
            if end == num_ends:
                ends[end, 0], ends[end, 1], ends[end, 2] = size, may_grow, label
                num_ends += 1
            table[at, digit] = -2 - end
        at += 1
    for state in range(number):
        for column in range(OTHER + 1):
            target = table[state, column]
            if target < 0:
                table[state, column] = number + (num_ends if target == -1 else -2 - target)
    return table[:number], own[:number], ends[:num_ends]


def scaled_positions(values: Sequence[Decimal], integers: bool) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Build the automaton of `decimal_positions` for numbers with exponents too.

    An exponent may follow at most `MAX_PLACES` digits before the point, and zeros after it. `integers`: after a point
    only zeros are read, and no exponent is negative. Raises GrammarError beyond the budget.
    """
    rows, positions = [[DEAD] * (OTHER + 1)], [INSIDE]
    exponents = ExponentStates(rows, positions, negative=not integers)
    start, minus = exponents.state(), exponents.state()
    assert start == START
    below = sum(value < 0 for value in values)
    to_zero = below + (0 in values)
    zero = 2 * below + (0 in values)
    positive = [value for value in values if value > 0]
    negative = [value.copy_negate() for value in reversed(values) if value < 0]  # which does not round
    above = [2 * to_zero + at for at in range(2 * len(positive) + 1)]
    under = [2 * below - at for at in range(2 * below + 1)]
    for state, magnitudes, meaning in ((start, positive, above), (minus, negative, under)):
        _ScaledStates(exponents, rows, magnitudes, meaning, zero, integers).add(state)
    rows[start][MINUS] = minus
    return np.array(rows, np.int32), np.array(positions, np.int32)


class _ScaledStates:
    """States of the numbers of one sign, compared with ascending magnitudes.

    A magnitude is the power of ten of its first digit and its digits, which are compared like words. `_words` are the
    different digits of the magnitudes, sorted. The place of digits is 2n + 1 if they are the n-th word, with zeros or
    without, and 2n between the words before it and it.
    """

    def __init__(
        self,
        exponents: ExponentStates,
        rows: list[list[int]],
        values: list[Decimal],
        meaning: list[int],
        zero: int,
        integers: bool,
    ) -> None:
        """`meaning` is the position of a number by its position among the magnitudes; `zero` is that of zero."""
        self._exponents, self._rows, self._meaning, self._zero = exponents, rows, meaning, zero
        self._integers = integers
        words = ["".join(map(str, value.as_tuple().digits)).rstrip("0") for value in values]
        self._words = sorted(set(words))
        self._magnitudes = [
            (value.adjusted(), 2 * self._words.index(word) + 1) for value, word in zip(values, words, strict=True)
        ]
        powers = [power for power, _ in self._magnitudes]
        self._most = max([MAX_PLACES, *(power + 1 for power in powers)])  # digits before the point that are counted
        self._least = max([MAX_PLACES + 1, *(-power for power in powers)])  # places after it
        self._known: dict[tuple[object, ...], int] = {}
        self._places: dict[str, tuple[int, bool]] = {}  # of digits
        self._todo: list[tuple[str, int, str, int]] = []  # what is read, power, digits, state
        self._budget = CompileBudget()

    def add(self, start: int) -> None:
        """Add the states after a start."""
        rows, num_charged = self._rows, len(self._rows)
        rows[start][0] = self._zeros(0)
        for digit in range(1, 10):
            rows[start][digit] = self._state("whole", 0, str(digit))
        while self._todo:
            self._budget.check(len(rows), (len(rows) - num_charged) * INTERPRETED)
            num_charged = len(rows)
            kind, power, digits, state = self._todo.pop()
            for digit in range(1 if self._integers and kind != "whole" else 10):
                after = power + (kind == "whole")
                rows[state][digit] = self._state("whole" if kind == "whole" else "fraction", after, digits + str(digit))
            if kind == "whole":
                rows[state][POINT] = self._state("point", power, digits)

    def _zeros(self, num_zeros: int) -> int:
        """Return the state after a zero, or after a point and so many zeros."""
        exponents, rows = self._exponents, self._rows
        whole, point = exponents.state(self._zero), exponents.state()
        rows[whole][POINT] = point
        after_letter = exponents.after_letter(((LEAST, self._zero),))
        rows[whole][LETTER] = after_letter
        before = point
        for places in range(1, self._least + 2):
            is_last = places == self._least + 1 or self._integers or not self._magnitudes
            if not self._integers:
                for digit in range(1, 10):
                    rows[before][digit] = self._state("fraction", -places, str(digit))
            state = exponents.state(self._zero)
            rows[before][0] = state
            rows[state][LETTER] = after_letter
            if is_last:
                rows[state][0] = state
                if not self._integers:
                    rows[state][1:10] = [self._state("fraction", -places - 1, "1")] * 9
                break
            before = state
        return whole

    def _state(self, kind: str, power: int, digits: str) -> int:
        """Return the state of a number whose first digit stands for a power of ten."""
        if digits not in self._places:
            self._places[digits] = self._place(digits)
        place, begins = self._places[digits]
        if not self._magnitudes:
            power = 0
        elif power >= self._most or power < -self._least:
            power, place, begins = self._most if power > 0 else -self._least - 1, 0, False
        key = (kind, power, place, digits if begins else "")
        found = self._known.get(key)
        if found is None:
            state = self._exponents.state(INSIDE if kind == "point" else self._position(power, place))
            if kind != "point" and (not self._magnitudes or -MAX_PLACES - 1 <= power < MAX_PLACES):
                self._rows[state][LETTER] = self._exponents.after_letter(self._steps(power, place))
            self._todo.append((kind, power, digits, state))
            found = self._known[key] = state
        return found

    def _place(self, digits: str) -> tuple[int, bool]:
        """Return the place of digits, and whether further ones matter: they begin a word, or are one before zeros."""
        word = digits.rstrip("0")
        at = bisect_left(self._words, word)
        begins = any(len(word) > len(digits) and word.startswith(digits) for word in self._words)
        return 2 * at + (at < len(self._words) and self._words[at] == word), begins

    def _position(self, power: int, place: int) -> int:
        """Return the position of a number whose first digit stands for a power of ten."""
        at = bisect_left(self._magnitudes, (power, place))
        is_equal = at < len(self._magnitudes) and self._magnitudes[at] == (power, place)
        return self._meaning[2 * at + is_equal]

    def _steps(self, power: int, place: int) -> Steps:
        """Return the positions of a number by its exponent."""
        changes = {LEAST, *(at - power + more for at, _ in self._magnitudes for more in (0, 1))}
        return steps_of((exponent, self._position(power + exponent, place)) for exponent in sorted(changes))
