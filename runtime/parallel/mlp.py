"""MLPs of which a rank holds some slices. Each goes its way from first to last, so that no operation between the two
products sees how many lie beside it: on a CPU, the end of a vector is computed by other instructions than its middle.
Every expert of a mixture is cut as a dense MLP is, so that all ranks have as much to do whoever is chosen.

Legend: T tokens, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...kernels import Ops
from ..models.linear import Linear
from ..models.mixture import MixtureMlp
from ..models.mlp import DenseMlp
from .group import Group, tree_sum
from .layers import ColumnParallelLinear, OutputSection, RowParallelLinear


@dataclass(frozen=True, slots=True)
class TensorParallelMlp(DenseMlp):
    """The sizes are those of the whole."""

    gate_up: ColumnParallelLinear
    down: RowParallelLinear

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        slices = zip(self.gate_up.slices, self.down.slices, strict=True)
        return [down(ops.silu_and_mul(gate_up(x_TE))) for gate_up, down in slices]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.down.total(parts_TE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallelMixture(MixtureMlp):
    """The router is whole on every rank."""

    group: Group

    def expert(self, index: int) -> tuple[Linear, Linear]:
        size, shard = self.config.intermediate_size, self.group.shard
        halves = [OutputSection(size, shard.num_slices)] * 2
        return (
            ColumnParallelLinear(shard, halves, [experts.gate_up.expert(index) for experts in self.slices]),
            RowParallelLinear(self.group, size, None, [experts.down.expert(index) for experts in self.slices]),
        )

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.group.sum(tree_sum(parts_TE))
