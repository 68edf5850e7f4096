"""The MLP of which a rank holds some slices. Each goes its way from first to last, so that no operation between the two
products sees how many lie beside it: on a CPU, the end of a vector is computed by other instructions than its middle.

Legend: T tokens, E hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels import Ops
from ..models.mlp import DenseMlp
from .linears import ColumnLinear, RowLinear


@dataclass(frozen=True, slots=True)
class DividedMlp(DenseMlp):
    """The sizes are those of the whole."""

    gate_up: ColumnLinear
    down: RowLinear

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        slices = zip(self.gate_up.slices, self.down.slices, strict=True)
        return self.down.total([down(ops.silu_and_mul(gate_up(x_TE))) for gate_up, down in slices])
