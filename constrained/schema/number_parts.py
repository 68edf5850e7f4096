"""Parts for numbers: conjunctions of number keywords, their automata, and the truths that several can have together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget
from ..errors import GrammarError
from ..regex.decimal_ranges import (
    FRACTION,
    INTEGER,
    LARGE_EXPONENT,
    NATURAL,
    NumberBound,
    at_least,
    integers,
    numbers,
)
from ..regex.dfa import Dfa, intersect
from ..regex.expression import EMPTY, Bytes, Expression, alternation, optional, repeat, sequence
from . import formula as formulas
from .formula import Formula, Truths
from .keywords import child
from .string_dfas import combinations, expression_dfa

NUMBER_END = b",]} \t\n\r"  # bytes that may follow a number
MAX_DIGITS = 100  # of a bound or divisor
MAX_REMAINDER_STATES = 20_000  # of a `multipleOf`
MAX_COMPARED_RANGE = 1000  # of bounded integers or multiples, whose automaton is checked for being empty


def _read_decimal(value: Any, name: str, pointer: str) -> Decimal:
    """Return a schema's number as an exact decimal. Raises GrammarError if it has more than `MAX_DIGITS` digits."""
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
    """Conjunction of number keywords: an integer, bounds, divisors, and one of `values` unless None.

    `digits`: integers are written in digits only, without `.0` or an exponent. Until draft 4, `1.0` is not an integer.
    """

    integer: bool = False
    digits: bool = False
    lower: NumberBound | None = None
    upper: NumberBound | None = None
    multiples: frozenset[Decimal] = frozenset()
    values: frozenset[Decimal] | None = None

    def holds(self, value: Decimal) -> bool:
        """Return True if a number satisfies the part."""
        if self.values is not None and value not in self.values:
            return False
        if self.integer and value != value.to_integral_value():
            return False
        if self.lower is not None and (value < self.lower.value or (self.lower.strict and value == self.lower.value)):
            return False
        if self.upper is not None and (value > self.upper.value or (self.upper.strict and value == self.upper.value)):
            return False
        return all(_is_multiple(value, divisor) for divisor in self.multiples)


def number_part(schema: Mapping[str, Any], integer: bool, digits: bool, pointer: str) -> NumberPart:
    """Read a schema's number keywords. Raises GrammarError."""
    lower: list[NumberBound] = []
    upper: list[NumberBound] = []
    for name, strict_name, bounds in (
        ("minimum", "exclusiveMinimum", lower),
        ("maximum", "exclusiveMaximum", upper),
    ):
        strict = schema.get(strict_name)
        if name in schema:
            bounds.append(NumberBound(_read_decimal(schema[name], name, pointer), strict is True))
        if strict is not None and not isinstance(strict, bool):
            bounds.append(NumberBound(_read_decimal(strict, strict_name, pointer), True))
    multiples = set()
    for name in ("multipleOf", "divisibleBy"):
        if name in schema:
            divisor = _read_decimal(schema[name], name, pointer)
            if _num_remainder_states(divisor) > MAX_REMAINDER_STATES:
                raise GrammarError(f"{name!r} needs too many states", pointer=child(pointer, name))
            multiples.add(divisor)
    return NumberPart(integer, digits, _tightest(lower, True), _tightest(upper, False), frozenset(multiples))


def _tightest(bounds: Iterable[NumberBound], lower: bool) -> NumberBound | None:
    if lower:
        return max(bounds, key=lambda bound: (bound.value, bound.strict), default=None)
    return min(bounds, key=lambda bound: (bound.value, not bound.strict), default=None)


def join_numbers(parts: Iterable[NumberPart]) -> NumberPart | bool:
    """Return the conjunction of parts; True or False if it allows every number or none. Raises GrammarError."""
    parts = list(parts)
    given = [part.values for part in parts if part.values is not None]
    joined = NumberPart(
        any(part.integer for part in parts),
        any(part.digits for part in parts),
        _tightest((part.lower for part in parts if part.lower is not None), True),
        _tightest((part.upper for part in parts if part.upper is not None), False),
        frozenset().union(*(part.multiples for part in parts)),
    )
    if given:
        kept = frozenset(value for value in frozenset.intersection(*given) if joined.holds(value))
        return NumberPart(digits=joined.digits, values=kept) if kept else False
    if joined == NumberPart():
        return True
    low, high = joined.lower, joined.upper
    if low is not None and high is not None:
        if low.value > high.value or (low.value == high.value and (low.strict or high.strict)):
            return False
        if (joined.integer or joined.multiples) and high.value - low.value < MAX_COMPARED_RANGE:
            return False if number_dfa(joined).is_empty else joined
    return joined


def _is_multiple(value: Decimal, divisor: Decimal) -> bool:
    (a, b), (c, d) = value.as_integer_ratio(), divisor.as_integer_ratio()
    return (a * d) % (b * c) == 0


def _scaled(divisor: Decimal) -> tuple[int, int]:
    """Return the integers a and k with divisor = a / 10**k."""
    _, digits, exponent = divisor.normalize().as_tuple()
    assert isinstance(exponent, int)
    value = int("".join(map(str, digits)))
    return (value * 10**exponent, 0) if exponent > 0 else (value, -exponent)


def _num_remainder_states(divisor: Decimal) -> int:
    modulus, places = _scaled(divisor)
    return modulus * (places + 2) + 4


@lru_cache(maxsize=256)
def _multiple_dfa(divisor: Decimal) -> Dfa:
    """Return the multiples of a divisor, written without exponents.

    A state is the remainder of the digits so far, and the number of decimal places.
    """
    modulus, places = _scaled(divisor)
    # States: 1 start, 2 after the minus, 3 after a leading zero, then the remainders of the integer part, then those
    # after each number of decimal places. Digits after the first `places` must be zeros.
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
    # For an integer divisor the decimal point needs states of its own.
    point = num_states
    table = np.concatenate([table, np.zeros((modulus, 256), np.int32)])
    accepting = np.concatenate([accepting, np.zeros(modulus, np.bool_)])
    table[whole : whole + modulus, 0x2E] = point + remainder
    table[3, 0x2E] = point
    table[point : point + modulus, 0x30] = last + remainder
    return Dfa(table, np.arange(256, dtype=np.uint8), accepting)


@lru_cache(maxsize=1024)
def number_dfa(part: NumberPart) -> Dfa:
    """Return the spellings of a part's numbers; exponents only without bounds and divisors. Raises GrammarError."""
    budget = CompileBudget()
    if part.values is not None:
        return expression_dfa(alternation(_spelled(value, part.digits) for value in sorted(part.values)))
    if part.integer:
        exact = integers(part.lower, part.upper)
        bounded = part.lower is not None or part.upper is not None
        rest = optional(sequence(Bytes(b"."), repeat(Bytes(b"0"), 1, None)))
        # Writers of floats put large integers as 1e+22.
        powers = optional(LARGE_EXPONENT)
        if part.digits:
            rest = powers = EMPTY
        dfas = [expression_dfa(sequence(exact, rest) if bounded else sequence(INTEGER, rest, powers))]
    else:
        dfas = [expression_dfa(side) for side in dict.fromkeys(numbers(part.lower, part.upper))]
    dfas += [_multiple_dfa(divisor) for divisor in sorted(part.multiples)]
    dfa = dfas[0]
    for other in dfas[1:]:
        dfa = intersect(dfa, other, budget)
    return dfa


def _spelled(value: Decimal, digits: bool) -> Expression:
    """Return the spellings of a given number: decimal with trailing zeros, or as `json.dumps` writes it.

    With `digits` an integer is written in digits only.
    """
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


def listed_numbers_dfa(values: Mapping[Decimal, int], digits: bool) -> tuple[Dfa, NDArray[np.int32]]:
    """Return the spellings of given numbers, and the label of each state's number: int32[S], -1 where none ends.

    A number is spelled as a decimal, with trailing zeros after the point, and as `json.dumps` writes it. With `digits`
    an integer is written in digits only.
    """
    columns = {byte: number for number, byte in enumerate(b"0123456789-+.e", start=1)}
    table: list[list[int]] = [[0] * 15, [0] * 15]
    labels = [-1, -1]

    def enter(state: int, text: bytes) -> int:
        for byte in text:
            column = columns[byte]
            if not table[state][column]:
                table[state][column] = len(table)
                table.append([0] * 15)
                labels.append(-1)
            state = table[state][column]
        return state

    padded: list[tuple[int, int]] = []  # states after which zeros may follow
    for value, label in values.items():
        whole, _, fraction = format(value, "f").partition(".")
        fraction = fraction.rstrip("0")
        if not fraction:
            labels[enter(1, whole.encode())] = label
        if fraction or not digits:
            state = enter(1, f"{whole}.{fraction or '0'}".encode())
            labels[state] = label
            padded.append((state, label))
            written = repr(float(value))
            if "e" in written and Decimal(written) == value:
                labels[enter(1, written.encode())] = label
    loop_of: dict[int, int] = {}
    for state, label in padded:
        while table[state][1] and table[state][1] != state:
            state = table[state][1]
            labels[state] = label
        if label not in loop_of:
            loop_of[label] = len(table)
            table.append([0, len(table), *[0] * 13])
            labels.append(label)
        table[state][1] = loop_of[label]
    class_of = np.zeros(256, np.uint8)
    class_of[list(columns)] = list(columns.values())
    found = np.array(labels, np.int32)
    return Dfa(np.array(table, np.int32), class_of, found >= 0), found


def candidates(formula: Formula) -> frozenset[Decimal] | None:
    """Return the only numbers that can satisfy a formula, or None if they are not listed."""
    return formulas.candidates(formula, lambda atom: atom.values if isinstance(atom, NumberPart) else None)


def number_combinations(parts: Sequence[NumberPart]) -> Iterable[Truths]:
    """Return the combinations of truths that the parts have of some number. Raises GrammarError beyond the limits."""
    if len(parts) == 1:
        return [(True,), (False,)]  # a part is made only if some number satisfies it
    if all(part.values is not None for part in parts):
        listed = frozenset[Decimal]().union(*(part.values or () for part in parts))
        found = {tuple(value in (part.values or ()) for part in parts): None for value in listed}
        return found | {tuple(False for _ in parts): None}
    return combinations(number_universe(parts), [number_dfa(part) for part in parts])


def number_universe(parts: Iterable[NumberPart]) -> Dfa:
    """Return the spellings in which all parts read the same numbers, as the universe of their product.

    The automaton of a bounded part reads no exponents, so its complement would hold `1e0` for a number within bounds.
    """
    unbounded = NumberPart()
    return number_dfa(unbounded) if all(part == unbounded for part in parts) else _plain_numbers()


@lru_cache(maxsize=1)
def _plain_numbers() -> Dfa:
    """Return the numbers without exponents, and without `-0`, of which some parts read only some spellings."""
    negative = sequence(Bytes(b"-"), at_least(NumberBound(Decimal(0), strict=True)))
    return expression_dfa(alternation([sequence(NATURAL, optional(FRACTION)), negative]))
