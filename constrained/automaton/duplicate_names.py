"""Names that an object has used, read from the output's text, and the tokens that would write one of them again.

Masks are cached by state, which does not depend on the text, so these tokens are removed from a mask afterwards.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...loops import compiled

_OPENS, _CLOSES, _COLON, _QUOTE, _BACKSLASH = (0x7B, 0x5B), (0x7D, 0x5D), 0x3A, 0x22, 0x5C
_NESTS_OR_ESCAPES = (b"{", b"[", b"\\")
_MOST_AT_ONCE = 32  # names that are found by one compiled call
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
    found: set[str] = set()
    if start >= end:
        return names
    segment = bytes(text[start:end])
    if depth and not any(mark in segment for mark in _NESTS_OR_ESCAPES):
        parts = segment.split(b'"')
        strings = zip(parts[1::2], parts[2::2], strict=False)
        named = (name for name, after in strings if after.lstrip(b" \t\n\r").startswith(b":"))
        found.update(name.decode("utf-8", "surrogatepass") for name in named)
    else:
        found.update(_nested_names(text, start, end, depth))
    if not found:
        return names
    endings = [name.encode("utf-8", "surrogatepass") + b'"' for name in found]
    return UsedNames(
        names.names | found,
        sorted(names.endings + endings),
        names.have_one_spelling and all(map(_HAS_ONE_SPELLING.fullmatch, found)),
    )


def _nested_names(text: bytes | bytearray, start: int, end: int, depth: int) -> Iterator[str]:
    """Yield the names of an object between two places of a text, whatever its members are."""
    data = np.frombuffer(text if isinstance(text, bytearray) else bytearray(text), np.uint8)
    places = np.empty((_MOST_AT_ONCE, 2), np.int64)
    while start < end:
        number, start, depth = find_names(data, start, end, depth, places)
        for first, last in places[:number].tolist():
            name = text[first:last]
            yield json.loads(b'"' + name + b'"') if b"\\" in name else name.decode("utf-8", "surrogatepass")


@compiled("(uint8[::1], int64, int64, int64, int64[:,::1])")
def find_names(
    data: NDArray[np.uint8], at: int, end: int, depth: int, places: NDArray[np.int64]
) -> tuple[int, int, int]:
    """Write where names of an object begin and end, between two places of a text, until there is no room.

    `depth` is 0 before the object and 1 inside it. Returns the number of names, and the place and depth to go on at.
    """
    number, first, last = 0, at, at
    while at < end:
        byte = data[at]
        at += 1
        if byte == _QUOTE:
            first = last = at
            while last < end and data[last] != _QUOTE:
                last += 2 if data[last] == _BACKSLASH else 1
            at = last + 1
        elif byte in _OPENS:
            depth += 1
        elif byte in _CLOSES:
            depth -= 1
        elif byte == _COLON and depth == 1:
            places[number, 0], places[number, 1] = first, last
            number += 1
            if number == len(places):
                break
    return number, at, depth


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
        words = (tokens[number] or b"" for number in self.ending.tolist())
        self._heads = frozenset(word[: word.index(b'"')].decode(errors="replace") for word in words)
        self._longest = int(np.diff(starts)[self.ending].max(initial=0))
        longest = max(map(len, self._whole), default=0)
        longest_spelling = 6 * longest  # each byte may be escaped, as \\u0061
        self._window = longest_spelling + 2
        # A text that may be one of these, as a name or as a string at the end, which may become one. Matches may
        # overlap and begin at a string's end.
        spelling = rb'[^"\\]{0,%d}(?:\\.(?:[^"\\]|\\.){0,%d})?' % (longest_spelling, longest_spelling)
        first = b"".join(re.escape((text + b'"')[:1]) for text in sorted(self._whole))  # most names begin otherwise
        self._names = re.compile(rb'"(?=[\\%s])(?=(%s)"[ \t\r\n]*(:|\Z))' % (first, spelling), re.DOTALL)
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
            if not name:
                for text in used.names & self._heads:
                    found += self._beginning_with(text.encode() + b'"')
            for at in range(bisect_left(used.endings, name), len(used.endings)) if name else ():
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
