"""What a schema asks of numbers, as values that can be joined, and the automata of what they accept.

Knows no states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np

from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.decimal_ranges import INTEGER, LARGE_EXPONENT, NumberBound, integers, numbers
from ..regex.dfa import Dfa, intersect
from ..regex.expression import EMPTY, Bytes, Expression, alternation, optional, repeat, sequence
from . import formula as formulas
from .formula import Formula
from .keywords import child
from .string_dfas import expression_dfa

MAX_DIGITS = 100  # of a bound
MAX_REMAINDERS = 20_000  # states of a multipleOf


def read_decimal(value: Any, name: str, pointer: str) -> Decimal:
    """A schema's number, exactly as written. Raises GrammarError when it is absurdly long."""
    try:
        number = Decimal(repr(value))
        too_long = len(format(number, "f")) > MAX_DIGITS
    except (InvalidOperation, ValueError):
        too_long = True
    if too_long:
        raise GrammarError(f"{name!r} has more than {MAX_DIGITS} digits", pointer=child(pointer, name))
    return number


@dataclass(frozen=True)
class NumberPart:
    """All of it holds: an integer, within the bounds, a multiple of each, and one of `values` if they are given."""

    integer: bool = False
    whole: bool = False  # integers are written as digits only: until draft 4, 1.0 is none
    lower: NumberBound | None = None
    upper: NumberBound | None = None
    multiples: frozenset[Decimal] = frozenset()
    values: frozenset[Decimal] | None = None

    def holds(self, value: Decimal) -> bool:
        if self.values is not None and value not in self.values:
            return False
        if self.integer and value != value.to_integral_value():
            return False
        if self.lower is not None and (value < self.lower.value or (self.lower.strict and value == self.lower.value)):
            return False
        if self.upper is not None and (value > self.upper.value or (self.upper.strict and value == self.upper.value)):
            return False
        return all(_is_multiple(value, divisor) for divisor in self.multiples)


def number_part(schema: Mapping[str, Any], integer: bool, whole: bool, pointer: str) -> NumberPart:
    """Of a schema's keywords. Raises GrammarError."""
    lower: list[NumberBound] = []
    upper: list[NumberBound] = []
    for name, strict_name, bounds in (
        ("minimum", "exclusiveMinimum", lower),
        ("maximum", "exclusiveMaximum", upper),
    ):
        strict = schema.get(strict_name)
        if name in schema:
            bounds.append(NumberBound(read_decimal(schema[name], name, pointer), strict is True))
        if strict is not None and not isinstance(strict, bool):
            bounds.append(NumberBound(read_decimal(strict, strict_name, pointer), True))
    multiples = set()
    for name in ("multipleOf", "divisibleBy"):
        if name in schema:
            divisor = read_decimal(schema[name], name, pointer)
            if _num_remainders(divisor) > MAX_REMAINDERS:
                raise GrammarError(f"{name!r} needs too many states", pointer=child(pointer, name))
            multiples.add(divisor)
    return NumberPart(integer, whole, _tightest(lower, True), _tightest(upper, False), frozenset(multiples))


def _tightest(bounds: Iterable[NumberBound], lower: bool) -> NumberBound | None:
    if lower:
        return max(bounds, key=lambda bound: (bound.value, bound.strict), default=None)
    return min(bounds, key=lambda bound: (bound.value, not bound.strict), default=None)


def join_numbers(parts: Iterable[NumberPart]) -> NumberPart | bool:
    """All of them at once. Raises GrammarError when that is too complex."""
    parts = list(parts)
    given = [part.values for part in parts if part.values is not None]
    joined = NumberPart(
        any(part.integer for part in parts),
        any(part.whole for part in parts),
        _tightest((part.lower for part in parts if part.lower is not None), True),
        _tightest((part.upper for part in parts if part.upper is not None), False),
        frozenset().union(*(part.multiples for part in parts)),
    )
    if given:
        kept = frozenset(value for value in frozenset.intersection(*given) if joined.holds(value))
        return NumberPart(whole=joined.whole, values=kept) if kept else False
    if joined == NumberPart():
        return True
    low, high = joined.lower, joined.upper
    if low is not None and high is not None:
        if low.value > high.value or (low.value == high.value and (low.strict or high.strict)):
            return False
        if (joined.integer or joined.multiples) and high.value - low.value < 1000:
            return False if number_dfa(joined).is_empty else joined
    return joined


def _is_multiple(value: Decimal, divisor: Decimal) -> bool:
    (a, b), (c, d) = value.as_integer_ratio(), divisor.as_integer_ratio()
    return (a * d) % (b * c) == 0


def _scaled(divisor: Decimal) -> tuple[int, int]:
    """a and k with divisor = a / 10**k."""
    _, digits, exponent = divisor.normalize().as_tuple()
    assert isinstance(exponent, int)
    value = int("".join(map(str, digits)))
    return (value * 10**exponent, 0) if exponent > 0 else (value, -exponent)


def _num_remainders(divisor: Decimal) -> int:
    modulus, places = _scaled(divisor)
    return modulus * (places + 2) + 4


@lru_cache(maxsize=256)
def _multiple_dfa(divisor: Decimal) -> Dfa:
    """Decimal numbers without exponents that are multiples: the state is the remainder so far, and the places."""
    modulus, places = _scaled(divisor)
    # Local states: 1 start, 2 after the minus, 3 after a zero; then the remainders of whole parts, and those after
    # each number of digits of the fraction, of which all but the first `places` are zeros.
    whole = 4
    fraction = [whole + modulus * (1 + place) for place in range(places + 1)]
    num_states = fraction[-1] + modulus
    table = np.zeros((num_states, 256), np.int32)
    accepting = np.zeros(num_states, np.bool_)
    remainder = np.arange(modulus)
    table[1, 0x2D] = 2
    for digit in range(10):
        after_first = whole + digit % modulus
        table[1, 0x30 + digit] = table[2, 0x30 + digit] = 3 if digit == 0 else after_first
        table[whole : whole + modulus, 0x30 + digit] = whole + (remainder * 10 + digit) % modulus
        for place in range(places):
            here = fraction[place]
            table[here : here + modulus, 0x30 + digit] = fraction[place + 1] + (remainder * 10 + digit) % modulus
    last = fraction[-1]
    table[last : last + modulus, 0x30] = last + remainder
    table[whole : whole + modulus, 0x2E] = fraction[0] + remainder
    table[3, 0x2E] = fraction[0]
    accepting[3] = True
    accepting[whole : whole + modulus] = remainder * 10**places % modulus == 0
    for place in range(places + 1):
        here = fraction[place]
        accepting[here : here + modulus] = remainder * 10 ** (places - place) % modulus == 0
    if places:
        accepting[fraction[0] : fraction[0] + modulus] = False  # a point needs a digit after it
        return Dfa(table, np.arange(256, dtype=np.uint8), accepting)
    # Without places a state of its own for the point.
    point = num_states
    table = np.concatenate([table, np.zeros((modulus, 256), np.int32)])
    accepting = np.concatenate([accepting, np.zeros(modulus, np.bool_)])
    table[whole : whole + modulus, 0x2E] = point + remainder
    table[3, 0x2E] = point
    table[point : point + modulus, 0x30] = last + remainder
    return Dfa(table, np.arange(256, dtype=np.uint8), accepting)


@lru_cache(maxsize=1024)
def number_dfa(part: NumberPart) -> Dfa:
    """The numbers, as JSON writes them; with an exponent only where there are no bounds. Raises GrammarError."""
    budget = CompileBudget()
    if part.values is not None:
        return expression_dfa(alternation(_spelled(value, part.whole) for value in sorted(part.values)))
    if part.integer:
        whole = integers(part.lower, part.upper)
        bounded = part.lower is not None or part.upper is not None
        rest = optional(sequence(Bytes(b"."), repeat(Bytes(b"0"), 1, None)))
        # As floats of whole value are written: 1e+22.
        powers = optional(LARGE_EXPONENT)
        if part.whole:
            rest = powers = EMPTY
        dfas = [expression_dfa(sequence(whole, rest) if bounded else sequence(INTEGER, rest, powers))]
    else:
        dfas = [expression_dfa(side) for side in dict.fromkeys(numbers(part.lower, part.upper))]
    dfas += [_multiple_dfa(divisor) for divisor in sorted(part.multiples)]
    dfa = dfas[0]
    for other in dfas[1:]:
        dfa = intersect(dfa, other, budget)
    return dfa


def _spelled(value: Decimal, digits: bool) -> Expression:
    """A given number: an integer in digits, with zeros behind a point, or as `json.dumps` writes it. With `digits` an
    integer is written in digits only."""
    plain = format(value, "f")
    whole, _, fraction = plain.partition(".")
    fraction = fraction.rstrip("0")
    if digits and not fraction:
        return Bytes(whole.encode())
    zeros = repeat(Bytes(b"0"), 0, None)
    if fraction:
        decimal = sequence(Bytes(f"{whole}.{fraction}".encode()), zeros)
    else:
        decimal = sequence(Bytes(whole.encode()), optional(sequence(Bytes(b".0"), zeros)))
    written = repr(float(value))
    return alternation([decimal, Bytes(written.encode())]) if "e" in written and Decimal(written) == value else decimal


def candidates(formula: Formula) -> frozenset[Decimal] | None:
    """The only values that can make it true; None when they are not listed."""
    return formulas.candidates(formula, lambda atom: atom.values if isinstance(atom, NumberPart) else None)
