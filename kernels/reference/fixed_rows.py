"""Computation on a fixed number of rows at a time, so that a row's bits do not depend on the number of rows.

Libraries choose by shape the order of a product's sums, and the instructions for the end of a vector.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

FIXED_ROWS = 16  # of ops that choose the number themselves


def in_fixed_rows(work: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Apply `work`, which maps each row by itself, to `x` [T, in] and return [T, out]. Each call gets [num_rows, in],
    filled up with rows of zeros."""
    T = x.shape[0]
    x = F.pad(x, (0, 0, 0, -T % num_rows))
    parts = [work(x[start : start + num_rows]) for start in range(0, max(T, 1), num_rows)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:T]
