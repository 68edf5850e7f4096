"""Streaming detokenisation: token ids to text, cut at stop strings and pattern matches.

The work per token does not grow with the output: only undecided bytes are kept.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...constrained.regex.search import Scan
from ..protocol.stop_strings import StopStrings, find_ending_beyond
from .interface import Tokenizer

_MAX_PARTIAL = 3  # bytes of a character that is not complete


class Detokenizer:
    """Stream of one output's text.

    The texts of `add` and `finish` together are `decode` of all ids, cut before the stop string or match that ended the
    output. A text never ends within a character, and never contains the possible beginning of a stop string or of a
    match of `patterns`, a scan that this detokenizer alone feeds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        patterns: Scan | None = None,
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._pieces = _TokenPieces(tokenizer, skip_special_tokens)
        strings = StopStrings(stops)
        self._max_held = strings.num_kept
        self._patterns = patterns
        self._scans: list[StopStrings | Scan] = [strings] if stops else []
        if patterns is not None:
            self._scans.append(patterns)
        self._held = b""  # the longest suffix of the output that may begin a stop string or match
        self._num_skipped = 0  # characters at the beginning of what is held back that were given before
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def holds_back(self) -> bool:
        """True when bytes are held back: they may be cut off later, or are part of a character."""
        return bool(self._held) or bool(self._decoder.getstate()[0])

    def add(self, ids: Iterable[int]) -> str:
        """Return the text that is certain after these ids. Pass the ids that completed a stop string to `finish`
        instead."""
        if not self._scans:
            return self._without_skipped(self._decoder.decode(self._pieces.join(ids)))
        return self._without_skipped("".join([self._add(token) for token in ids]))

    def skip(self, ids: Sequence[int]) -> None:
        """Take the last ids of a text that was given before. Call it first: the stream continues that text.

        A stop string may begin in them. A character that begins in them belongs to the stream.
        """
        if not ids:
            return
        self.add(ids[self._first_relevant(ids) :])
        state = self._decoder.getstate()
        self._num_skipped = len(self._decoder.decode(self._held))
        self._decoder.setstate(state)

    def _first_relevant(self, ids: Sequence[int]) -> int:
        """Return the index of the first id on which what is held back can depend."""
        if self._patterns is not None:
            return 0  # a match may be of any length
        num_bytes, index = self._max_held + _MAX_PARTIAL, len(ids)
        while index and num_bytes > 0:
            index -= 1
            num_bytes -= len(self._pieces.of(ids[index])[0])
        return index

    def _without_skipped(self, text: str) -> str:
        if not self._num_skipped:
            return text
        num = min(self._num_skipped, len(text))
        self._num_skipped -= num
        return text[num:]

    def finish(self, ids: Sequence[int] = (), *, stop: str | None = None, num_behind: int = 0) -> str:
        """Return the rest of the text. `ids` are the last ones.

        `stop` is the matched text, which ends in the last id; the text ends before it. To keep it, pass the number of
        the last id's bytes behind it instead, and build the detokenizer without stops.
        """
        if num_behind:
            text, (data, _) = self.add(ids[:-1]), self._pieces.of(ids[-1])
            return text + self._without_skipped(self._decoder.decode(data[:-num_behind], final=True))
        if stop is None:
            return self.add(ids) + self._without_skipped(self._decoder.decode(self._held, final=True))
        text = self.add(ids[:-1])
        window, _ = self._window(ids[-1])
        end = _match_start(window, stop, len(self._held))
        return text + self._without_skipped(self._decoder.decode(window[:end], final=True))

    def _window(self, token: int) -> tuple[bytes, int]:
        """Return the held bytes with the token's, and the number of them that can be part of no match."""
        data, ends_stops = self._pieces.of(token)
        window = self._held + data
        for scan in self._scans:
            if ends_stops:
                scan.reset()
            else:
                scan.feed(data)
        return window, len(window) - max((scan.num_pending for scan in self._scans), default=0)

    def _add(self, token: int) -> str:
        window, num_certain = self._window(token)
        self._held = window[num_certain:]
        return self._decoder.decode(window[:num_certain])


class Cut(NamedTuple):
    """Ids cut at a stop string: `ids[:num_whole]` lie before the cut, `leftover` is the text between them and it.

    `num_behind` bytes of the ids lie behind the cut.
    """

    text: str
    num_whole: int
    leftover: str
    num_behind: int


def cut(
    tokenizer: Tokenizer, ids: Sequence[int], stop: str, *, skip_special_tokens: bool = True, keeps_stop: bool = False
) -> Cut:
    """Cut `ids` before the stop, or behind it: the matched text, which ends in the last of them.

    The whole ids end at the end of a character, so that `text` is their text followed by `leftover`.
    """
    pieces = _TokenPieces(tokenizer, skip_special_tokens)
    data: list[bytes] = []
    num_bytes = num_apart = 0  # the first `num_apart` bytes hold no part of the match
    for token in ids:
        piece, ends_stops = pieces.of(token)
        data.append(piece)
        num_bytes += len(piece)
        num_apart = num_bytes if ends_stops else num_apart
    output = b"".join(data)
    end = _match_start(output, stop, max(len(output) - len(data[-1]), num_apart + len(stop.encode()) - 1))
    end += len(stop.encode()) if keeps_stop else 0
    num_whole = num_bytes = at = 0
    for number, piece in enumerate(data, start=1):
        at += len(piece)
        if at > end:
            break
        if at == end or not _is_continuation(output[at]):
            num_whole, num_bytes = number, at
    text = output[:end].decode("utf-8", errors="replace")
    return Cut(text, num_whole, output[num_bytes:end].decode("utf-8", errors="replace"), len(output) - end)


class _TokenPieces:
    """Bytes of each token, and whether stop strings end there: at special tokens that are shown."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        special = {} if skip_special_tokens else tokenizer.special_ids
        self._shown = {token: name.encode() for name, token in special.items()}

    def of(self, token: int) -> tuple[bytes, bool]:
        if token in self._shown:
            return self._shown[token], True
        data = self._token_bytes[token] if 0 <= token < len(self._token_bytes) else None
        return data or b"", False

    def join(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of several tokens."""
        if self._shown:
            return b"".join([self.of(token)[0] for token in ids])
        token_bytes, num = self._token_bytes, len(self._token_bytes)
        return b"".join([token_bytes[token] or b"" for token in ids if 0 <= token < num])


def _match_start(window: bytes, stop: str, num_before: int) -> int:
    """Return the start of the first match that ends beyond the first `num_before` bytes."""
    at = find_ending_beyond(window, stop.encode(), num_before)
    assert at >= 0, f"the stop string {stop!r} does not end in the last token of the output"
    return at


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80
