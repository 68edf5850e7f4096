"""Mamba1's layers between their two projections: keys, queries and time steps are products of the convolution's output.

Legend: T tokens of the step, V channels, K key size, R rank of time steps, J = R + 2K.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ....kernels import Ops
from ..linear import Destination, Linear, stacked_destinations
from ..quantised.factory import make_linear
from .config import RecurrentConfig
from .layer import WITH_LOOPS, RecurrentLayer
from .memory import LayerStates, RecurrentStep
from .scan import selective_scan

_NORMS = ("dt_layernorm", "b_layernorm", "c_layernorm")  # of the parts of `select`'s output


@dataclass(frozen=True, slots=True)
class SelectiveLayer(RecurrentLayer):
    """Parameters of a layer of Mamba1 beside its two projections. `log_decay_H` is [K, V]; H is V for the others."""

    select: Linear  # V -> R + 2K: inputs of the time steps, keys, queries; never quantised, as is the next
    expand: Linear  # R -> V: time steps
    norms_J: torch.Tensor  # weights of the RMS norms of the three parts

    def __call__(
        self, projected_TJ: torch.Tensor, states: LayerStates | None, plan: RecurrentStep, ops: Ops
    ) -> torch.Tensor:
        V = self.config.inner
        if ops.name in WITH_LOOPS:
            from ....kernels.cpu import recurrence  # here, because it imports numba

            if recurrence.suits_loops(projected_TJ):
                memory = self._no_states(projected_TJ) if states is None else states
                conv = self.conv_WC, self.conv_bias_C
                x_TV = recurrence.causal_convolution(projected_TJ, plan.table, conv, memory.conv_SWC)
                sizes = (self.config.step_rank, self.config.key_size, self.config.key_size)
                selected_TJ = recurrence.normalised_parts(
                    self.select(x_TV.to(self.norms_J.dtype)), sizes, self.norms_J, self.norm_eps
                )
                step_TV = self.expand(selected_TJ[:, : sizes[0]].to(self.norms_J.dtype).contiguous()).float()
                assert self.skip_H is not None
                weights = self.log_decay_H, self.step_bias_H, self.skip_H
                inputs = x_TV, step_TV, selected_TJ
                return recurrence.selective_scan(projected_TJ, inputs, plan.table, weights, memory.state_SHKV)
        x_TV = F.silu(self._convolve(projected_TJ[:, :V], states, plan)).float()
        step_TV, keys_TK, queries_TK = self._selected(x_TV)
        step_TV = F.softplus(step_TV + self.step_bias_H)
        rate_KV = -self.log_decay_H.exp()
        output_T1V = torch.empty_like(x_TV)[:, None]
        if plan.decoding is not None:
            assert states is not None
            places_R, slots_R = plan.decoding
            own = step_TV[places_R]
            state_RKV = states.state_SHKV[slots_R, 0] * torch.exp(own[:, None] * rate_KV)
            state_RKV += keys_TK[places_R][:, :, None] * (own * x_TV[places_R])[:, None]
            states.state_SHKV[slots_R, 0] = state_RKV
            output_T1V[places_R] = torch.einsum("rkv,rk->rv", state_RKV, queries_TK[places_R])[:, None]

        def scan_part(state_HKV: torch.Tensor, own: slice) -> tuple[torch.Tensor, torch.Tensor]:
            return selective_scan(state_HKV, x_TV[own], step_TV[own], keys_TK[own], queries_TK[own], rate_KV)

        for span in plan.spans:
            self._scan_span(output_T1V, scan_part, states, span)
        return self._norm(output_T1V + (self.skip_H * x_TV)[:, None], projected_TJ[:, V:])

    def _selected(self, x_TV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the time steps without their bias [T, V], keys and queries [T, K], in float32."""
        config, dtype = self.config, self.norms_J.dtype
        sizes = config.step_rank, config.key_size, config.key_size
        parts = zip(self.select(x_TV.to(dtype)).float().split(sizes, dim=-1), self.norms_J.split(sizes), strict=True)
        low_TR, keys_TK, queries_TK = (
            F.rms_norm(part, weight.shape, weight.float(), self.norm_eps) for part, weight in parts
        )
        return self.expand(low_TR.to(dtype)).float(), keys_TK, queries_TK

    def linears(self) -> Iterator[Linear]:
        yield from (self.select, self.expand)

    def destinations(self, prefix: str, projection: Linear) -> dict[str, Destination]:
        parts = RecurrentLayer.destinations(self, prefix, projection)
        block, config = f"{prefix}.{self.config.family.block}", self.config
        parts[f"{block}.dt_proj.bias"] = parts.pop(f"{block}.dt_bias")
        shape = (config.inner, config.key_size)
        parts[f"{block}.A_log"] = Destination(shape, lambda stored: self.log_decay_H.copy_(stored.t()))
        parts |= stacked_destinations(block, [("x_proj", config.selected)], self.select)
        parts |= stacked_destinations(block, [("dt_proj", config.inner)], self.expand)
        sizes = config.step_rank, config.key_size, config.key_size
        for name, weight in zip(_NORMS, self.norms_J.split(sizes), strict=True):
            parts[f"{block}.{name}.weight"] = Destination(tuple(weight.shape), weight.copy_)
        return parts


def allocate_recurrent(
    config: RecurrentConfig, norm_eps: float, *, device: torch.device | str, dtype: torch.dtype
) -> RecurrentLayer:
    """Make a recurrent layer of uninitialised parameters."""
    if not config.is_selective:
        return RecurrentLayer.allocate(config, norm_eps, device=device, dtype=dtype)

    def tensor(*shape: int, own: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, device=device, dtype=own)

    V, K, rank = config.inner, config.key_size, config.step_rank
    return SelectiveLayer(
        config,
        norm_eps,
        conv_WC=tensor(config.conv_width, V),
        conv_bias_C=tensor(V) if config.conv_bias else None,
        log_decay_H=tensor(K, V, own=torch.float32),
        step_bias_H=tensor(V, own=torch.float32),
        skip_H=tensor(V, own=torch.float32),
        norm_weight=tensor(0),
        select=make_linear(None, ["x_proj"], config.selected, V, False, device=device, dtype=dtype),
        expand=make_linear(None, ["dt_proj"], V, rank, False, device=device, dtype=dtype),
        norms_J=tensor(config.selected),
    )
