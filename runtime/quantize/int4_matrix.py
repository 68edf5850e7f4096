"""A matrix in 4 bits, as the two calibrated methods and plain rounding give it and as checkpoints store it.

Legend: N rows (outputs), C columns (inputs), G groups of a row's C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..models.quantised import int4_packing as nibbles
from ..models.quantised.rounding import int4_groups


class Int4Matrix(NamedTuple):
    codes_NC: torch.Tensor  # uint8 in [0, 16)
    scales_NG: torch.Tensor  # float32 that bfloat16 holds
    zeros_NG: torch.Tensor  # uint8 in [0, 16)

    def dense(self) -> torch.Tensor:
        """float32 [N, C]."""
        N, G = self.scales_NG.shape
        codes = self.codes_NC.view(N, G, -1).float() - self.zeros_NG[..., None]
        return (codes * self.scales_NG[..., None]).flatten(1)

    def rows(self, start: int, size: int) -> Int4Matrix:
        return Int4Matrix(*(part[start : start + size] for part in self))


def round_to_nearest(weight_NC: torch.Tensor, group_size: int) -> Int4Matrix:
    return Int4Matrix(*int4_groups(weight_NC, group_size))


def packed_tensors(module: str, groups: Int4Matrix) -> dict[str, torch.Tensor]:
    """The tensors of compressed-tensors' `pack-quantized`, by their names. Codes and zero points, which the format
    takes to be signed from -8, have 8 added when packed: ours as they are."""
    return {
        f"{module}.weight_packed": nibbles.pack(groups.codes_NC, 1),
        f"{module}.weight_scale": groups.scales_NG.bfloat16(),
        f"{module}.weight_zero_point": nibbles.pack(groups.zeros_NG, 0),
        f"{module}.weight_shape": torch.tensor(groups.codes_NC.shape),
    }


def squared_error(difference_NC: torch.Tensor, hessian_CC: torch.Tensor) -> float:
    """Of a product's outputs, summed over the inputs whose outer products `hessian_CC` sums."""
    return float(((difference_NC @ hessian_CC) * difference_NC).sum())
