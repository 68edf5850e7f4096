"""Compiled products of a few float32 rows with packed weights, for decoding and verification with a small model.

torch's float32 product uses half of some processors, and oneDNN's has a fixed cost that only many rows repay. From two
rows on, these loops come near a core's peak. bfloat16 weights are kept as sixteen bits and widened when read: a product
of one row is bound by memory, and they take half of it.

Legend: P panels, C inputs, W outputs of a panel, T rows, N outputs.
"""

from __future__ import annotations

import numpy as np
import torch

from .compiled import Floats, compiled
from .packed_weights import MAX_ROWS, WIDTH, PackedWeights, for_both_weight_dtypes, panel_matmul

_one, _two, _three, _four, _five, _six = (panel_matmul(rows) for rows in range(1, MAX_ROWS + 1))


@compiled(*for_both_weight_dtypes("void({}, int64, float32[::1], float32[:,::1], float32[:,::1], int64)"))
def _multiply_panel(w_PCW: PackedWeights, panel: int, bias: Floats, x_TC: Floats, y_TN: Floats, n: int) -> None:
    """Multiply all rows by one panel, into the columns from `n` on. Rows go in blocks of nearly one size, while the
    panel stays in the cache."""
    t, T = 0, x_TC.shape[0]
    for blocks in range(-(-T // MAX_ROWS), 0, -1):
        rows = -(-(T - t) // blocks)
        if rows == 6:
            _six(w_PCW, panel, bias, x_TC, t, y_TN, n)
        elif rows == 5:
            _five(w_PCW, panel, bias, x_TC, t, y_TN, n)
        elif rows == 4:
            _four(w_PCW, panel, bias, x_TC, t, y_TN, n)
        elif rows == 3:
            _three(w_PCW, panel, bias, x_TC, t, y_TN, n)
        elif rows == 2:
            _two(w_PCW, panel, bias, x_TC, t, y_TN, n)
        else:
            _one(w_PCW, panel, bias, x_TC, t, y_TN, n)
        t += rows


@compiled(*for_both_weight_dtypes("void({}, float32[::1], float32[:,::1], float32[:,::1])"))
def multiply(w_PCW: PackedWeights, bias_N: Floats, x_TC: Floats, y_TN: Floats) -> None:
    """Write `y = x w^T + bias`."""
    N, whole = len(bias_N), len(bias_N) // WIDTH
    for panel in range(whole):
        _multiply_panel(w_PCW, panel, bias_N, x_TC, y_TN, panel * WIDTH)
    if whole < w_PCW.shape[0]:
        rest = N - whole * WIDTH
        bias_W, y_TW = np.zeros(WIDTH, dtype=np.float32), np.empty((x_TC.shape[0], WIDTH), dtype=np.float32)
        bias_W[:rest] = bias_N[whole * WIDTH :]
        _multiply_panel(w_PCW, whole, bias_W, x_TC, y_TW, 0)
        y_TN[:, whole * WIDTH :] = y_TW[:, :rest]


def packed_matmul(x_TC: torch.Tensor, w_PCW: PackedWeights, bias_N: Floats) -> torch.Tensor:
    """Return `x w^T + bias` as [T, N], float32 on the CPU."""
    y_TN = x_TC.new_empty((len(x_TC), len(bias_N)))
    multiply(w_PCW, bias_N, x_TC.contiguous().numpy(), y_TN.numpy())
    return y_TN
