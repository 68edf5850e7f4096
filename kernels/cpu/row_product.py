"""One row times a matrix: what decoding a single stream of a small model consists of.

torch and oneDNN read a matrix of a megabyte at half of what a core can; these loops read it at memory's speed.
"""

from __future__ import annotations

import numpy as np
import torch

from .compiled import Floats, compiled


@compiled("void(float32[:,::1], float32[::1], float32[::1])")
def _multiply(w_NC: Floats, x_C: Floats, y_N: Floats) -> None:
    for n in range(w_NC.shape[0]):
        total = np.float32(0)
        for c in range(w_NC.shape[1]):
            total += w_NC[n, c] * x_C[c]
        y_N[n] = total


def row_product(x_1C: torch.Tensor, w_NC: Floats) -> torch.Tensor:
    """`x w^T` as [1, N], float32 on the CPU. `w_NC` lies row by row, as `tensor.numpy()` gives it."""
    y_1N = x_1C.new_empty((1, len(w_NC)))
    _multiply(w_NC, x_1C[0].contiguous().numpy(), y_1N[0].numpy())
    return y_1N
