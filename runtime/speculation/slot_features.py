"""The target's features by KV slot, for draft sources that read hidden states of its steps.

Features of every followed step are kept, since they cannot be got again; they are stored when somebody reads them.

Legend: S slots, E size of a stored feature, T kept tokens of a step, C captured size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine.draft_source import DraftRow
from ..engine.kv_pool import PAGE_SIZE
from ..scheduler.plan import Row
from .slot_ledger import SkippedRows, SlotLedger

_MAX_PENDING_STEPS = 64  # steps pending to be stored: following must cost next to nothing while nothing is drafted
_MAX_PENDING_TOKENS = 512


class SlotFeatures:
    """Writes the tokens and features of followed steps to `ledger` and `feature_SE`, by slot.

    `project` turns captured states [T, C] into features [T, E].
    """

    def __init__(
        self, ledger: SlotLedger, feature_SE: torch.Tensor, project: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._ledger, self._feature_SE, self._project = ledger, feature_SE, project
        self._slots: list[int] = []  # pending, as are `_tokens` and `_captured`
        self._tokens: list[int] = []
        self._captured: list[torch.Tensor] = []
        self._skipped = SkippedRows(PAGE_SIZE)

    @property
    def is_full(self) -> bool:
        """True when so much is pending that `store` should be called."""
        return len(self._captured) >= _MAX_PENDING_STEPS or len(self._slots) >= _MAX_PENDING_TOKENS

    def record(self, rows: Sequence[DraftRow], captured_TC: torch.Tensor) -> None:
        """Record a step's tokens and captured states, to be stored before they are read."""
        self.store_skipped()
        for row in rows:
            for position in range(row.first_position, row.end):
                self._slots.append(row.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE)
            self._tokens += row.kept
        self._captured.append(captured_TC)

    def skip(self, rows: Sequence[Row]) -> None:
        """Record rows whose states were not captured."""
        self.store()
        if self._skipped.add(rows):
            self.store_skipped()

    def store(self) -> None:
        """Store what is pending."""
        if not self._slots:
            return
        # A slot that was written twice holds the last value; devices do not guarantee an order.
        last = {slot: index for index, slot in enumerate(self._slots)}
        slots = np.fromiter(last, dtype=np.int64, count=len(last))
        chosen = np.fromiter(last.values(), dtype=np.int64, count=len(last))
        self._ledger.write(slots, np.array(self._tokens)[chosen])
        captured_TC = torch.cat(self._captured) if len(self._captured) > 1 else self._captured[0]
        if len(chosen) < len(self._slots):
            captured_TC = captured_TC.index_select(0, self._tensor(chosen))
        self._feature_SE.index_copy_(0, self._tensor(slots), self._project(captured_TC))
        self._slots, self._tokens, self._captured = [], [], []

    def store_skipped(self) -> None:
        """Store skipped tokens, with zeros for their missing features, so that no other token's are read."""
        if not self._skipped:
            return
        slots, tokens = self._skipped.take()
        self._ledger.write(slots, tokens)
        self._feature_SE.index_fill_(0, self._tensor(slots), 0.0)

    def _tensor(self, array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._feature_SE.device, non_blocking=True)
