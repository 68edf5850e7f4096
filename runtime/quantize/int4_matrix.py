"""A matrix in 4 bits with a scale and zero point per group, and its tensors in a checkpoint.

Legend: N rows (outputs), C columns (inputs), G groups of a row's C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..models.quantised import int4_packing
from ..models.quantised.rounding import int4_groups


class Int4Matrix(NamedTuple):
    """Codes, scales and zero points."""

    codes_NC: torch.Tensor  # uint8 in [0, 16)
    scales_NG: torch.Tensor  # float32 that bfloat16 holds
    zeros_NG: torch.Tensor  # uint8 in [0, 16)

    def dense(self) -> torch.Tensor:
        """Return the weights as float32 [N, C]."""
        N, G = self.scales_NG.shape
        codes = self.codes_NC.view(N, G, -1).float() - self.zeros_NG[..., None]
        return (codes * self.scales_NG[..., None]).flatten(1)

    def rows(self, start: int, size: int) -> Int4Matrix:
        """Return some of the rows."""
        return Int4Matrix(*(part[start : start + size] for part in self))


def round_to_nearest(weight_NC: torch.Tensor, group_size: int) -> Int4Matrix:
    """Round each weight to the nearest code of its group."""
    return Int4Matrix(*int4_groups(weight_NC, group_size))


def packed_tensors(module: str, groups: Int4Matrix) -> dict[str, torch.Tensor]:
    """Return the tensors of compressed-tensors' `pack-quantized`, by name.

    The format's codes and zero points are signed from -8, with 8 added when packed: the same bits as ours.
    """
    return {
        f"{module}.weight_packed": int4_packing.pack(groups.codes_NC, 1),
        f"{module}.weight_scale": groups.scales_NG.bfloat16(),
        f"{module}.weight_zero_point": int4_packing.pack(groups.zeros_NG, 0),
        f"{module}.weight_shape": torch.tensor(groups.codes_NC.shape),
    }


def squared_error(difference_NC: torch.Tensor, hessian_CC: torch.Tensor) -> float:
    """Return the squared error of a product's outputs, summed over the inputs of `hessian_CC`."""
    return float(((difference_NC @ hessian_CC) * difference_NC).sum())
