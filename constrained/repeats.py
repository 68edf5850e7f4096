"""Names that have come in an object: read from the output's text, and the tokens that would write one of them again.

Masks are remembered by states, which know nothing of the text; so these tokens are taken out afterwards.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_STRINGS_AND_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]')
_WRITTEN_ONE_WAY = re.compile(r"[ !#-.0-\[\]-~]*")  # printable ASCII but quote, slash and backslash


@lru_cache(maxsize=16)
def names_of(text: bytes) -> frozenset[str]:
    """The names of an object's members, as far as its text goes."""
    found, depth, last = set(), 0, b""
    for match in _STRINGS_AND_BRACKETS.finditer(text):
        part = match[0]
        if part == b":" and depth == 1:
            found.add(json.loads(last))
        elif part in b"{[":
            depth += 1
        elif part in b"}]":
            depth -= 1
        last = part
    return frozenset(found)


class QuotedTokens:
    """The tokens of a vocabulary by how they begin, and those with quotes in them."""

    def __init__(self, tokens: Sequence[bytes | None]) -> None:
        self._sorted = sorted((data, number) for number, data in enumerate(tokens) if data)
        self._ending = np.array([n for n, data in enumerate(tokens) if data and b'"' in data], np.int64)
        self._escaped = np.array([n for n in self._ending if b"\\" in (tokens[n] or b"")], np.int64)
        whole = [n for n, data in enumerate(tokens) if data and data.count(b'"') > 1]
        self._by_name: dict[bytes, list[int]] = {}  # what stands between quotes in a token
        for number in whole:
            for part in (tokens[number] or b"").split(b'"')[1:-1]:
                self._by_name.setdefault(part, []).append(number)
        longest = max(map(len, self._by_name), default=0)
        self._short_names = re.compile(rb'"(?=([^"\\]{0,%d})"[ \t\r\n]*:)' % longest)  # may overlap

    def beginning_with(self, text: bytes) -> list[int]:
        at, found = bisect_left(self._sorted, (text, -1)), []
        while at < len(self._sorted) and self._sorted[at][0].startswith(text):
            found.append(self._sorted[at][1])
            at += 1
        return found

    def repeating(
        self,
        mask: NDArray[np.int32],
        name: bytes | None,
        before: bytes,
        history: bytes,
        may_come: Callable[[int], bool],
    ) -> list[int]:
        """Those in the mask that write a name again. `name` is what there is of one, after the text `before` of its
        object; None elsewhere. `may_come` decides of single tokens."""
        found: list[int] = []
        if name is not None and (b"\\" in name or b'"' + name in before or not before.isascii() or b"\\" in before):
            used = names_of(before)
            for other in used:  # as they are; every other spelling has a backslash
                ending = other.encode("utf-8", "surrogatepass") + b'"'
                if ending.startswith(name):
                    found += self.beginning_with(ending[len(name) :])
            if not all(map(_WRITTEN_ONE_WAY.fullmatch, used)):
                others = self._ending if b"\\" in name else self._escaped
                found += [token for token in _among(mask, others) if not may_come(token)]
        short = self._by_name.keys() & self._short_names.findall(history)
        for token in {token for part in short for token in self._by_name[part]}:
            if mask[token >> 5] >> (token & 31) & 1 and not may_come(token):
                found.append(token)
        return found


def _among(mask: NDArray[np.int32], tokens: NDArray[np.int64]) -> list[int]:
    return tokens[(mask[tokens >> 5] >> (tokens & 31)) & 1 != 0].tolist()  # type: ignore[no-any-return]


def without(mask: NDArray[np.int32], tokens: list[int]) -> NDArray[np.int32]:
    """The mask without the bits of some tokens."""
    numbers = np.array(tokens, np.int64)
    cleared = mask.copy()
    np.bitwise_and.at(cleared, numbers >> 5, ~(np.uint32(1) << (numbers & 31).astype(np.uint32)).view(np.int32))
    return cleared
