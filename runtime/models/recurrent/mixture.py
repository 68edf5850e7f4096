"""Mixtures of experts without gates, whose experts may work on a smaller latent (Nemotron-H).

Legend: T tokens, E hidden size, I intermediate size, P pairs of a token and an expert.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ....kernels import Ops
from ..experts.mixture import MixtureMlp
from ..linear import Destination, Linear, Loadable, stacked_destinations

LATENT_NAMES = ("fc1_latent_proj", "fc2_latent_proj")  # modules of the products around the experts


@dataclass(frozen=True, slots=True)
class UngatedMixture(MixtureMlp):
    """A mixture whose experts are `down(relu(up(x)) ** 2)`. A slice's `gate_up` is the up projection."""

    to_latent: Linear | None = None  # E -> the size of the experts' inputs
    from_latent: Linear | None = None

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        (routing, _, rows_P), [experts] = self.routed(x_TE, ops), self.slices
        latent = x_TE if self.to_latent is None else self.to_latent(x_TE)
        up_PI = experts.gate_up(latent, routing.ends_N, rows_P, ops)
        y_P = experts.down(F.relu(up_PI).square(), routing.ends_N, None, ops)
        y_TE = ops.combine_experts(y_P, routing.place_P, routing.weights_TK)
        return self.add_shared([y_TE if self.from_latent is None else self.from_latent(y_TE)], x_TE, ops)

    def linears(self) -> Iterator[Loadable]:
        for experts in self.slices:
            yield from experts
        if self.shared is not None:
            yield from self.shared.linears()
        if self.to_latent is not None and self.from_latent is not None:
            yield from (self.to_latent, self.from_latent)

    def destinations(self, prefix: str) -> dict[str, Destination]:
        names, size = self.config.names, self.config.intermediate_size
        block = f"{prefix}.{names.block}"
        width = self.hidden_size if self.config.latent_size is None else self.config.latent_size
        parts = stacked_destinations(block, [(names.router, self.config.num_experts)], self.router)
        for index in self.held:
            up, down = self.expert(index)
            parts |= stacked_destinations(f"{block}.experts.{index}", [(names.up, size)], up)
            parts |= stacked_destinations(f"{block}.experts.{index}", [(names.down, width)], down)
        if self.bias_N is not None:
            parts[f"{block}.{names.bias}"] = Destination(tuple(self.bias_N.shape), self.bias_N.copy_)
        products = self.to_latent, self.from_latent
        for name, linear, outputs in zip(LATENT_NAMES, products, (width, self.hidden_size), strict=True):
            if linear is not None:
                parts |= stacked_destinations(block, [(name, outputs)], linear)
        return parts if self.shared is None else {**parts, **self.shared.destinations(prefix)}
