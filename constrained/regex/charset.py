"""Sets of code points, as sorted inclusive ranges that neither overlap nor touch."""

from __future__ import annotations

from collections.abc import Iterable

CharSet = tuple[tuple[int, int], ...]

MAX_CODE_POINT = 0x10FFFF
ALL: CharSet = ((0, MAX_CODE_POINT),)
DIGITS: CharSet = ((0x30, 0x39),)
WORD: CharSet = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: CharSet = ((0x09, 0x0D), (0x20, 0x20))
# ECMA-262's \s: WhiteSpace and LineTerminator.
ECMA_SPACE: CharSet = (
    *ASCII_SPACE,
    *((code, code) for code in (0xA0, 0x1680)),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    *((code, code) for code in (0x202F, 0x205F, 0x3000, 0xFEFF)),
)


def charset(ranges: Iterable[tuple[int, int]]) -> CharSet:
    """Normalise ranges: sort them, and join those that overlap or touch."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def chars(text: str) -> CharSet:
    """Return the set of the characters in `text`."""
    return charset((ord(character), ord(character)) for character in text)


def complement(ranges: CharSet) -> CharSet:
    """Return every code point outside the set."""
    gaps, low = [], 0
    for first, last in ranges:
        if low < first:
            gaps.append((low, first - 1))
        low = last + 1
    if low <= MAX_CODE_POINT:
        gaps.append((low, MAX_CODE_POINT))
    return tuple(gaps)


def has_surrogates(text: str) -> bool:
    """Return True if a text holds a surrogate code point, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def has_characters(ranges: CharSet) -> bool:
    """Return True if a set has a code point besides surrogates, which are not characters."""
    return any(low < 0xD800 or high > 0xDFFF for low, high in ranges)


def intersection(first: CharSet, second: CharSet) -> CharSet:
    """Return the code points that are in both sets."""
    return tuple(
        (max(low, start), min(high, end))
        for low, high in first
        for start, end in second
        if low <= end and start <= high
    )
