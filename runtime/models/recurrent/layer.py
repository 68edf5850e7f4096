"""A recurrent layer between its two projections: convolution, recurrence, gated norm.

Legend: T tokens of the step, N tokens of one row, R rows, C channels of the convolution, W its width, H heads, G key
heads, K key size, V value size, I = H * V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ....kernels import Ops, RecurrenceInputs
from ..linear import Destination, Linear, in_order_of
from .config import RecurrentConfig
from .memory import LayerStates, RecurrentStep, StateSpan
from .scan import scan

WITH_LOOPS = ("cpu", "deterministic cpu")  # ops beside which compiled loops compute recurrent layers
_L2_EPS = 1e-6  # of the lengths of queries and keys of gated delta nets


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """Parameters of a recurrent layer beside its two projections."""

    config: RecurrentConfig
    norm_eps: float
    conv_WC: torch.Tensor
    conv_bias_C: torch.Tensor | None
    log_decay_H: torch.Tensor  # float32, as are the next two
    step_bias_H: torch.Tensor
    skip_H: torch.Tensor | None  # Mamba2's D
    norm_weight: torch.Tensor  # of one head, or of all

    @classmethod
    def allocate(
        cls, config: RecurrentConfig, norm_eps: float, *, device: torch.device | str, dtype: torch.dtype
    ) -> RecurrentLayer:
        """Make a layer of uninitialised parameters."""

        def tensor(*shape: int, own: torch.dtype = dtype) -> torch.Tensor:
            return torch.empty(shape, device=device, dtype=own)

        C, H = config.conv_channels, config.num_rates
        return cls(
            config,
            norm_eps,
            conv_WC=tensor(config.conv_width, C),
            conv_bias_C=tensor(C) if config.conv_bias else None,
            log_decay_H=tensor(H, own=torch.float32),
            step_bias_H=tensor(H, own=torch.float32),
            skip_H=tensor(H, own=torch.float32) if config.family.kind == "mamba2" else None,
            norm_weight=tensor(config.norm_size),
        )

    def __call__(
        self, projected_TJ: torch.Tensor, states: LayerStates | None, plan: RecurrentStep, ops: Ops
    ) -> torch.Tensor:
        """Compute the layer's output [T, I], before its output projection, from that of its input projection.

        Reads and writes `states` as `plan` says; None: the plan has no slots.
        """
        config = self.config
        if config.is_short:
            return self._gated_convolution(projected_TJ, states, plan, ops)
        if ops.name in WITH_LOOPS:
            from ....kernels.cpu import recurrence  # here, because it imports numba

            if recurrence.suits_loops(projected_TJ):
                memory = self._no_states(projected_TJ) if states is None else states
                weights = recurrence.RecurrentWeights(
                    config.num_key_heads,
                    config.step_limit,
                    config.norm == "before the gate",
                    self.norm_eps,
                    self.conv_WC,
                    self.conv_bias_C,
                    self.log_decay_H,
                    self.step_bias_H,
                    self.skip_H,
                    self.norm_weight,
                )
                return recurrence.recurrent_layer(projected_TJ, plan.table, weights, *memory)
        conv_TC, gate_TI, scalars = projected_TJ.split((config.conv_channels, config.inner, config.num_scalars), dim=-1)
        mixed_TC = F.silu(self._convolve(conv_TC, states, plan))
        inputs = self._scan_inputs(mixed_TC, scalars)
        output_THV = torch.empty_like(inputs.v_THV)
        if plan.decoding is not None:
            assert states is not None
            places_R, slots_R = plan.decoding
            output_THV[places_R] = ops.step_states(states.state_SHKV, slots_R, inputs.part(places_R))
        for span in plan.spans:
            self._scan_span(output_THV, lambda state, own: scan(state, *inputs.part(own)), states, span)
        if self.skip_H is not None:
            x_THV = mixed_TC[:, : config.inner].float().view_as(output_THV)
            output_THV = output_THV + self.skip_H[:, None] * x_THV
        return self._norm(output_THV, gate_TI)

    def advance(self, projected_NJ: torch.Tensor, states: LayerStates, slot: int, ops: Ops) -> None:
        """Advance a slot's state by tokens whose input projection was computed before."""
        count = len(projected_NJ)
        self(projected_NJ, states, RecurrentStep(None, [StateSpan(0, count, slot, [(count, slot)], 0)]), ops)

    def _gated_convolution(
        self, projected_TJ: torch.Tensor, states: LayerStates | None, plan: RecurrentStep, ops: Ops
    ) -> torch.Tensor:
        """Compute a short convolution: its channels are gated before it and after."""
        if ops.name in WITH_LOOPS:
            from ....kernels.cpu import recurrence  # here, because it imports numba

            if recurrence.suits_loops(projected_TJ):
                conv, memory = (self.conv_WC, self.conv_bias_C), states or self._no_states(projected_TJ)
                mixed_TI = recurrence.causal_convolution(projected_TJ, plan.table, conv, memory.conv_SWC, gated=True)
                return mixed_TI.to(projected_TJ.dtype)
        before_TI, after_TI, x_TI = projected_TJ.chunk(3, dim=-1)
        return after_TI * self._convolve(before_TI * x_TI, states, plan)

    def _no_states(self, projected_TJ: torch.Tensor) -> LayerStates:
        """Return the memory of no slots."""
        config = self.config
        conv_SWC = projected_TJ.new_empty((0, config.conv_width - 1, config.conv_channels))
        return LayerStates(conv_SWC, torch.empty((0, config.num_heads, config.key_size, config.value_size)))

    def _convolve(self, conv_TC: torch.Tensor, states: LayerStates | None, plan: RecurrentStep) -> torch.Tensor:
        """Compute the causal convolution [T, C]; keep its last inputs."""
        before = self.config.conv_width - 1
        output_TC = torch.empty_like(conv_TC)
        if plan.decoding is not None:
            assert states is not None
            places_R, slots_R = plan.decoding
            window_RWC = torch.cat((states.conv_SWC[slots_R], conv_TC[places_R][:, None]), dim=1)
            output_TC[places_R] = torch.einsum("rwc,wc->rc", window_RWC, self.conv_WC)
            states.conv_SWC[slots_R] = window_RWC[:, 1:]
        for span in plan.spans:
            own_NC = conv_TC[span.start : span.stop]
            if span.source is None:
                window = F.pad(own_NC, (0, 0, before, 0))
            else:
                assert states is not None
                window = torch.cat((states.conv_SWC[span.source], own_NC))
            output_TC[span.start : span.stop] = F.conv1d(
                window.t()[None], self.conv_WC.t()[:, None], groups=self.conv_WC.shape[1]
            )[0].t()
            for count, slot in span.saves:
                assert states is not None
                states.conv_SWC[slot] = window[count : count + before]
        return output_TC if self.conv_bias_C is None else output_TC + self.conv_bias_C

    def _scan_span(
        self,
        output_THV: torch.Tensor,
        scan_part: Callable[[torch.Tensor, slice], tuple[torch.Tensor, torch.Tensor]],
        states: LayerStates | None,
        span: StateSpan,
    ) -> None:
        """Write the outputs of a row, and keep its states. `scan_part` computes some tokens from a state, and returns
        the outputs and the state behind them."""
        config = self.config
        if span.source is None:
            shape = (config.num_heads, config.key_size, config.value_size)
            state_HKV = torch.zeros(shape, device=output_THV.device)
        else:
            assert states is not None
            state_HKV = states.state_SHKV[span.source]
        done = 0
        for count, slot in (*span.saves, (span.stop - span.start, None)):
            if count > done:
                own = slice(span.start + done, span.start + count)
                output_THV[own], state_HKV = scan_part(state_HKV, own)
                done = count
            if slot is not None and states is not None:
                states.state_SHKV[slot] = state_HKV

    def _scan_inputs(self, conv_TC: torch.Tensor, scalars: torch.Tensor) -> RecurrenceInputs:
        config = self.config
        repeats = config.num_heads // config.num_key_heads
        first, second, third = conv_TC.float().split(config.conv_sizes, dim=-1)

        def key_heads(x_T: torch.Tensor) -> torch.Tensor:
            return x_T.unflatten(-1, (config.num_key_heads, config.key_size))

        if config.is_delta:
            q_TGK, k_TGK = (_unit(key_heads(x)) for x in (first, second))
            beta_TH, step_TH = scalars.float().chunk(2, dim=-1)
            g_TH = -self.log_decay_H.exp() * F.softplus(step_TH + self.step_bias_H)
            v_THV, beta = third.unflatten(-1, (config.num_heads, config.value_size)), beta_TH.sigmoid()
            q_TGK = q_TGK * config.key_size**-0.5
        else:
            k_TGK, q_TGK = key_heads(second), key_heads(third)
            step_TH = F.softplus(scalars.float() + self.step_bias_H).clamp(*config.step_limit)
            g_TH = -self.log_decay_H.exp() * step_TH
            v_THV, beta = first.unflatten(-1, (config.num_heads, config.value_size)) * step_TH[:, :, None], None
        if repeats > 1:
            q_TGK, k_TGK = q_TGK.repeat_interleave(repeats, dim=1), k_TGK.repeat_interleave(repeats, dim=1)
        return RecurrenceInputs(q_TGK, k_TGK, v_THV, g_TH, beta)

    def _norm(self, output_THV: torch.Tensor, gate_TI: torch.Tensor) -> torch.Tensor:
        """Normalise the output, each head or group of heads by itself, and gate it, as `config.norm` says."""
        x_TI, gate_TI, kind = output_THV.flatten(1), F.silu(gate_TI.float()), self.config.norm
        if kind != "before the gate":
            x_TI = x_TI * gate_TI
        if kind != "none":
            width = self.config.norm_width
            parts = F.rms_norm(x_TI.unflatten(-1, (-1, width)), (width,), eps=self.norm_eps)
            x_TI = (parts * self.norm_weight.float().view(-1, width)).flatten(1)
        if kind == "before the gate":
            x_TI = x_TI * gate_TI
        return x_TI.to(self.norm_weight.dtype)

    def linears(self) -> Iterator[Linear]:
        """Iterate over the layer's products beside its two projections."""
        yield from ()

    def destinations(self, prefix: str, projection: Linear) -> dict[str, Destination]:
        """Map the checkpoint tensors of the decoder layer `prefix`, but those of the output projection, to this layer's
        and its input `projection`."""
        prefix = f"{prefix}.{self.config.family.block}"
        parts = {f"{prefix}.{name}": part for name, part in self._projections(projection).items()}
        W, C = self.conv_WC.shape
        tensors: dict[str, torch.Tensor | None] = {
            "conv1d.bias": self.conv_bias_C,
            "A_log": self.log_decay_H,
            "dt_bias": self.step_bias_H,
            "D": self.skip_H,
            "norm.weight": self.norm_weight,
        }
        parts[f"{prefix}.conv1d.weight"] = Destination((C, 1, W), lambda weight: self.conv_WC.copy_(weight[:, 0].t()))
        for name, tensor in tensors.items():
            if tensor is not None and tensor.numel():
                parts[f"{prefix}.{name}"] = Destination(tuple(tensor.shape), tensor.copy_)
        return parts

    def _projections(self, projection: Linear) -> dict[str, Destination]:
        """Return the destinations of the input projection's tensors, in the order in which the family stores rows."""
        config = self.config
        found: dict[str, Destination] = {}
        start = 0
        for name, order in stored_projections(config):
            size = len(order)
            for last, part in projection.row_destinations(start, size).items():
                module = f"{config.family.block}.{name}.{last}"
                found[f"{name}.{last}"] = part._replace(put=in_order_of(part, order, module))
            start += size
        assert start == config.projected
        return found


def stored_projections(config: RecurrentConfig) -> list[tuple[str, torch.Tensor]]:
    """Return the input projection's stored modules in the order of its rows here; for each the stored row of each."""
    C, inner, G, H = config.conv_channels, config.inner, config.num_key_heads, config.num_heads
    match config.family.stored:
        case "separate":
            sizes = {"in_proj_qkv": C, "in_proj_z": inner, "in_proj_b": H, "in_proj_a": H}
            return [(name, torch.arange(size)) for name, size in sizes.items()]
        case "as computed":
            return [("in_proj", torch.arange(config.projected))]
        case "gate first":
            rows = torch.arange(config.projected)
            return [("in_proj", torch.cat((rows[inner : inner + C], rows[:inner], rows[inner + C :])))]
    each = H // G * config.value_size
    rows_GJ = torch.arange(C + inner).view(G, -1)
    parts = rows_GJ.split((config.key_size, config.key_size, each, each), dim=1)
    scalars = torch.arange(2 * H).view(G, -1).chunk(2, dim=1)
    return [
        ("in_proj_qkvz", torch.cat([part.flatten() for part in parts])),
        ("in_proj_ba", torch.cat([part.flatten() for part in scalars])),
    ]


def projection_modules(config: RecurrentConfig) -> list[tuple[str, int]]:
    """Return the input projection's stored modules, below `model.layers.N`, and their outputs."""
    return [(f"{config.family.block}.{name}", len(order)) for name, order in stored_projections(config)]


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Scale vectors to length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _L2_EPS)
