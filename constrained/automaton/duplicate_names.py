"""Names that an object has used, read from the output's text, and the tokens that would write one of them again.

Masks are cached by state, which does not depend on the text, so these tokens are removed from a mask afterwards.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_STRINGS_AND_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]')
_HAS_ONE_SPELLING = re.compile(r"[ !#-.0-\[\]-~]*")  # printable ASCII but quote, slash and backslash


class UsedNames(NamedTuple):
    """Names of an object's members.

    `endings` are the sorted spellings without escapes, with the quote after them. `have_one_spelling`: none of the
    names has another spelling with escapes.
    """

    names: frozenset[str]
    endings: list[bytes]
    have_one_spelling: bool


NO_NAMES = UsedNames(frozenset(), [], True)
_MAX_OBJECTS = 16  # of an output whose names are remembered, the last ones
_recent: deque[tuple[bytes, UsedNames]] = deque(maxlen=16)


@lru_cache(maxsize=16)
def used_names(text: bytes) -> UsedNames:
    """Return the names in an object's text, which ends with the opening quote of a name.

    Reading resumes at the end of the longest text that was read before.
    """
    known, names = b"", NO_NAMES
    for before, found_before in tuple(_recent):
        if len(before) > len(known) and text.startswith(before):
            known, names = before, found_before
    names = _names_until(len(text), text, max(0, len(known) - 1), names, 1 if known else 0)
    if text.endswith(b'"'):
        _recent.append((text, names))
    return names


def _names_until(end: int, text: bytes | bytearray, start: int, names: UsedNames, depth: int) -> UsedNames:
    """Add the names of an object between two places of a text.

    It begins there (`depth` 0), or its member's name does, whose quote is at `start` (1). `names` are those before.
    """
    found, last = set(), b""
    for match in _STRINGS_AND_BRACKETS.finditer(text, start, end):
        part = match[0]
        if part == b":" and depth == 1:
            found.add(json.loads(last) if b"\\" in last else last[1:-1].decode("utf-8", "surrogatepass"))
        elif part in b"{[":
            depth += 1
        elif part in b"}]":
            depth -= 1
        last = part
    if not found:
        return names
    endings = [name.encode("utf-8", "surrogatepass") + b'"' for name in found]
    return UsedNames(
        names.names | found,
        sorted(names.endings + endings),
        names.have_one_spelling and all(map(_HAS_ONE_SPELLING.fullmatch, found)),
    )


@dataclass
class NamesInTokens:
    """Tokens that contain a quoted name of the output.

    `pending` are those of a string at the output's end, which may become a name. `num_read` is a number of bytes.
    `objects` are the last objects whose names were asked for, by their place: where a name began, and those before it.
    """

    tokens: set[int] = field(default_factory=set)
    pending: set[int] = field(default_factory=set)
    num_read: int = 0
    objects: dict[int, tuple[int, UsedNames]] = field(default_factory=dict)
    bits: NDArray[np.int32] | None = None  # memory of the mask that `without` returned last

    def without(self, mask: NDArray[np.int32], tokens: list[int]) -> NDArray[np.int32]:
        """Return a copy of the mask without some tokens, which lasts until the next call."""
        if self.bits is None:
            self.bits = np.empty_like(mask)
        self.bits[:] = mask
        words = memoryview(self.bits.view(np.uint32))  # type: ignore[arg-type]  # written faster than through numpy
        for token in tokens:
            words[token >> 5] &= ~(1 << (token & 31))
        return self.bits

    def rollback(self, num_bytes: int) -> None:
        """Forget what was read after so many bytes."""
        self.num_read = min(self.num_read, num_bytes)
        self.objects = {place: known for place, known in self.objects.items() if known[0] <= num_bytes}

    def used_before(self, history: bytearray, object_began: int, name_began: int) -> UsedNames:
        """Return the names of an object before a name, given where both begin in the output, behind `{` and quote."""
        until, names = self.objects.get(object_began, (-1, NO_NAMES))
        if until != name_began:
            start, depth = (object_began, 0) if until < 0 else (until - 1, 1)
            names = _names_until(name_began, history, start, names, depth)
            if len(self.objects) == _MAX_OBJECTS and until < 0:
                del self.objects[next(iter(self.objects))]
            self.objects[object_began] = name_began, names
        return names


class QuotedTokens:
    """Index of a vocabulary's tokens by prefix, and by the texts that they hold in quotes."""

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        text: NDArray[np.uint8],
        starts: NDArray[np.int64],
        by_bytes: NDArray[np.int32],
    ) -> None:
        """Index tokens, their packed bytes, and the tokens that have bytes in the order of these."""
        self._tokens, self._by_bytes = tokens, by_bytes
        quotes, self.ending = _holding(ord('"'), text, starts)
        self._escaped = np.intersect1d(self.ending, _holding(ord("\\"), text, starts)[1], assume_unique=True)
        self._whole: dict[bytes, list[int]] = {}  # by the text between two quotes of a token
        self.doubled: list[int] = []  # tokens that hold a name, and the same text in quotes after it
        for number in self.ending[quotes > 1].tolist():
            parts = (tokens[number] or b"").split(b'"')
            quoted = list(map(_unescaped, parts[1:-1]))
            for part in quoted:
                self._whole.setdefault(part, []).append(number)
            follows = (part.lstrip(b" \t\r\n").startswith(b":") for part in parts[2:])
            if any(is_name and quoted[at] in quoted[at + 1 :] for at, is_name in enumerate(follows)):
                self.doubled.append(number)
        self._longest = int(np.diff(starts)[self.ending].max(initial=0))
        longest = max(map(len, self._whole), default=0)
        longest_spelling = 6 * longest  # each byte may be escaped, as \\u0061
        self._window = longest_spelling + 2
        # One of these texts, or a text with escapes, as a name or as a string at the end, which may become one. Matches
        # may overlap and begin at a string's end.
        plain = b"|".join(re.escape(text) for text in sorted(self._whole) if b"\\" not in text) or b"(?!)"
        escaped = rb'[^"\\]{0,%d}\\.(?:[^"\\]|\\.){0,%d}' % (longest_spelling, longest_spelling)
        self._names = re.compile(rb'"(?=(%s|%s)"[ \t\r\n]*(:|\Z))' % (plain, escaped), re.DOTALL)
        self._beginning_with = lru_cache(1 << 14)(self.beginning_with)

    def read(self, history: bytearray, names: NamesInTokens) -> None:
        """Add the names that the output has got since the last call."""
        if not names.pending and history.find(34, names.num_read) < 0:  # no quote
            names.num_read = len(history)
            return
        start, first = max(0, names.num_read - self._window), len(history)
        names.pending.clear()
        for match in self._names.finditer(history, start):
            tokens = self._whole.get(_unescaped(match[1]))
            if tokens is not None and match[2]:
                names.tokens.update(tokens)
            elif tokens is not None:
                names.pending.update(tokens)
                first = min(first, match.start())
        names.num_read = min(len(history), first + self._window)  # pending strings are read again

    def beginning_with(self, text: bytes) -> list[int]:
        """Return the tokens that begin with a text."""
        tokens = self._tokens
        at = bisect_left(self._by_bytes, text, key=lambda token: tokens[token])
        last = at
        while last < len(self._by_bytes) and tokens[self._by_bytes[last]].startswith(text):
            last += 1
        return self._by_bytes[at:last].tolist()  # type: ignore[no-any-return]

    def repeating(
        self,
        mask: NDArray[np.int32],
        name: bytes,
        used: UsedNames,
        names: NamesInTokens,
        may_come: Callable[[int], bool],
    ) -> list[int]:
        """Return the tokens of a mask that write a used name again.

        `name` is the part of a name at the output's end, `used` are the names before it in its object, none outside
        names. `may_come` decides about single tokens.
        """
        found: list[int] = []
        if used.endings:
            longest = len(name) + self._longest
            for at in range(bisect_left(used.endings, name), len(used.endings)):
                ending = used.endings[at]
                if not ending.startswith(name):
                    break
                if len(ending) <= longest:
                    found += self._beginning_with(ending[len(name) :])
            if not used.have_one_spelling:  # all other spellings have a backslash
                others = self.ending if b"\\" in name else self._escaped
                found += [token for token in _among(mask, others) if not may_come(token)]
        for token in (*self.doubled, *names.tokens, *names.pending):
            if mask[token >> 5] >> (token & 31) & 1 and not may_come(token):
                found.append(token)
        return found


def _unescaped(name: bytes) -> bytes:
    """Decode the content of a JSON string, or return it unchanged if it is not valid."""
    if b"\\" not in name:
        return name
    try:
        return str(json.loads(b'"' + name + b'"')).encode("utf-8", "surrogatepass")
    except ValueError:
        return name


def _holding(
    byte: int, text: NDArray[np.uint8], starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how often a byte occurs in the tokens that have it, and these tokens."""
    tokens, counts = np.unique(np.searchsorted(starts, np.flatnonzero(text == byte), "right") - 1, return_counts=True)
    return counts, tokens


def _among(mask: NDArray[np.int32], tokens: NDArray[np.int64]) -> list[int]:
    return tokens[(mask[tokens >> 5] >> (tokens & 31)) & 1 != 0].tolist()  # type: ignore[no-any-return]
