"""By slot: which token it was written for, and whether a draft source has computed what belongs there.

A source computes lazily; this is how it finds out what a sequence lacks, whoever wrote its pages. Knows no device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..scheduler.plan import PageCopy, Row

_MAX_ROWS = 512  # rows laid aside: what reading them takes at once is less than a step


class SlotLedger:
    """For all pages, those of the host after those of the device."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._tokens = np.zeros(num_pages * page_size, dtype=np.int64)
        self._computed = np.zeros(num_pages * page_size, dtype=np.bool_)

    def slots(self, pages: Sequence[int], first: int, end: int) -> NDArray[np.int64]:
        """The slots of the positions [first, end) of the sequence whose page table is `pages`."""
        positions = np.arange(first, end)
        table = np.asarray(pages, dtype=np.int64)
        return table[positions // self._page_size] * self._page_size + positions % self._page_size

    def write(self, slots: NDArray[np.int64], tokens: Sequence[int] | NDArray[np.int64]) -> None:
        """The target has computed these tokens into these slots; the source has not."""
        self._tokens[slots] = tokens
        self._computed[slots] = False

    def note_computed(self, slots: NDArray[np.int64]) -> None:
        self._computed[slots] = True

    def num_computed(self, slots: NDArray[np.int64]) -> int:
        """How many of them, from the first on, the source has computed without a gap."""
        computed = self._computed[slots]
        return len(slots) if computed.all() else int(computed.argmin())

    def tokens(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those that the slots were written for."""
        return self._tokens[slots]

    def copy(self, copies: Sequence[PageCopy]) -> None:
        for copy in copies:
            source, target = copy.source * self._page_size, copy.target * self._page_size
            for column in (self._tokens, self._computed):
                column[target : target + copy.num_tokens] = column[source : source + copy.num_tokens]


class SkippedRows:
    """Rows in the order in which they were computed, none of them with guesses."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._rows: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, rows: Sequence[Row]) -> bool:
        """Whether they are so many by now that they should be taken."""
        self._rows += rows
        return len(self._rows) >= _MAX_ROWS

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slots that were written, each once, and the token that each holds now."""
        written: dict[int, int] = {}
        for row in self._rows:
            for position, token in enumerate(row.tokens, row.first_position):
                written[row.pages[position // self._page_size] * self._page_size + position % self._page_size] = token
        self._rows = []
        count = len(written)
        return np.fromiter(written, np.int64, count), np.fromiter(written.values(), np.int64, count)
