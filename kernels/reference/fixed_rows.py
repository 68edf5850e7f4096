"""Work on rows, always on the same number of them at a time, so that a row's bits do not depend on how many there are:
libraries choose by shapes how they add up a product, and which instructions compute the end of a vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

FIXED_ROWS = 16  # of the ops that have to choose a number


def in_fixed_rows(work: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """What `work`, which treats every row by itself, makes of [T, in]: [T, out]. It gets [num_rows, in] each time, the
    last rows zeros."""
    T = x.shape[0]
    x = F.pad(x, (0, 0, 0, -T % num_rows))
    parts = [work(x[start : start + num_rows]) for start in range(0, max(T, 1), num_rows)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:T]
