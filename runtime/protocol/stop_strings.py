"""Find stop strings in a stream. The core, the detokenizer and the backends of the language all use this scanner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A stop string in a stream; the smallest of several counts.

    `start` and `end` are byte offsets from the start of the chunk in which it ended, so `start` may be negative.
    """

    end: int
    start: int
    text: bytes


class StopStrings:
    """Finds stop strings in a stream of bytes, wherever it is cut.

    It works on bytes, because a token may hold a part of a character.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop.encode() for stop in stops]
        self._num_kept = max(map(len, self._stops), default=1) - 1
        self._tail = b""  # the last bytes, in which a match may have begun

    def feed(self, data: bytes) -> StopMatch | None:
        """Advance by `data`. Returns as `find`."""
        found = self.find(data)
        window = self._tail + data
        self._tail = window[max(0, len(window) - self._num_kept) :]
        return found

    def find(self, data: bytes) -> StopMatch | None:
        """Return the match that would end first within `data`, or None; of several that end there, the longest."""
        num_before = len(self._tail)
        window = self._tail + data
        matches = []
        for stop in self._stops:
            # Matches that ended before `data` were reported, or ignored on purpose.
            if (at := find_ending_beyond(window, stop, num_before)) >= 0:
                matches.append(StopMatch(at + len(stop) - num_before, at - num_before, stop))
        return min(matches, default=None)

    def reset(self) -> None:
        """Forget the bytes so far: what comes next is not adjacent to them."""
        self._tail = b""

    @property
    def num_kept(self) -> int:
        """Number of bytes before the next ones in which a match may have begun."""
        return self._num_kept

    @property
    def num_pending(self) -> int:
        """Number of the last bytes that may be the beginning of a match."""
        tail = self._tail
        starts = (start for start in range(len(tail)) if any(stop.startswith(tail[start:]) for stop in self._stops))
        return len(tail) - next(starts, len(tail))


def find_ending_beyond(window: bytes, stop: bytes, num_before: int) -> int:
    """Return the start of the first occurrence that ends beyond the first `num_before` bytes, or -1."""
    return window.find(stop, max(0, num_before + 1 - len(stop)))
