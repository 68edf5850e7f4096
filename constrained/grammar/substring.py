"""Quotes of a text: the whole output stands in the text, from the beginning of a word to the end of one.

The beginnings of words are sorted by what follows them. A state is the range of those that go on as the output did, so
states are those of a suffix tree, made where an output comes by.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..automaton.automaton import Automaton, TransitionRow
from ..automaton.vocabulary import Vocabulary
from ..budget import count
from ..errors import GrammarError
from ..record import record
from ..regex.charset import has_surrogates

MAX_TEXT = 1 << 22  # bytes
_STOP = 256  # stands for bytes that no quote may contain
_SPACE, _WORD, _ALONE, _OTHER = range(4)  # kinds of characters; those of scripts without spaces are words of their own
_WITHOUT_SPACES = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x9FFF), (0xF900, 0xFAFF))


class Quotes:
    """A text whose parts are quoted: `symbols` are its bytes, `ends` says before which of them a quote may end.

    `starts` are the places where words begin, sorted by what follows. Compared by identity.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        if has_surrogates(text):
            raise GrammarError("the text to quote contains an unpaired surrogate")
        data = text.encode()
        if len(data) > MAX_TEXT:
            raise GrammarError(f"the text to quote has {len(data)} bytes, more than {MAX_TEXT}")
        self.symbols = np.frombuffer(data, np.uint8).astype(np.int16)
        places, begins, ends = _word_places(text)
        self.ends = np.zeros(len(data) + 1, np.bool_)
        self.ends[places[1:][ends]] = True
        usable = vocabulary.used_bytes & vocabulary.single_bytes
        starts = places[:-1][begins]
        self._refuse_bytes(sorted(set(data) - usable), starts)
        starts = starts[self.symbols[starts] != _STOP]
        if not len(starts):
            raise GrammarError("there is no word to quote in the text")
        self.starts = starts[np.argsort(_ranks(self.symbols)[starts])]

    def _refuse_bytes(self, unusable: list[int], starts: NDArray[np.int64]) -> None:
        """Stop quotes before words that cannot be spelled, and behind the last word before these or the text's end."""
        bounds = np.append(starts, len(self.symbols))
        places = np.flatnonzero(np.isin(self.symbols, unusable))
        for first in np.unique(np.searchsorted(starts, places, side="right")).tolist():
            self.symbols[(0 if first == 0 else bounds[first - 1]) : bounds[first]] = _STOP
        stops = np.flatnonzero(np.diff(np.append(self.symbols, _STOP) == _STOP, prepend=False) > 0)
        may_end = np.flatnonzero(self.ends)
        for stop in stops[np.append(self.symbols, _STOP)[stops] == _STOP].tolist():
            last = np.searchsorted(may_end, stop, side="right") - 1
            self.symbols[(may_end[last] if last >= 0 else 0) : stop] = _STOP


@record()
class QuoteState:
    """State after `depth` bytes of a quote, which `quotes.starts[low:high]` go on with."""

    quotes: Quotes
    low: int
    high: int
    depth: int

    def __hash__(self) -> int:
        return hash((id(self.quotes), self.low, self.high, self.depth))

    def expand(self, automaton: Automaton) -> TransitionRow:
        quotes = self.quotes
        places = quotes.starts[self.low : self.high] + self.depth
        inside = int(places[0] >= len(quotes.symbols))  # the shortest of them is the first
        following = quotes.symbols[places[inside:]]
        cuts = [0, *(np.flatnonzero(np.diff(following)) + 1).tolist(), len(following)]
        edges = {}
        for begin, end in pairwise(cuts):
            if begin < end and (byte := int(following[begin])) != _STOP:
                low = self.low + inside
                edges[byte] = automaton.goto(QuoteState(quotes, low + begin, low + end, self.depth + 1))
        return TransitionRow(edges, accepts=self.depth > 0 and bool(quotes.ends[places].any()))


def quote_start(text: str, vocabulary: Vocabulary) -> QuoteState:
    """Return the state before a quote. Raises GrammarError for a text without a word, and one that is too long."""
    quotes = Quotes(text, vocabulary)
    return QuoteState(quotes, 0, len(quotes.starts), 0)


def _word_places(text: str) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the byte at which each character begins, and which characters begin a word or may end a quote."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    distinct, number = np.unique(points, return_inverse=True)
    kinds = np.array([_kind(int(point)) for point in distinct], np.int8)[number]
    sizes = np.array([len(chr(point).encode()) for point in distinct.tolist()], np.int64)[number]
    places = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    joined = np.zeros(len(points) + 1, np.bool_)  # whether a word goes on from the character before
    joined[1:-1] = (kinds[1:] == _WORD) & (kinds[:-1] == _WORD)
    is_text = kinds != _SPACE
    return places, is_text & ~joined[:-1], is_text & ~joined[1:]


def _kind(point: int) -> int:
    character = chr(point)
    if character.isspace():
        return _SPACE
    if any(first <= point <= last for first, last in _WITHOUT_SPACES) or point >= 0x20000:
        return _ALONE
    return _WORD if unicodedata.category(character)[0] in "LNM" or character == "_" else _OTHER


def _ranks(symbols: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the place of each suffix among all in order. The beginning of another one comes before it."""
    size, length = len(symbols), 1
    ranks = symbols.astype(np.int64) + 1
    while True:
        count(size)
        behind = np.zeros(size, np.int64)
        behind[:-length] = ranks[length:]
        keys = ranks * (int(ranks.max()) + 1) + behind
        order = np.argsort(keys, kind="stable")
        found = keys[order]
        ranks = np.empty(size, np.int64)
        ranks[order] = np.concatenate([[1], 1 + np.cumsum(found[1:] != found[:-1])])
        length *= 2
        if length >= size or int(ranks.max()) == size:
            return ranks
