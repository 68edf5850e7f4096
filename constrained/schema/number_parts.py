"""Parts for numbers: conjunctions of number keywords, their automata, and the truths that several can have together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, lru_cache, partial, reduce
from itertools import accumulate
from operator import xor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget, cached_piece, cached_property
from ..errors import GrammarError
from ..regex.decimal_ranges import (
    CLASS_OF,
    INTEGER,
    NUMBER,
    PLAIN_NUMBER,
    NumberBound,
    NumberRange,
    covered,
    decimal_positions,
    in_ranges,
    number_positions,
    takes_exponents,
)
from ..regex.dfa import Dfa
from ..regex.exponents import EXPONENT, LARGE_EXPONENT
from ..regex.listed import listed_dfa
from ..regex.pair_product import intersect, pair_product
from ..regex.syntax.expression import Bytes, Chars, alternation, optional, repeat, sequence
from . import formula as formulas
from .formula import Formula, Truths
from .keywords import child
from .multiples import multiple_dfa, multiples_universe, num_remainder_states, reads_exponents
from .strings.string_dfas import LabelledDfa, dfa_product, expression_dfa, live_part, product_check

_MAX_DIGITS = 400  # of a bound or divisor as it is written; as many as any double needs
NUMBER_END = b",]} \t\n\r"  # bytes that may follow a number
_MAX_WIDENED = 40  # digits of a schema's numbers for which limits of digits are raised
MAX_REMAINDER_STATES = 20_000  # of a `multipleOf`
MAX_COMPARED_RANGE = 1000  # of bounded multiples, whose automaton is checked for being empty


def _read_decimal(value: Any, name: str, pointer: str) -> Decimal:
    """Return a schema's number as an exact decimal.

    Raises GrammarError if it is written with more than `_MAX_DIGITS` digits.
    """
    try:
        written = repr(value)
    except ValueError:  # Python writes no integers of more than 4,300 digits
        written = ""
    if not 0 < len(written) <= _MAX_DIGITS:
        raise GrammarError(f"{name!r} has more than {_MAX_DIGITS} digits", pointer=child(pointer, name))
    return Decimal(written)


@dataclass(frozen=True)
class NumberPart:
    """Conjunction of number keywords: an integer, bounds, divisors, and one of `values` unless None.

    `ranges` are several, in one of which the number is: disjoint, in ascending order and within the bounds. `digits`:
    integers are written in digits only, without `.0` or an exponent. Until draft 4, `1.0` is not an integer.
    """

    integer: bool = False
    digits: bool = False
    lower: NumberBound | None = None
    upper: NumberBound | None = None
    multiples: frozenset[Decimal] = frozenset()
    values: frozenset[Decimal] | None = None
    ranges: tuple[NumberRange, ...] = ()

    @property
    def all_ranges(self) -> tuple[NumberRange, ...]:
        """The ranges in one of which the number is."""
        return self.ranges or (NumberRange(self.lower, self.upper),)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # that of a decimal takes long
        return hash((self.integer, self.digits, self.lower, self.upper, self.multiples, self.values, self.ranges))

    def num_states(self) -> int:
        """Return about how many states the part brings to a product."""
        states = 16 * len(self.all_ranges) if self.lower or self.upper or self.ranges else 1
        return math.prod(map(num_remainder_states, self.multiples)) * states

    def least_count(self) -> float:
        """Return a lower bound on how many numbers satisfy the part, which lists none."""
        if self.multiples:
            return 0
        return sum(max(0, _num_integers(each) - 2) for each in self.all_ranges)

    def holds(self, value: Decimal) -> bool:
        """Return True if a number satisfies the part."""
        if self.values is not None and value not in self.values:
            return False
        if self.integer and value != value.to_integral_value():
            return False
        ranges = self.all_ranges
        # The last range that begins before the value, or at it.
        at = bisect_right(ranges, value, 1, key=_first_number) - 1
        if not _is_between(value, ranges[at]) and not (at and _is_between(value, ranges[at - 1])):
            return False
        return all(_is_multiple(value, divisor) for divisor in self.multiples)

    def few_integers(self, most: int) -> list[int] | None:
        """Return the integers in the ranges, or None if they may be more than `most`."""
        found: list[int] = []
        for lower, upper in self.all_ranges:
            if lower is None or upper is None:
                return None
            first, last = math.ceil(lower.value), math.floor(upper.value)
            if len(found) + last - first >= most:
                return None
            found += range(first, last + 1)
        return found


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
            if num_remainder_states(divisor) > MAX_REMAINDER_STATES:
                raise GrammarError(f"{name!r} needs too many states", pointer=child(pointer, name))
            multiples.add(divisor)
    return NumberPart(integer, digits, _tightest(lower, True), _tightest(upper, False), frozenset(multiples))


def _first_number(bounds: NumberRange) -> Decimal:
    assert bounds.lower is not None
    return bounds.lower.value


def _is_between(value: Decimal, bounds: NumberRange) -> bool:
    lower, upper = bounds
    if lower is not None and (value < lower.value or (lower.strict and value == lower.value)):
        return False
    return upper is None or value < upper.value or (value == upper.value and not upper.strict)


def _num_integers(bounds: NumberRange) -> float:
    """Return how many integers there are between two bounds, or one or two more if these are strict."""
    if bounds.lower is None or bounds.upper is None:
        return math.inf
    # As integers, because differences of decimals are rounded to the digits of the context.
    return max(0, math.floor(bounds.upper.value) - math.ceil(bounds.lower.value) + 1)


def _tightest(bounds: Iterable[NumberBound], lower: bool) -> NumberBound | None:
    if lower:
        return max(bounds, key=lambda bound: (bound.value, bound.strict), default=None)
    return min(bounds, key=lambda bound: (bound.value, not bound.strict), default=None)


def join_numbers(parts: Iterable[NumberPart]) -> NumberPart | bool:
    """Return the conjunction of parts; True or False if it allows every number or none. Raises GrammarError."""
    parts = list(parts)
    given = [part.values for part in parts if part.values is not None]
    joined = _with_ranges(
        NumberPart(
            any(part.integer for part in parts),
            any(part.digits for part in parts),
            _tightest((part.lower for part in parts if part.lower is not None), True),
            _tightest((part.upper for part in parts if part.upper is not None), False),
            frozenset().union(*(part.multiples for part in parts)),
        ),
        [part.ranges for part in parts if part.ranges],
    )
    if joined is False:
        return False
    if given:
        joined = NumberPart() if joined is True else joined
        kept = frozenset(value for value in frozenset.intersection(*given) if joined.holds(value))
        return NumberPart(digits=joined.digits, values=kept) if kept else False
    if joined is True or not joined.multiples:
        return joined
    is_short = sum(map(_num_integers, joined.all_ranges)) < MAX_COMPARED_RANGE
    return False if is_short and number_dfa(joined).is_empty else joined


def _with_ranges(part: NumberPart, unions: Sequence[tuple[NumberRange, ...]]) -> NumberPart | bool:
    """Return a part whose numbers are in a range of each union too; True or False if it allows every number or none."""
    ranges = part.all_ranges
    for union in unions:
        ranges = covered((*ranges, *union), 2)
    ranges = tuple(map(_closed, covered(map(_half_open, ranges)))) if part.integer else covered(ranges)
    if not ranges:
        return False
    found = replace(part, lower=ranges[0].lower, upper=ranges[-1].upper, ranges=ranges if len(ranges) > 1 else ())
    return True if found == NumberPart() else found


def _half_open(bounds: NumberRange) -> NumberRange:
    """Return a range of the same integers, before the next of which it ends: so neighbouring ranges become one."""
    lower, upper = bounds
    if lower is not None:
        lower = NumberBound(Decimal(math.floor(lower.value) + 1 if lower.strict else math.ceil(lower.value)), False)
    if upper is not None:
        upper = NumberBound(Decimal(math.ceil(upper.value) if upper.strict else math.floor(upper.value) + 1), True)
    return NumberRange(lower, upper)


def _closed(bounds: NumberRange) -> NumberRange:
    """Return the range of integers of which `_half_open` made this one."""
    lower, upper = bounds
    return NumberRange(lower, None if upper is None else NumberBound(Decimal(int(upper.value) - 1), False))


def any_number(parts: Sequence[NumberPart], exactly_one: bool = False) -> NumberPart | bool:
    """Join parts that differ in their bounds only, and list no values: some of them holds, or exactly one."""
    ranges = [each for part in parts for each in part.all_ranges]
    found = covered(ranges, 1, 1 if exactly_one else None)
    return _with_ranges(replace(parts[0], lower=None, upper=None, ranges=()), [found])


def _is_multiple(value: Decimal, divisor: Decimal) -> bool:
    (a, b), (c, d) = value.as_integer_ratio(), divisor.as_integer_ratio()
    return (a * d) % (b * c) == 0


@cached_piece(maxsize=1024)
def number_dfa(part: NumberPart) -> Dfa:
    """Return the spellings of a part's numbers. Raises GrammarError.

    Exponents are left out where they would need too many states: beside many bounds or a large divisor.
    """
    if part.values is not None:
        return listed_numbers_dfa(dict.fromkeys(part.values, 0), part.digits)[0]
    bounded = part.all_ranges != (NumberRange(None, None),)
    dfas = []
    if bounded:
        positions = decimal_positions if part.digits else partial(number_positions, integers=part.integer)
        dfas.append(in_ranges(part.all_ranges, positions))
    if part.integer or not bounded:
        dfas.append(_integers(part.digits) if part.integer else expression_dfa(NUMBER))
    dfas += [multiple_dfa(divisor, len(part.multiples) == 1) for divisor in sorted(part.multiples)]
    budget = CompileBudget()
    return reduce(lambda a, b: intersect(a, b, budget), dfas)


@cache
def _integers(digits: bool) -> Dfa:
    """Return the spellings of integers: as digits only, or also with zeros after a point and an exponent."""
    if digits:
        return expression_dfa(INTEGER)
    # Writers of floats put large integers as 1e+22.
    zeros = sequence(Bytes(b"."), repeat(Bytes(b"0"), 1, None))
    return expression_dfa(sequence(INTEGER, optional(zeros), optional(LARGE_EXPONENT)))


def listed_numbers_dfa(values: Mapping[Decimal, int], digits: bool) -> tuple[Dfa, NDArray[np.int32]]:
    """Return the spellings of given numbers, and the label of each state's number: int32[S], -1 where none ends.

    A number is spelled as a decimal, with trailing zeros after the point, and as `json.dumps` writes it; -0 also as 0.
    With `digits` an integer is written in digits only. Raises GrammarError if they need too many states.
    """
    texts: dict[bytes, int] = {}
    decimals: set[bytes] = set()  # those that end with a digit after the point, so that zeros may follow
    zeros = [(Decimal(0), label) for value, label in values.items() if value == 0 and value.is_signed()]
    for value, label in (*values.items(), *zeros):
        whole, _, fraction = format(value, "f").partition(".")
        fraction = fraction.rstrip("0")
        if not fraction:
            texts[whole.encode()] = label
            if digits:
                continue
        decimal = f"{whole}.{fraction or '0'}".encode()
        texts[decimal] = label
        decimals.add(decimal)
        written = repr(float(value))
        if "e" in written and Decimal(written) == value:
            texts[written.encode()] = label
    return listed_dfa(texts, decimals, again=0x30)


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
    return [
        formulas.truths_of(bits, len(parts)) for bits in number_product(number_universe(parts), tuple(parts)).accepted
    ]


@dataclass(frozen=True, eq=False)
class NumberProduct:
    """Product of the automata of several parts over the spellings of a universe.

    `combination[q]` is the index in `accepted` of the parts, as bits, that hold for the number that ends in state q, or
    -1 if none ends there.
    """

    table: NDArray[np.int32]  # [S, C]
    class_of: NDArray[np.uint8]  # [256]
    combination: NDArray[np.int64]  # [S]
    accepted: list[int]

    def labelled(self, label: Callable[[int], int]) -> LabelledDfa | None:
        """Label the numbers by the parts that hold, as bits; -1 refuses a number. None if all are refused."""
        by_combination = np.array([*map(label, self.accepted), -1], np.int32)
        return live_part(self.table, self.class_of, by_combination[self.combination])


@cached_piece(maxsize=64)
def number_product(universe: Dfa, parts: tuple[NumberPart, ...]) -> NumberProduct:
    """Return the product of several parts over the numbers of a universe. Raises GrammarError beyond the limits.

    The bounds of all parts are compared with a number at once, so that there may be thousands of them.
    """
    without = [replace(part, lower=None, upper=None, ranges=()) for part in parts]
    bases = [base for base in dict.fromkeys(without) if base != NumberPart()]
    found = dfa_product((universe, *map(_exact_dfa, bases)))
    of_base = {base: number for number, base in enumerate(bases)}
    held = [0] * len(found.accepted)  # parts whose bounds aside hold for each combination
    for number, base in enumerate(without):
        for at, accepted in enumerate(found.accepted):
            if base not in of_base or accepted[of_base[base]]:
                held[at] |= 1 << number
    limits = {limit.value for part in parts for each in part.all_ranges for limit in each if limit is not None}
    if not limits:
        return NumberProduct(found.table, found.class_of, found.combination, held)
    values = tuple(sorted(limits))
    compared, positions = _positions(values) if universe is not _plain_numbers() else _plain_positions(values)
    columns, classes = np.unique(np.stack([found.class_of, CLASS_OF]), axis=1, return_inverse=True)
    budget = CompileBudget()
    table, pairs = pair_product(found.table[:, columns[0]], compared[:, columns[1]], "both", budget.check)
    base_at, position = found.combination[pairs[:, 0]], positions[pairs[:, 1]]
    within = _within(parts, values)
    codes, combination = np.unique(
        np.where((base_at < 0) | (position < 0), -1, base_at * len(within) + position), return_inverse=True
    )
    accepted_bits = [held[code // len(within)] & within[code % len(within)] for code in codes.tolist() if code >= 0]
    return NumberProduct(
        table, classes.reshape(-1).astype(np.uint8), combination.reshape(-1) - int(codes[0] < 0), accepted_bits
    )


def _exact_dfa(base: NumberPart) -> Dfa:
    """Return the numbers of a universe that satisfy a part without bounds, all of them."""
    if base.integer and not base.digits:
        base = replace(base, integer=False, multiples=base.multiples | {Decimal(1)})
    return number_dfa(base)


_positions = cached_piece(maxsize=64)(number_positions)
_plain_positions = cached_piece(maxsize=64)(decimal_positions)


def _within(parts: Sequence[NumberPart], values: Sequence[Decimal]) -> list[int]:
    """Return which parts have a position among the values within their bounds, as bits, for each position."""
    number_of = {value: number for number, value in enumerate(values)}
    changes = [0] * (2 * len(values) + 2)
    for number, part in enumerate(parts):
        for lower, upper in part.all_ranges:
            low = 0 if lower is None else 2 * number_of[lower.value] + 1 + lower.strict
            high = 2 * len(values) if upper is None else 2 * number_of[upper.value] + 1 - upper.strict
            if low <= high:
                changes[low] ^= 1 << number
                changes[high + 1] ^= 1 << number
    return list(accumulate(changes[:-1], xor))


def with_digits(product: LabelledDfa, parts: Iterable[NumberPart], digits: int | None) -> LabelledDfa:
    """Limit the digits before and after the point of numbers; None is no limit.

    As many are allowed as a bound, divisor or given value of the parts has, or one more: those with more than
    `_MAX_WIDENED` only where a label would be lost without. Where one is lost even so, there is no limit.
    """
    if digits is None:
        return product
    given = [value for part in parts for value in _written(part)]
    sizes = [(value.adjusted() + 2, 1 - int(value.as_tuple().exponent)) for value in given]
    for most in (_MAX_WIDENED, math.inf):
        whole = max([digits, *(size for size, _ in sizes if size <= most)])
        places = max([digits, *(size for _, size in sizes if size <= most)])
        with suppress(GrammarError):  # of too many states
            if (limited := _limited(product, _limited_numbers(whole, places))) is not None:
                return limited
    return product


def _limited(product: LabelledDfa, limit: Dfa) -> LabelledDfa | None:
    """Return the numbers that an automaton accepts, with their labels, or None if a label has no number."""
    table, class_of, labels = product
    columns, classes = np.unique(np.stack([class_of, limit.class_of]), axis=1, return_inverse=True)
    found, pairs = pair_product(table[:, columns[0]], limit.table[:, columns[1]], "both", product_check())
    kept = np.where(limit.accepting[pairs[:, 1]], labels[pairs[:, 0]], -1).astype(np.int32)
    if set(kept.tolist()) != set(labels.tolist()):
        return None
    return live_part(found, classes.reshape(-1).astype(np.uint8), kept)


def _written(part: NumberPart) -> Iterator[Decimal]:
    yield from part.multiples
    yield from part.values or ()
    yield from (limit.value for each in part.all_ranges for limit in each if limit is not None)


@lru_cache(maxsize=64)
def _limited_numbers(whole: int, places: int) -> Dfa:
    """Return the numbers of at most so many digits before and after the point."""
    digit = Chars(((0x30, 0x39),))
    natural = alternation([Bytes(b"0"), sequence(Chars(((0x31, 0x39),)), repeat(digit, 0, whole - 1))])
    fraction = sequence(Bytes(b"."), repeat(digit, 1, places))
    return expression_dfa(sequence(optional(Bytes(b"-")), natural, optional(fraction), optional(EXPONENT)))


def number_universe(parts: Sequence[NumberPart]) -> Dfa:
    """Return the spellings whose truths all parts know, as the universe of their product.

    No exponents are read beside many bounds, a large divisor, several divisors, or bounds and divisors, for which they
    would need too many states, nor beside values that are listed, of which only some spellings are.
    """
    if any(part.values is not None for part in parts):
        return _plain_numbers()
    limits = {limit.value for part in parts for each in part.all_ranges for limit in each if limit is not None}
    divisors = {divisor for part in parts for divisor in part.multiples}
    if any(part.integer and not part.digits for part in parts):
        divisors.add(Decimal(1))
    if not divisors:
        return expression_dfa(NUMBER) if takes_exponents(limits) else _plain_numbers()
    is_exact = not limits and len(divisors) == 1 and all(map(reads_exponents, divisors))
    return multiples_universe() if is_exact else _plain_numbers()


@lru_cache(maxsize=1)
def _plain_numbers() -> Dfa:
    """Return the numbers without exponents, and without `-0`, of which some parts read only some spellings."""
    return expression_dfa(PLAIN_NUMBER)
