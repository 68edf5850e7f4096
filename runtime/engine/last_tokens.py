"""Tokens that the last step sampled, on their device: the next step may be launched before the host has them.

Legend: T tokens of the next step, O tokens sampled, F rows that follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch

from ...kernels import to_device
from ..scheduler.plan import Row


class LastTokens(msgspec.Struct, frozen=True):
    """Tokens sampled by the last step, and by row of its plan the index of the row's token."""

    tokens_O: torch.Tensor  # int64
    index: Mapping[int, int] | Sequence[int]

    def fill(self, ids_T: torch.Tensor, rows: Sequence[Row], starts_R: Sequence[int]) -> None:
        """Write the tokens that `rows` of the next plan follow into `ids_T`, where the rows' tokens start."""
        pairs = [
            (start, self.index[row.follows])
            for row, start in zip(rows, starts_R, strict=True)
            if row.follows is not None
        ]
        if pairs:
            targets_F, sources_F = to_device(list(np.array(pairs).T.copy()), ids_T.device)
            # In place of a token there may be NOT_FINITE: its request has failed when the step's result is read.
            ids_T.index_copy_(0, targets_F, self.tokens_O[sources_F].clamp_min_(0))


NO_LAST_TOKENS = LastTokens(torch.empty(0, dtype=torch.int64), {})
