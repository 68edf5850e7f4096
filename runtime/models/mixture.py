"""A mixture of experts as an MLP: a router, the experts, and for Qwen2-MoE one more that every token passes.

Legend: T tokens, E hidden size, I intermediate size, N experts, K experts of a token, P = T * K pairs of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ... import kernels
from ...kernels import Ops
from .experts import ExpertLinear
from .experts_config import ExpertsConfig
from .linear import Destination, Linear, Loadable, stacked_destinations
from .mlp import DenseMlp, Mlp


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """Times the sigmoid of its gate."""

    mlp: DenseMlp
    gate: Linear  # E -> 1, never quantised
    block: str

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        share_T1 = torch.sigmoid(self.gate(x_TE))
        return [share_T1 * part_TE for part_TE in self.mlp.parts(x_TE, ops)]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.mlp.total(parts_TE)

    def linears(self) -> Iterator[Loadable]:
        yield from self.mlp.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        gate = stacked_destinations(f"{prefix}.{self.block}", [("shared_expert_gate", 1)], self.gate)
        return {**gate, **self.mlp.destinations(prefix)}


class ExpertSlice(NamedTuple):
    """Of every expert the same part, or all of it."""

    gate_up: ExpertLinear  # E -> 2I, N times
    down: ExpertLinear  # I -> E, N times

    def each(self, change: Callable[[Linear], Linear]) -> ExpertSlice:
        return ExpertSlice(self.gate_up.each(change), self.down.each(change))


@dataclass(frozen=True, slots=True)
class MixtureMlp:
    """Each token passes the K of N experts that its router scores highest, and their weighted sum comes out (Shazeer
    2017, Outrageously large neural networks, section 2; Mixtral, arXiv 2401.04088, section 2.1)."""

    config: ExpertsConfig
    hidden_size: int
    router: Linear  # E -> N, never quantised
    slices: tuple[ExpertSlice, ...]  # this rank's
    shared: Mlp | None = None

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        num_per_token = self.config.num_per_token
        weights_TK, experts_TK = kernels.choose_experts(self.router(x_TE), num_per_token, self.config.normalised)
        order_P, ends_N = kernels.group_by_expert(experts_TK, self.config.num_experts)
        tokens_P = order_P // num_per_token
        parts_TE = []
        for experts in self.slices:
            gate_up_PJ = experts.gate_up(x_TE, ends_N, tokens_P, ops)
            y_PE = experts.down(ops.silu_and_mul(gate_up_PJ), ends_N, None, ops)
            parts_TE.append(ops.combine_experts(y_PE, order_P, weights_TK))
        if self.shared is None:
            return parts_TE
        # Slice by slice, so that both need one sum over the ranks.
        return [part + shared for part, shared in zip(parts_TE, self.shared.parts(x_TE, ops), strict=True)]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        [y_TE] = parts_TE
        return y_TE

    def expert(self, index: int) -> tuple[Linear, Linear]:
        """The two products of the whole expert, to be filled."""
        [experts] = self.slices
        return experts.gate_up.expert(index), experts.down.expert(index)

    def linears(self) -> Iterator[Loadable]:
        for experts in self.slices:
            yield from experts
        if self.shared is not None:
            yield from self.shared.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        names, size = self.config.names, self.config.intermediate_size
        parts = stacked_destinations(f"{prefix}.{names.block}", [("gate", self.config.num_experts)], self.router)
        for index in range(self.config.num_experts):
            expert = f"{prefix}.{names.block}.experts.{index}"
            gate_up, down = self.expert(index)
            parts |= stacked_destinations(expert, [(names.gate, size), (names.up, size)], gate_up)
            parts |= stacked_destinations(expert, [(names.down, self.hidden_size)], down)
        return parts if self.shared is None else {**parts, **self.shared.destinations(prefix)}
