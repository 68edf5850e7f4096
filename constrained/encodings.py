r"""Characters as bytes: plain UTF-8, and the inside of a JSON string with its escapes.

A set of code points becomes a `Branch`: a small acyclic automaton over bytes. Both encodings are prefix codes, so two
readings of the same bytes are always at the same character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial

from .charset import MAX_CODE_POINT, SURROGATES, CharSet, charset, difference, intersection


@dataclass(frozen=True, eq=False)
class Branch:
    """Disjoint inclusive byte ranges and what follows each. Compared by identity; equal parts are shared."""

    edges: tuple[tuple[int, int, Branch], ...]


END = Branch(())  # the character is complete
Encoding = Callable[[CharSet], Branch]
Digits = tuple[tuple[int, int, Branch], ...]  # ranges of numbers, and what follows their last digit
ByteRanges = Callable[[int, int], Iterable[tuple[int, int]]]  # of a range of digits

_PRINTABLE_ASCII: CharSet = ((0x20, 0x7E),)
_SHORT_ESCAPES = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}


def _offset(mark: int, low: int, high: int) -> list[tuple[int, int]]:
    return [(mark + low, mark + high)]


def _hex_digits(low: int, high: int) -> list[tuple[int, int]]:
    """Digits of either case."""
    ranges = [(0x30 + low, 0x30 + min(high, 9))] if low <= 9 else []
    if high >= 10:
        ranges += [(first + max(low, 10) - 10, first + high - 10) for first in (0x41, 0x61)]
    return ranges


_CONTINUATION = partial(_offset, 0x80)
# (first and last code point, number of continuation bytes, lead byte)
_UTF8_FORMS = (
    (0x80, 0x7FF, 1, partial(_offset, 0xC0)),
    (0x800, 0xFFFF, 2, partial(_offset, 0xE0)),
    (0x10000, MAX_CODE_POINT, 3, partial(_offset, 0xF0)),
)


@lru_cache(maxsize=1024)
def utf8(ranges: CharSet) -> Branch:
    ranges = difference(ranges, SURROGATES)
    edges = list(_ending(intersection(ranges, ((0, 0x7F),))))
    for first, last, num_more, lead in _UTF8_FORMS:
        part = _ending(intersection(ranges, ((first, last),)))
        edges += _digits(part, 64, num_more + 1, lead, _CONTINUATION).edges
    return Branch(tuple(edges))


@lru_cache(maxsize=1024)
def json_string(ranges: CharSet) -> Branch:
    r"""As `json.dumps` writes them, ASCII or not, and with every other escape but `\u` for printable ASCII, which no
    writer uses. Surrogates come in pairs only: half a pair is no character."""
    edges = list(utf8(difference(ranges, ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))).edges)
    escapes = [
        (ord(letter), ord(letter), END)
        for code, letter in _SHORT_ESCAPES.items()
        if intersection(ranges, ((code, code),))
    ]
    if units := _code_units(ranges):
        escapes.append((ord("u"), ord("u"), _digits(units, 16, 4, _hex_digits, _hex_digits)))
    if escapes:
        edges.append((0x5C, 0x5C, Branch(tuple(escapes))))
    return Branch(tuple(edges))


def _code_units(ranges: CharSet) -> Digits:
    r"""What may be written as \uXXXX, and what follows: after the first half of a pair, the second."""
    units = list(_ending(difference(intersection(ranges, ((0, 0xFFFF),)), charset(_PRINTABLE_ASCII + SURROGATES))))
    seconds: dict[int, list[tuple[int, int]]] = {}
    for low, high in intersection(ranges, ((0x10000, MAX_CODE_POINT),)):
        for first in range((low - 0x10000) >> 10, ((high - 0x10000) >> 10) + 1):
            base = 0x10000 + (first << 10)
            seconds.setdefault(first, []).append((max(low - base, 0), min(high - base, 0x3FF)))
    units += [(0xD800 + first, 0xD800 + first, _second_half(tuple(lows))) for first, lows in seconds.items()]
    return tuple(sorted(units, key=lambda unit: unit[0]))


@lru_cache(maxsize=1024)
def _second_half(lows: CharSet) -> Branch:
    digits = _digits(_ending([(0xDC00 + low, 0xDC00 + high) for low, high in lows]), 16, 4, _hex_digits, _hex_digits)
    return Branch(((0x5C, 0x5C, Branch(((ord("u"), ord("u"), digits),))),))


def _ending(ranges: Iterable[tuple[int, int]]) -> Digits:
    return tuple((low, high, END) for low, high in ranges)


@lru_cache(maxsize=1 << 14)
def _digits(ranges: Digits, base: int, width: int, first: ByteRanges, rest: ByteRanges) -> Branch:
    """Numbers of `width` digits, most significant first. `ranges` are disjoint and sorted."""
    unit = base ** (width - 1)
    runs: list[tuple[int, int, Branch]] = []  # of digits after which the same follows
    for digit in range(ranges[0][0] // unit, ranges[-1][1] // unit + 1) if ranges else ():
        low, high = digit * unit, (digit + 1) * unit - 1
        below = tuple(
            (max(a, low) - low, min(b, high) - low, after) for a, b, after in ranges if a <= high and b >= low
        )
        if not below:
            continue
        after = below[0][2] if width == 1 else _digits(below, base, width - 1, rest, rest)
        if runs and runs[-1][1] == digit - 1 and runs[-1][2] is after:
            runs[-1] = (runs[-1][0], digit, after)
        else:
            runs.append((digit, digit, after))
    return Branch(tuple((a, b, after) for low, high, after in runs for a, b in first(low, high)))
