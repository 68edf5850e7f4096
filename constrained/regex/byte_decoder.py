r"""Automata that decode one character from bytes: plain UTF-8, or the content of a JSON string with its escapes.

A decoder reads the bytes of one character and ends in the character's class. Both encodings are prefix codes, so the
boundaries between characters are unambiguous. A JSON string may be spelled as `json.dumps` does, ASCII-only or not, and
with every other escape except `\u` for printable ASCII, which no writer uses. Surrogates are decoded in pairs only.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .alphabet import NO_CLASS, Alphabet
from .charset import MAX_CODE_POINT

Encoding = Literal["utf8", "json_string"]
Edge = tuple[int, int, int]  # first byte, last byte, target

_FIRST, _ESCAPED = 0, 1  # the states before a character and after a backslash
_PRINTABLE = range(0x20, 0x7F)
_SHORT_ESCAPES = {0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_SELF_ESCAPES = b'"\\/'


@dataclass(frozen=True, eq=False)
class ByteDecoder:
    """Automaton of N states over C classes of bytes; state 0 is before the character.

    `table[n, c]` is the target of a byte of class c: 0 for none, n > 0 for a state, -1 - k for a character of class k.
    """

    table: NDArray[np.int32]  # [N, C]
    class_of: NDArray[np.uint8]  # [256]
    leaves: tuple[tuple[int, ...], ...]  # [N] classes of characters that each state may lead to


@dataclass(frozen=True, eq=False)
class _Template:
    """Decoder of the characters outside printable ASCII only, shared by alphabets that differ in printable ASCII."""

    table: NDArray[np.int32]  # [N, 256]
    columns: NDArray[np.int64]  # [256] each byte's distinct column
    leaves: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=1024)
def byte_decoder(alphabet: Alphabet, encoding: Encoding) -> ByteDecoder:
    """Return the decoder of an encoding into the classes of an alphabet."""
    ascii_labels = [NO_CLASS] * 128
    labels: dict[int, int] = {}
    cuts: list[tuple[int, int]] = []
    for low, high, label in alphabet.intervals():
        for code in range(max(low, _PRINTABLE.start), min(high + 1, _PRINTABLE.stop)):
            ascii_labels[code] = label
        for first, last in ((low, min(high, 0x1F)), (max(low, 0x7F), high)):
            if first <= last:
                known = NO_CLASS if label == NO_CLASS else labels.setdefault(label, len(labels))
                cuts.append((first, known))
    template = _template(tuple(cuts), encoding)
    return _complete(template, tuple(labels), ascii_labels, encoding)


def _complete(template: _Template, labels: tuple[int, ...], ascii_labels: list[int], encoding: Encoding) -> ByteDecoder:
    after = np.array([0, *(-1 - label for label in labels)], np.int32)
    table = np.where(template.table < 0, after[np.clip(-template.table, 0, len(labels))], template.table)
    leaves = [[labels[leaf] for leaf in part] for part in template.leaves]
    plain = np.array(ascii_labels, np.int64)
    codes = np.zeros(256, np.int64)
    if encoding == "json_string":
        table[_ESCAPED, list(_SELF_ESCAPES)] = [-1 - ascii_labels[code] for code in _SELF_ESCAPES]
        leaves[_ESCAPED] += [ascii_labels[code] for code in _SELF_ESCAPES]
        codes[list(_SELF_ESCAPES)] = [1, 2, 3]
        plain[list(b'"\\')] = NO_CLASS
    printable = np.flatnonzero(plain >= 0)
    table[_FIRST, printable] = -1 - plain[printable]
    codes[printable] += (plain[printable] + 1) * 4
    _, first, class_of = np.unique(template.columns + codes * 256, return_index=True, return_inverse=True)
    distinct = tuple(tuple(sorted(set(part))) for part in leaves)
    return ByteDecoder(np.ascontiguousarray(table[:, first]), class_of.reshape(-1).astype(np.uint8), distinct)


@lru_cache(maxsize=256)
def _template(cuts: tuple[tuple[int, int], ...], encoding: Encoding) -> _Template:
    builder = _ByteDecoderBuilder(cuts)
    edges = builder.utf8()
    if encoding == "json_string":
        edges = [edge for edge in edges if edge[0] >= 0x7F]
        builder.rows[_ESCAPED] = (
            *((ord(letter), ord(letter), builder.leaf(code)) for code, letter in _SHORT_ESCAPES.items()),
            (ord("u"), ord("u"), builder.unit(0, 4)),
        )
        edges.append((0x5C, 0x5C, _ESCAPED))
    builder.rows[_FIRST] = tuple(edges)
    table = np.zeros((len(builder.rows), 256), np.int32)
    for state, row in enumerate(builder.rows):
        for low, high, target in row:
            table[state, low : high + 1] = target
    _, columns = np.unique(table, axis=1, return_inverse=True)
    return _Template(table, columns.reshape(-1).astype(np.int64), builder.leaves())


class _ByteDecoderBuilder:
    """Hash-consed states, each a tuple of edges. Targets: 0 for none, n > 0 for a state, -1 - k for label k."""

    def __init__(self, cuts: tuple[tuple[int, int], ...]) -> None:
        self._starts = [start for start, _ in cuts]
        self._labels = [label for _, label in cuts]
        self.rows: list[tuple[Edge, ...]] = [(), ((0, 0, 0),)]
        self._number: dict[tuple[Edge, ...], int] = {}
        self._uniform: dict[tuple[str, int, int], int] = {}

    def leaf(self, code: int) -> int:
        """Return the target of a complete character."""
        return -1 - self._labels[bisect_right(self._starts, code) - 1]

    def utf8(self) -> list[Edge]:
        """Return the edges of the first bytes of UTF-8."""
        edges = [(code, code, self.leaf(code)) for code in (*range(0x20), 0x7F)]
        for low, high, level, lead in ((0x80, 0x800, 1, 0xC0), (0x800, 0x10000, 2, 0xE0), (0x10000, 0x110000, 3, 0xF0)):
            unit = 64**level
            for start in range(low // unit * unit, high, unit):
                target = self._block(max(start, low), min(start + unit, high), level)
                edges.append((lead + start // unit, lead + start // unit, target))
        return [edge for edge in edges if edge[2]]

    def _block(self, low: int, end: int, level: int) -> int:
        """Return the state before the last `level` continuation bytes of the code points in [low, end)."""
        if level == 0:
            return self.leaf(low)
        uniform = self._label(low, end)
        key = ("utf8", level, uniform if uniform is not None else 0)
        if uniform == NO_CLASS:
            return 0
        full = uniform is not None and end - low == 64**level
        if full and key in self._uniform:
            return self._uniform[key]
        unit = 64 ** (level - 1)
        base = low // (64 * unit) * (64 * unit)
        targets = [(0x80 + (at - base) // unit, self._block(at, at + unit, level - 1)) for at in range(low, end, unit)]
        number = self._state(_joined(targets))
        if full:
            self._uniform[key] = number
        return number

    def unit(self, low: int, digits: int) -> int:
        r"""Return the state before the last `digits` digits of `\uXXXX`, in either case, from the unit `low` on."""
        if digits == 0:
            return self._low_surrogate(low) if 0xD800 <= low < 0xDC00 else self._escaped_leaf(low)
        size = 16**digits
        uniform = self._label(low, low + size) if not 0xD800 - size < low < 0xDC00 and low > 0x7E else None
        if 0xDC00 <= low < 0xE000 and digits < 3:
            return 0
        key = ("hex", digits, uniform if uniform is not None else 0)
        if uniform is not None and key in self._uniform:
            return self._uniform[key]
        step = size // 16
        edges = []
        for digit in range(16):
            if target := self.unit(low + digit * step, digits - 1):
                edges += [(ord(form), ord(form), target) for form in {f"{digit:x}", f"{digit:X}"}]
        number = self._state(tuple(sorted(edges)))
        if uniform is not None:
            self._uniform[key] = number
        return number

    def _escaped_leaf(self, code: int) -> int:
        return 0 if code in _PRINTABLE or 0xDC00 <= code < 0xE000 else self.leaf(code)

    def _low_surrogate(self, first: int) -> int:
        low = 0x10000 + ((first - 0xD800) << 10)
        label = self._label(low, low + 0x400)
        key = ("pair", 0, label if label is not None else 0)
        if label is not None and key in self._uniform:
            return self._uniform[key]
        units = self._low_surrogate_digits(low)
        number = self._state(((0x5C, 0x5C, self._state(((ord("u"), ord("u"), units),))),))
        if label is not None:
            self._uniform[key] = number
        return number

    def _low_surrogate_digits(self, low: int) -> int:
        """Return the state before the low surrogate (DC00 to DFFF) of the code points from `low` on."""

        def digits(start: int, left: int) -> int:
            if left == 0:
                return self.leaf(low + start - 0xDC00)
            step = 16 ** (left - 1)
            edges = []
            for digit in range(16):
                at = start + digit * step
                if at + step <= 0xDC00 or at >= 0xE000:
                    continue
                if target := digits(at, left - 1):
                    edges += [(ord(form), ord(form), target) for form in {f"{digit:x}", f"{digit:X}"}]
            return self._state(tuple(sorted(edges)))

        return digits(0, 4)

    def _label(self, low: int, end: int) -> int | None:
        """Return the label of all code points in [low, end), None if they differ."""
        interval = bisect_right(self._starts, low) - 1
        following = self._starts[interval + 1] if interval + 1 < len(self._starts) else MAX_CODE_POINT + 1
        return self._labels[interval] if end <= following else None

    def _state(self, edges: tuple[Edge, ...]) -> int:
        edges = tuple(edge for edge in edges if edge[2])
        if not edges:
            return 0
        if edges not in self._number:
            self._number[edges] = len(self.rows)
            self.rows.append(edges)
        return self._number[edges]

    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """Return the labels that each state may lead to: [N]."""
        known: dict[int, frozenset[int]] = {}

        def below(state: int) -> frozenset[int]:
            if state < 0:
                return frozenset([-1 - state])
            if state not in known:
                known[state] = frozenset[int]().union(*(below(target) for _, _, target in self.rows[state] if target))
            return known[state]

        return tuple(tuple(sorted(below(state))) for state in range(len(self.rows)))


def _joined(targets: list[tuple[int, int]]) -> tuple[Edge, ...]:
    """Join neighbouring bytes with equal targets into one edge."""
    edges: list[Edge] = []
    for byte, target in targets:
        if edges and edges[-1][1] == byte - 1 and edges[-1][2] == target:
            edges[-1] = (edges[-1][0], byte, target)
        else:
            edges.append((byte, byte, target))
    return tuple(edges)
