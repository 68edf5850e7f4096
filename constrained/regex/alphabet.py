"""Equivalence classes of code points: an automaton has one table column per class instead of 1.1 million.

Surrogates are not characters and belong to no class.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ..budget import cached_property
from .charset import MAX_CODE_POINT, CharSet, charset

NO_CLASS = -1  # the label of surrogates
_SURROGATES = (0xD800, 0xE000)


@dataclass(frozen=True)
class Alphabet:
    """Partition of the code points into classes.

    Interval i is [starts[i], starts[i + 1]) and has the class labels[i]. The first interval starts at 0, the last ends
    after U+10FFFF. Classes are numbered from 0 in order of appearance.
    """

    starts: tuple[int, ...]
    labels: tuple[int, ...]

    @cached_property
    def num_classes(self) -> int:
        """Number of classes."""
        return max(self.labels) + 1

    def class_of(self, code: int) -> int:
        """Return the class of a code point, NO_CLASS for a surrogate."""
        return self.of_ascii[code] if code < 128 else self.labels[bisect_right(self.starts, code) - 1]

    @cached_property
    def of_ascii(self) -> tuple[int, ...]:
        """Class of each ASCII character: [128]."""
        return tuple(self.labels[bisect_right(self.starts, code) - 1] for code in range(128))

    def intervals(self) -> Iterable[tuple[int, int, int]]:
        """Yield (first, last, class) for each interval."""
        ends = (*self.starts[1:], MAX_CODE_POINT + 1)
        return ((low, end - 1, label) for low, end, label in zip(self.starts, ends, self.labels, strict=True))

    def members(self, label: int) -> CharSet:
        """Return the code points of a class."""
        return charset((low, high) for low, high, other in self.intervals() if other == label)


def alphabet_steps(sets: Iterable[CharSet]) -> int:
    """Return the number of operations of `alphabet_of`: how many pieces the sets are cut into by all their ends."""
    ranges = [pair for ranges in sets for pair in ranges]
    ends = sorted({end for low, high in ranges for end in (low, high + 1)})
    pieces = sum(bisect_right(ends, high) - bisect_right(ends, low) + 1 for low, high in ranges)
    # Each piece is a bit of a number as long as there are sets.
    return (3 * len(ends) + 2 * pieces) * (1 + len(ranges) // 1000)


@lru_cache(maxsize=4096)
def alphabet_of(sets: tuple[CharSet, ...]) -> tuple[Alphabet, tuple[tuple[int, ...], ...]]:
    """Return the coarsest alphabet in which every set is a union of classes, and the classes of each set."""
    events: dict[int, int] = {0: 0, _SURROGATES[0]: 0, _SURROGATES[1]: 0}
    for number, ranges in enumerate(sets):
        bit = 1 << number
        for low, high in ranges:
            events[low] = events.get(low, 0) ^ bit
            events[high + 1] = events.get(high + 1, 0) ^ bit
    events.pop(MAX_CODE_POINT + 1, None)
    starts: list[int] = []
    labels: list[int] = []
    label_of: dict[int, int] = {}
    inside = 0
    for start in sorted(events):
        inside ^= events[start]
        surrogate = _SURROGATES[0] <= start < _SURROGATES[1]
        label = NO_CLASS if surrogate else label_of.setdefault(inside, len(label_of))
        if not labels or label != labels[-1]:
            starts.append(start)
            labels.append(label)
    classes: list[list[int]] = [[] for _ in sets]
    for mask, label in label_of.items():
        while mask:
            lowest = mask & -mask
            classes[lowest.bit_length() - 1].append(label)
            mask ^= lowest
    return Alphabet(tuple(starts), tuple(labels)), tuple(tuple(labels) for labels in classes)


@lru_cache(maxsize=1024)
def common_alphabet(a: Alphabet, b: Alphabet) -> tuple[Alphabet, tuple[int, ...], tuple[int, ...]]:
    """Return the common refinement of two alphabets.

    And for each of its classes the class in `a`, and the one in `b`.
    """
    starts: list[int] = []
    labels: list[int] = []
    pairs: dict[tuple[int, int], int] = {}
    for start in sorted({*a.starts, *b.starts}):
        pair = a.class_of(start), b.class_of(start)
        label = NO_CLASS if NO_CLASS in pair else pairs.setdefault(pair, len(pairs))
        if not labels or label != labels[-1]:
            starts.append(start)
            labels.append(label)
    return Alphabet(tuple(starts), tuple(labels)), tuple(p for p, _ in pairs), tuple(p for _, p in pairs)
