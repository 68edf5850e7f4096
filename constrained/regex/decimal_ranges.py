"""Automata of decimal numbers within bounds: the digits are compared one by one with those of the bound."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from .dfa import DEAD, START, Dfa, trimmed_dfa
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
PLAIN_INTEGER = alternation([NATURAL, sequence(Bytes(b"-"), POSITIVE)])
NUMBER = sequence(INTEGER, optional(FRACTION), optional(EXPONENT))
# Classes of bytes: the digits 0 to 9, a minus, a point, and all others.
_MINUS, _POINT, _OTHER = 10, 11, 12
_CLASS_OF = np.full(256, _OTHER, np.uint8)
_CLASS_OF[list(b"0123456789-.")] = np.arange(12)
_BELOW, _EQUAL, _ABOVE = -1, 0, 1


@dataclass(frozen=True)
class NumberBound:
    """Bound of a range, which includes `value` unless it is `strict`."""

    value: Decimal
    strict: bool


def at_least(bound: NumberBound) -> Dfa:
    """Return the decimals of at least a bound, without exponents. States are linear in the digits of the bound."""
    return _decimals(bound.value, (_ABOVE,) if bound.strict else (_EQUAL, _ABOVE))


def at_most(bound: NumberBound) -> Dfa:
    """Return the decimals of at most a bound, without exponents."""
    return _decimals(bound.value, (_BELOW,) if bound.strict else (_BELOW, _EQUAL))


def _decimals(value: Decimal, wanted: tuple[int, ...]) -> Dfa:
    """Return the decimals whose relation to a value is one of `wanted`."""
    builder = _ComparisonBuilder()
    start, minus = builder.state(), builder.state()
    assert start == START
    size = _Magnitude(value.copy_abs())  # exact; `abs` would round to the digits of the context
    # Of the sign that the value does not have, all numbers are on one side of it. Zero has both signs.
    builder.add_magnitudes(start, size if value >= 0 else None, {_BELOW: _BELOW, _EQUAL: _EQUAL, _ABOVE: _ABOVE})
    builder.add_magnitudes(minus, size if value <= 0 else None, {_BELOW: _ABOVE, _EQUAL: _EQUAL, _ABOVE: _BELOW})
    builder.rows[start][_MINUS] = minus
    accepting = np.array([relation in wanted for relation in builder.relations])
    return trimmed_dfa(np.array(builder.rows, np.int32), _CLASS_OF, accepting)


class _Magnitude:
    """Digits of a number that is not negative: the integer part, and the fraction without zeros at its end."""

    def __init__(self, value: Decimal) -> None:
        whole, _, fraction = format(value, "f").partition(".")
        self.whole, self.fraction = list(map(int, whole)), list(map(int, fraction.rstrip("0")))


class _ComparisonBuilder:
    """Rows of the automaton, and for each state the relation of its number to the bound: None inside a number."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = [[DEAD] * 13]
        self.relations: list[int | None] = [None]

    def state(self, relation: int | None = None) -> int:
        self.rows.append([DEAD] * 13)
        self.relations.append(relation)
        return len(self.rows) - 1

    def add_magnitudes(self, start: int, bound: _Magnitude | None, meaning: dict[int, int]) -> None:
        """Add the numbers without a sign, from `start` on, compared with a bound; None: all are above it.

        `meaning` is what a relation of the magnitudes says about the numbers.
        """
        rows = self.rows

        def settled(relation: int) -> int:
            """Add the fraction of a number whose relation is known; return the state after the point."""
            point, digits = self.state(), self.state(meaning[relation])
            rows[point][:10] = rows[digits][:10] = [digits] * 10
            return point

        below, above = settled(_BELOW), settled(_ABOVE)
        whole = [0] if bound is None else bound.whole
        fraction = [] if bound is None else bound.fraction
        # More digits than the bound has: the number is above it.
        longer = self.state(meaning[_ABOVE])
        rows[longer][:10], rows[longer][_POINT] = [longer] * 10, above
        if bound is None:
            zero = self.state(meaning[_ABOVE])
            rows[zero][_POINT] = above
            rows[start][:10] = [zero, *[longer] * 9]
            return
        # The digits so far are equal to the bound's: states after the point, one for each digit of the fraction.
        equal = self.state()
        here = equal
        for number, digit in enumerate(fraction):
            is_last = number == len(fraction) - 1
            following = self.state(meaning[_EQUAL if is_last else _BELOW])
            rows[here][:10] = [*[rows[below][0]] * digit, following, *[rows[above][0]] * (9 - digit)]
            here = following
        zeros = here if fraction else self.state(meaning[_EQUAL])
        rows[here][:10] = rows[zeros][:10] = [zeros, *[rows[above][0]] * 9]
        # By the number of digits, and by the relation of the digits so far to the bound's first ones.
        at_bound = {_BELOW: _BELOW, _EQUAL: _BELOW if fraction else _EQUAL, _ABOVE: _ABOVE}
        after = {_BELOW: below, _EQUAL: equal, _ABOVE: above}
        same_length = {relation: self.state(meaning[at_bound[relation]]) for relation in after}
        for relation, state in same_length.items():
            rows[state][:10], rows[state][_POINT] = [longer] * 10, after[relation]
        following_digits = same_length
        for digit in reversed(whole[1:]):
            shorter = {relation: self.state(meaning[_BELOW]) for relation in after}
            for relation, state in shorter.items():
                rows[state][_POINT] = below
                for read in range(10):
                    compared = relation or (read > digit) - (read < digit)
                    rows[state][read] = following_digits[compared]
            following_digits = shorter
        for read in range(1, 10):
            rows[start][read] = following_digits[(read > whole[0]) - (read < whole[0])]
        # A zero is the whole integer part.
        zero = self.state(meaning[at_bound[_EQUAL] if whole == [0] else _BELOW])
        rows[zero][_POINT] = equal if whole == [0] else below
        rows[start][0] = zero
