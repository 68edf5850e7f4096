"""Automata of the multiples of a number, with and without exponents."""

from __future__ import annotations

from decimal import Decimal
from functools import cache

import numpy as np

from ..budget import cached_piece
from ..regex.decimal_ranges import CLASS_OF, INTEGER
from ..regex.dfa import DEAD, START, Dfa, trimmed_dfa
from ..regex.exponents import EXPONENT, LEAST, LETTER, MAX_PLACES, MINUS, POINT, ExponentStates, steps_of
from ..regex.syntax.expression import Bytes, Chars, alternation, optional, repeat, sequence
from .strings.string_dfas import expression_dfa

_MAX_MODULUS = 10  # of a divisor of which multiples may have exponents
_MAX_FRACTION = 16  # places of a number with an exponent: as many as a double has after its first digit


def _scaled(divisor: Decimal) -> tuple[int, int]:
    """Return integers a and k with divisor = a * 10**k; a does not end with a zero."""
    _, digits, exponent = divisor.as_tuple()  # exact; `Decimal.normalize` would round
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    kept = written.rstrip("0")
    return int(kept), exponent + len(written) - len(kept)


def num_remainder_states(divisor: Decimal) -> int:
    modulus, exponent = _scaled(divisor)
    return modulus * (abs(exponent) + 2) + 4


def reads_exponents(divisor: Decimal) -> bool:
    """Return True if `multiple_dfa` can read the multiples with an exponent that are in `multiples_universe`."""
    modulus, exponent = _scaled(divisor)
    return modulus <= _MAX_MODULUS and abs(exponent) <= _MAX_FRACTION


@cached_piece(maxsize=256)
def multiple_dfa(divisor: Decimal, has_exponents: bool) -> Dfa:
    """Return the multiples of a divisor, with exponents if it `reads_exponents` and they are wanted.

    Without, a state is the remainder of the digits so far, and the number of decimal places.
    """
    modulus, exponent = _scaled(divisor)
    if has_exponents and reads_exponents(divisor):
        return _multiple_with_exponent_dfa(modulus, exponent)
    if exponent > 0:
        return _multiple_of_power_dfa(modulus, exponent)
    places = -exponent
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
    accepting[whole : whole + modulus] = remainder * (10**places % modulus) % modulus == 0
    for place in range(places + 1):
        here = fraction[place]
        accepting[here : here + modulus] = remainder * (10 ** (places - place) % modulus) % modulus == 0
    if places:
        accepting[fraction[0] : fraction[0] + modulus] = False  # a point needs a digit after it
        return trimmed_dfa(table, np.arange(256, dtype=np.uint8), accepting)
    # For an integer divisor the decimal point needs states of its own.
    point = num_states
    table = np.concatenate([table, np.zeros((modulus, 256), np.int32)])
    accepting = np.concatenate([accepting, np.zeros(modulus, np.bool_)])
    table[whole : whole + modulus, 0x2E] = point + remainder
    table[3, 0x2E] = point
    table[point : point + modulus, 0x30] = last + remainder
    return trimmed_dfa(table, np.arange(256, dtype=np.uint8), accepting)


def _multiple_of_power_dfa(modulus: int, zeros: int) -> Dfa:
    """Return the multiples of modulus * 10**zeros, written without exponents.

    A state is the number of zeros at the end of the digits so far, counted up to `zeros`, and the remainder of the
    digits before these zeros.
    """
    # States: 1 start, 2 after the minus, 3 a zero, 4 a point after a multiple, 5 zeros after it, then the remainders.
    first = 6
    table = np.zeros((first + modulus * (zeros + 1), 256), np.int32)
    accepting = np.zeros(len(table), np.bool_)
    remainder = np.arange(modulus)
    table[1, 0x2D] = 2
    table[1, 0x30] = table[2, 0x30] = 3
    last = first + modulus * zeros
    for digit in range(1, 10):
        table[1, 0x30 + digit] = table[2, 0x30 + digit] = first + digit % modulus
        for count in range(zeros + 1):
            here = first + modulus * count
            after = (remainder * pow(10, count + 1, modulus) + digit) % modulus
            table[here : here + modulus, 0x30 + digit] = first + after
    table[first:last, 0x30] = np.arange(first + modulus, last + modulus)
    table[last:, 0x30] = last + remainder * 10 % modulus
    accepting[[3, 5, last]] = True
    table[[3, last], 0x2E] = 4
    table[[4, 5], 0x30] = 5
    return trimmed_dfa(table, np.arange(256, dtype=np.uint8), accepting)


def _multiple_with_exponent_dfa(modulus: int, power: int) -> Dfa:
    """Return the multiples of modulus * 10**power that are in `multiples_universe`, and some others with exponents.

    A number is a multiple from some exponent on, which follows from its decimal places without zeros at the end, and
    from the remainder of the digits before these zeros. More zeros than are counted stay with the digits.
    """
    most_zeros, places = MAX_PLACES + max(power, 0), max(-power, 0)
    remainder = np.arange(modulus)
    # States: start, minus, zero, its point, zeros after it, a point after a multiple, zeros after it, ...
    minus, zero, point, zeros = 2, 3, 4, 5
    end_point = zeros + _MAX_FRACTION
    end_zeros = end_point + 1
    one = end_zeros + 1  # ... a digit, by the remainder; more of them, by the zeros at their end too; ...
    whole = one + modulus
    first_point = whole + (most_zeros + 1) * modulus  # ... the point after one digit, ...
    fraction = first_point + modulus  # ... places after it, by their number and that of the zeros at the end, ...
    later = fraction + (_MAX_FRACTION + 1) * (_MAX_FRACTION + 2) // 2 * modulus  # ... places after more than one digit
    table = np.zeros((later + (places + 1) * modulus, len(set(CLASS_OF))), np.int32)
    table[START, MINUS] = minus
    table[[START, minus], 0] = zero
    table[zero, POINT], table[point, 0] = point, zeros
    table[zeros : end_point - 1, 0] = np.arange(zeros + 1, end_point)
    table[end_point - 1, 0] = end_point - 1
    table[end_point, 0] = table[end_zeros, 0] = end_zeros
    # The exponent from which on a number is a multiple; none where it never is.
    never = -LEAST
    needed = np.full(len(table), never)
    needed[[zero, *range(zeros, end_point), end_zeros]] = LEAST
    more, at = np.full(modulus, never), remainder  # powers of ten that make a remainder a multiple
    for count in range(modulus.bit_length() + 1):
        more = np.where((at == 0) & (more == never), count, more)
        at = at * 10 % modulus

    def at_place(number: int, num_zeros: int) -> int:
        return fraction + (number * (number + 1) // 2 + num_zeros) * modulus

    def end(first: int, num_places: int) -> None:
        """Say from which exponent on the numbers that end here are multiples."""
        needed[first : first + modulus] = np.where(more == never, never, num_places + power + more)

    for digit in range(1, 10):
        table[[START, minus], digit] = one + digit % modulus
        table[point, digit] = at_place(1, 0) + digit % modulus
        for place in range(1, _MAX_FRACTION):
            table[zeros + place - 1, digit] = at_place(place + 1, 0) + digit % modulus
        for first in (one, first_point):
            target = whole if first == one else at_place(1, 0)
            table[first : first + modulus, digit] = target + (remainder * 10 + digit) % modulus
        for count in range(most_zeros + 1):
            after = (remainder * pow(10, count + 1, modulus) + digit) % modulus
            table[whole + count * modulus : whole + (count + 1) * modulus, digit] = whole + after
        for place in range(1, _MAX_FRACTION):
            for count in range(place + 1):
                here = at_place(place, count)
                after = (remainder * pow(10, count + 1, modulus) + digit) % modulus
                table[here : here + modulus, digit] = at_place(place + 1, 0) + after
    table[one:whole, 0], table[one:whole, POINT] = whole + modulus + remainder, first_point + remainder
    table[first_point:fraction, 0] = at_place(1, 1) + remainder
    end(one, 0)
    for count in range(most_zeros + 1):
        here = whole + count * modulus
        counted = count < most_zeros
        table[here : here + modulus, 0] = (here + modulus + remainder) if counted else here + remainder * 10 % modulus
        end(here, -count)
        if places:
            table[here : here + modulus, POINT] = later + remainder * pow(10, count, modulus) % modulus
        else:
            table[here : here + modulus, POINT] = np.where(needed[here : here + modulus] <= 0, end_point, DEAD)
    for place in range(1, _MAX_FRACTION + 1):
        for count in range(place + 1):
            here = at_place(place, count)
            end(here, place - count)
            if place < _MAX_FRACTION:
                table[here : here + modulus, 0] = at_place(place + 1, count + 1) + remainder
            else:
                table[here : here + modulus, 0] = np.where(needed[here : here + modulus] <= 0, end_zeros, DEAD)
    accepting = needed <= 0
    for place in range(places + 1):
        here = later + place * modulus
        if place:
            accepting[here : here + modulus] = remainder * (10 ** (places - place) % modulus) % modulus == 0
        for digit in range(10 if place < places else 1):
            after = (remainder * 10 + digit) % modulus
            last = np.where(remainder == 0, here + remainder, DEAD)
            table[here : here + modulus, digit] = here + modulus + after if place < places else last
    rows, labels = table.tolist(), accepting.astype(int).tolist()
    exponents = ExponentStates(rows, labels)
    for state in np.flatnonzero(needed < never).tolist():
        if state != end_zeros:
            rows[state][LETTER] = exponents.after_letter(steps_of([(LEAST, 0), (int(needed[state]), 1)]))
    return trimmed_dfa(np.array(rows, np.int32), CLASS_OF, np.array(labels) == 1)


@cache
def multiples_universe() -> Dfa:
    """Return the numbers of which `multiple_dfa` tells the multiples exactly, where it reads exponents at all.

    Those with an exponent have a few digits before the point, or one and then places.
    """
    digit = Chars(((0x30, 0x39),))
    few = alternation([Bytes(b"0"), sequence(Chars(((0x31, 0x39),)), repeat(digit, 0, MAX_PLACES - 1))])
    scientific = sequence(digit, Bytes(b"."), repeat(digit, 1, _MAX_FRACTION))
    minus, fraction = optional(Bytes(b"-")), sequence(Bytes(b"."), repeat(digit, 1, None))
    plain = sequence(INTEGER, optional(fraction))
    return expression_dfa(alternation([plain, sequence(minus, alternation([few, scientific]), EXPONENT)]))
