"""Steps that a draft source was not to follow: which tokens they computed, kept as cheaply as can be until it asks.

While nothing is drafted for long, a step should cost the same as without a source; so its rows are only laid aside.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..engine.kv_pool import PAGE_SIZE
from ..scheduler.plan import Row

_MAX_ROWS = 512  # rows laid aside: what reading them takes at once is less than a step


class SkippedRows:
    """Rows in the order in which they were computed, none of them with guesses."""

    def __init__(self) -> None:
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
                written[row.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE] = token
        self._rows = []
        count = len(written)
        return np.fromiter(written, np.int64, count), np.fromiter(written.values(), np.int64, count)
