"""The tokens that a step sampled, on their device: the step after it may be launched before the host knows them.

Legend: T tokens of the step after, O tokens sampled, F rows that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...kernels import to_device
from ..scheduler.plan import Row


@dataclass(frozen=True)
class LastTokens:
    """`index` says where the token is that a row of the plan sampled."""

    tokens_O: torch.Tensor  # int64
    index: dict[int, int]

    def fill(self, ids_T: torch.Tensor, rows: Sequence[Row], starts_R: Sequence[int]) -> None:
        """Write the tokens of those rows that follow a row of that plan into `ids_T`, where their tokens start."""
        pairs = [
            (start, self.index[row.follows])
            for row, start in zip(rows, starts_R, strict=True)
            if row.follows is not None
        ]
        if pairs:
            targets_F, sources_F = to_device(list(np.array(pairs).T.copy()), ids_T.device)
            ids_T.index_copy_(0, targets_F, self.tokens_O[sources_F])


NO_LAST_TOKENS = LastTokens(torch.empty(0, dtype=torch.int64), {})
