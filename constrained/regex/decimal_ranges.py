"""Expressions of decimal numbers within bounds, built digit by digit."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from .expression import NOTHING, Bytes, Chars, Expression, alternation, optional, repeat, sequence

_DIGIT, DIGITS = Chars(((0x30, 0x39),)), repeat(Chars(((0x30, 0x39),)), 1, None)
NATURAL = alternation([Bytes(b"0"), sequence(Chars(((0x31, 0x39),)), repeat(_DIGIT, 0, None))])
FRACTION = sequence(Bytes(b"."), DIGITS)
INTEGER = sequence(optional(Bytes(b"-")), NATURAL)
# Larger exponents would be read as infinite by readers of doubles.
_POWER = sequence(optional(alternation([sequence(Chars(((0x30, 0x32),)), _DIGIT), _DIGIT])), _DIGIT)
LARGE_EXPONENT = sequence(Chars(((0x45, 0x45), (0x65, 0x65))), optional(Bytes(b"+")), _POWER)
EXPONENT = sequence(
    Chars(((0x45, 0x45), (0x65, 0x65))),
    alternation([sequence(Bytes(b"-"), repeat(_DIGIT, 1, 3)), sequence(optional(Bytes(b"+")), _POWER)]),
)
NUMBER = sequence(INTEGER, optional(FRACTION), optional(EXPONENT))

_ANY_DIGITS = repeat(_DIGIT, 0, None)
_SOME_NONZERO = sequence(_ANY_DIGITS, Chars(((0x31, 0x39),)), _ANY_DIGITS)
_MINUS = Bytes(b"-")


@dataclass(frozen=True)
class NumberBound:
    """Bound of a range, which includes `value` unless it is `strict`."""

    value: Decimal
    strict: bool

    def negated(self) -> NumberBound:
        return NumberBound(-self.value, self.strict)


def integers(lower: NumberBound | None, upper: NumberBound | None) -> Expression:
    """Return the integers within bounds, without leading zeros, `-0` or exponents."""
    if lower is None and upper is None:
        return INTEGER
    low = None if lower is None else int(lower.value.to_integral_value(ROUND_CEILING))
    if lower is not None and lower.strict and low == lower.value:
        low = int(lower.value) + 1
    high = None if upper is None else int(upper.value.to_integral_value(ROUND_FLOOR))
    if upper is not None and upper.strict and high == upper.value:
        high = int(upper.value) - 1
    positive = NOTHING if high is not None and high < 0 else naturals(max(low or 0, 0), high)
    if low is not None and low >= 0:
        return positive
    negative = naturals(1 if high is None else max(-high, 1), None if low is None else -low)
    return alternation([positive, sequence(_MINUS, negative)])


def naturals(low: int, high: int | None) -> Expression:
    """Return the integers of [low, high] (None: without end), low >= 0."""
    if high is not None and high < low:
        return NOTHING
    if high is None:
        length = len(str(low))
        longer = sequence(Chars(((0x31, 0x39),)), repeat(Chars(((0x30, 0x39),)), length, None))
        return alternation([naturals(low, 10**length - 1), longer])
    parts = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        parts.append(_same_length(str(low), str(last)))
        low = last + 1
    return alternation(parts)


def _same_length(low: str, high: str) -> Expression:
    """Return the digit strings from `low` to `high`, which have the same length."""
    length = len(low)
    if low == "0" * length and high == "9" * length:
        return repeat(Chars(((0x30, 0x39),)), length, length)
    if low[0] == high[0]:
        return sequence(Bytes(low[:1].encode()), _same_length(low[1:], high[1:]))
    between = _digit(int(low[0]) + 1, int(high[0]) - 1)
    return alternation(
        [
            sequence(Bytes(low[:1].encode()), _same_length(low[1:], "9" * (length - 1))),
            sequence(between, repeat(Chars(((0x30, 0x39),)), length - 1, length - 1)),
            sequence(Bytes(high[:1].encode()), _same_length("0" * (length - 1), high[1:])),
        ]
    )


def numbers(lower: NumberBound | None, upper: NumberBound | None) -> tuple[Expression, Expression]:
    """Return two expressions whose intersection is the numbers within bounds; with bounds, without exponents."""
    if lower is None and upper is None:
        return NUMBER, NUMBER
    zero = NumberBound(Decimal(0), strict=False)
    positive = _between(lower if lower is not None and lower.value >= 0 else zero, upper)
    low = upper.negated() if upper is not None and upper.value <= 0 else zero
    negative = _between(low, None if lower is None else lower.negated())
    pairs = zip(positive, (sequence(_MINUS, side) for side in negative), strict=True)
    at_least, at_most = (alternation(pair) for pair in pairs)
    return at_least, at_most


def _between(lower: NumberBound, upper: NumberBound | None) -> tuple[Expression, Expression]:
    """Return the numbers >= 0 at least `lower`, and those at most `upper`."""
    return at_least(lower), sequence(NATURAL, optional(FRACTION)) if upper is None else _at_most(upper)


def at_least(bound: NumberBound) -> Expression:
    """Return the decimals of at least a bound >= 0, without exponents."""
    whole, fraction = _digits(bound.value)
    above = sequence(naturals(whole + 1, None), optional(FRACTION))
    if not fraction:
        rest = sequence(Bytes(b"."), _SOME_NONZERO) if bound.strict else optional(FRACTION)
    else:
        larger = [
            sequence(Bytes(fraction[:n].encode()), _digit(int(digit) + 1, 9), _ANY_DIGITS)
            for n, digit in enumerate(fraction)
        ]
        same = sequence(Bytes(fraction.encode()), _SOME_NONZERO if bound.strict else _ANY_DIGITS)
        rest = sequence(Bytes(b"."), alternation([*larger, same]))
    return alternation([above, sequence(Bytes(str(whole).encode()), rest)])


def _at_most(bound: NumberBound) -> Expression:
    if bound.value < 0:
        return NOTHING
    whole, fraction = _digits(bound.value)
    zeros = repeat(Bytes(b"0"), 0, None)
    below = sequence(naturals(0, whole - 1), optional(FRACTION))
    if not fraction:
        rest = NOTHING if bound.strict else optional(sequence(Bytes(b".0"), zeros))
    else:
        smaller = [
            sequence(Bytes(fraction[:n].encode()), _digit(0, int(digit) - 1), _ANY_DIGITS)
            for n, digit in enumerate(fraction)
        ]
        shorter = [Bytes(fraction[:n].encode()) for n in range(1, len(fraction))]
        same = NOTHING if bound.strict else sequence(Bytes(fraction.encode()), zeros)
        rest = optional(sequence(Bytes(b"."), alternation([*smaller, *shorter, same])))
    return alternation([below, sequence(Bytes(str(whole).encode()), rest)])


def _digits(value: Decimal) -> tuple[int, str]:
    """Return the integer part, and the digits of the fraction without trailing zeros."""
    whole, _, fraction = format(value, "f").partition(".")
    return int(whole), fraction.rstrip("0")


def _digit(low: int, high: int) -> Expression:
    return Chars(((0x30 + low, 0x30 + high),)) if low <= high else NOTHING
