"""The MLP of a layer as one value: dense, or a mixture of experts. The decoder does not know which.

Legend: T tokens, E hidden size, I intermediate size, N experts, K experts of a token, P = T * K pairs of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from ... import kernels
from ...kernels import Ops
from .experts import ExpertLinear
from .experts_config import ExpertsConfig
from .linear import Destination, Filled, Linear, stacked


class Mlp(Protocol):
    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, E]."""
        ...

    def linears(self) -> Iterator[Filled]:
        """The layers that may be quantised."""
        ...

    def destinations(self, prefix: str) -> dict[str, Destination]:
        """Every checkpoint tensor of the layer whose names begin with `prefix`."""
        ...


@dataclass(frozen=True, slots=True)
class DenseMlp:
    gate_up: Linear  # E -> 2I
    down: Linear  # I -> E
    intermediate_size: int
    hidden_size: int
    block: str = "mlp"

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.down(ops.silu_and_mul(self.gate_up(x_TE)))

    def linears(self) -> Iterator[Filled]:
        yield from (self.gate_up, self.down)

    def destinations(self, prefix: str) -> dict[str, Destination]:
        prefix, size = f"{prefix}.{self.block}", self.intermediate_size
        return {
            **stacked(prefix, [("gate_proj", size), ("up_proj", size)], self.gate_up),
            **stacked(prefix, [("down_proj", self.hidden_size)], self.down),
        }


@dataclass(frozen=True, slots=True)
class MixtureMlp:
    """Each token passes the K of N experts that its router scores highest, and their weighted sum comes out (Shazeer
    2017, Outrageously large neural networks, section 2; Mixtral, arXiv 2401.04088, section 2.1).

    Qwen2-MoE has one more expert that every token passes, times the sigmoid of a gate.
    """

    config: ExpertsConfig
    router_NE: torch.Tensor  # never quantised
    gate_up: ExpertLinear  # E -> 2I, N times
    down: ExpertLinear  # I -> E, N times
    shared: DenseMlp | None = None
    shared_gate_1E: torch.Tensor | None = None

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        num_per_token = self.config.num_per_token
        scores_TN = F.linear(x_TE, self.router_NE)
        weights_TK, experts_TK = kernels.choose_experts(scores_TN, num_per_token, self.config.normalised)
        order_P, ends_N = kernels.group_by_expert(experts_TK, self.config.num_experts)
        gate_up_PJ = self.gate_up(x_TE, ends_N, order_P // num_per_token)
        y_PE = self.down(ops.silu_and_mul(gate_up_PJ), ends_N, None)
        y_TE = kernels.combine_experts(y_PE, order_P, weights_TK)
        if self.shared is None:
            return y_TE
        assert self.shared_gate_1E is not None
        return y_TE + torch.sigmoid(F.linear(x_TE, self.shared_gate_1E)) * self.shared(x_TE, ops)

    def linears(self) -> Iterator[Filled]:
        yield from (self.gate_up, self.down)
        if self.shared is not None:
            yield from self.shared.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        names, size = self.config.names, self.config.intermediate_size
        N, E = self.router_NE.shape
        parts = {f"{prefix}.{names.block}.gate.weight": Destination((N, E), self.router_NE.copy_)}
        for index in range(N):
            expert = f"{prefix}.{names.block}.experts.{index}"
            parts |= stacked(expert, [(names.gate, size), (names.up, size)], self.gate_up.expert(index))
            parts |= stacked(expert, [(names.down, E)], self.down.expert(index))
        if self.shared is not None:
            assert self.shared_gate_1E is not None
            gate = Destination((1, E), self.shared_gate_1E.copy_)
            parts |= {f"{prefix}.{names.block}.shared_expert_gate.weight": gate, **self.shared.destinations(prefix)}
        return parts
