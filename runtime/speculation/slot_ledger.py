"""Token ids by KV slot: the token each slot was written for, and whether a draft source has computed its content.

A source computes lazily, and finds out here what a sequence lacks. Steps that it skips are only recorded, so that a
step costs the same as without a source while nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..scheduler.plan import PageCopy, Row

_MAX_ROWS = 512  # rows; reading that many at once takes less than a step


class SlotLedger:
    """Records of all slots, host pages after device pages."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._tokens = np.zeros(num_pages * page_size, dtype=np.int64)
        self._computed = np.zeros(num_pages * page_size, dtype=np.bool_)

    def slots(self, pages: Sequence[int], first: int, end: int) -> NDArray[np.int64]:
        """Return the slots of positions [first, end) of the sequence with page table `pages`."""
        positions = np.arange(first, end)
        table = np.asarray(pages, dtype=np.int64)
        return table[positions // self._page_size] * self._page_size + positions % self._page_size

    def write(self, slots: NDArray[np.int64], tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """Record that the target has computed these tokens into these slots, and the source has not."""
        self._tokens[slots] = tokens
        self._computed[slots] = False

    def note_computed(self, slots: NDArray[np.int64]) -> None:
        self._computed[slots] = True

    def num_computed(self, slots: NDArray[np.int64]) -> int:
        """Return the number of slots from the first on that the source has computed without a gap."""
        computed = self._computed[slots]
        return len(slots) if computed.all() else int(computed.argmin())

    def tokens(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens that the slots were written for."""
        return self._tokens[slots]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            source, target = copy.source * self._page_size, copy.target * self._page_size
            for column in (self._tokens, self._computed):
                column[target : target + copy.num_tokens] = column[source : source + copy.num_tokens]


class SkippedRows:
    """Rows of skipped steps in the order of computation, none with drafts."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._rows: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, rows: Sequence[Row]) -> bool:
        """Record rows. Returns True when there are so many that `take` should be called."""
        self._rows += rows
        return len(self._rows) >= _MAX_ROWS

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Take the slots that were written, each once, and the token that each holds now."""
        written: dict[int, int] = {}
        for row in self._rows:
            for position, token in enumerate(row.tokens, row.first_position):
                written[row.pages[position // self._page_size] * self._page_size + position % self._page_size] = token
        self._rows = []
        count = len(written)
        return np.fromiter(written, np.int64, count), np.fromiter(written.values(), np.int64, count)
