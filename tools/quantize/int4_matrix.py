"""A matrix in 4 bits with a scale and zero point per group, and its tensors in a checkpoint.

Legend: N rows (outputs), C columns (inputs), G groups of a row's C.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...runtime.models.quantised import int4_packing
from ...runtime.models.quantised.rounding import int4_groups


class Int4Matrix(NamedTuple):
    """Codes, scales and zero points."""

    codes_NC: torch.Tensor  # uint8 in [0, 16)
    scales_NG: torch.Tensor  # float32 that bfloat16 holds
    zeros_NG: torch.Tensor  # uint8 in [0, 16)
    groups_C: torch.Tensor | None = None  # int64: the group of each column; None: groups are neighbours

    def dense(self) -> torch.Tensor:
        """Return the weights as float32 [N, C]."""
        N, G = self.scales_NG.shape
        if self.groups_C is not None:
            return (self.codes_NC.float() - self.zeros_NG[:, self.groups_C]) * self.scales_NG[:, self.groups_C]
        codes = self.codes_NC.view(N, G, -1).float() - self.zeros_NG[..., None]
        return (codes * self.scales_NG[..., None]).flatten(1)

    def rows(self, start: int, size: int) -> Int4Matrix:
        """Return some of the rows."""
        return Int4Matrix(*(part[start : start + size] for part in self[:3]), self.groups_C)


def round_to_nearest(weight_NC: torch.Tensor, group_size: int) -> Int4Matrix:
    """Round each weight to the nearest code of its group."""
    return Int4Matrix(*int4_groups(weight_NC, group_size))


def packed_tensors(module: str, groups: Int4Matrix) -> dict[str, torch.Tensor]:
    """Return the tensors of compressed-tensors' `pack-quantized`, by name.

    The format's codes and zero points are signed from -8, with 8 added when packed: the same bits as ours.
    """
    assert groups.groups_C is None, "compressed-tensors has no act-order from version 0.12 on"
    return {
        f"{module}.weight_packed": int4_packing.pack(groups.codes_NC, 1),
        f"{module}.weight_scale": groups.scales_NG.bfloat16(),
        f"{module}.weight_zero_point": int4_packing.pack(groups.zeros_NG, 0),
        f"{module}.weight_shape": torch.tensor(groups.codes_NC.shape),
    }


def gptq_tensors(module: str, groups: Int4Matrix) -> dict[str, torch.Tensor]:
    """Return the tensors of GPTQ's format, by name. It stores zero points less one, modulo 16."""
    C, G = groups.codes_NC.shape[1], groups.scales_NG.shape[1]
    groups_C = torch.arange(C) // (C // G) if groups.groups_C is None else groups.groups_C
    return {
        f"{module}.qweight": int4_packing.pack(groups.codes_NC, 1).t().contiguous(),
        f"{module}.qzeros": int4_packing.pack((groups.zeros_NG.t() - 1) & 15, 1),
        f"{module}.scales": groups.scales_NG.t().half().contiguous(),
        f"{module}.g_idx": groups_C.to(torch.int32),
    }


def squared_error(difference_NC: torch.Tensor, hessian_CC: torch.Tensor) -> float:
    """Return the squared error of a product's outputs, summed over the inputs of `hessian_CC`."""
    return float(((difference_NC @ hessian_CC) * difference_NC).sum())
