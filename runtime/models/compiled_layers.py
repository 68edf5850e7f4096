"""Decoder layers as compiled loops, for small steps of small float32 models on a CPU.

For small steps torch's dispatch costs more than the compute. Tokens of different rows meet in no layer, so a larger
step's rows are split among threads once: a thread takes its rows through all layers.

Legend: T tokens of the step, E hidden size, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...kernels import Attention, KvCache
from ...kernels.cpu.attention import CompiledAttention
from ...kernels.cpu.attention_plan import AttentionPlan
from ...kernels.cpu.compiled import Floats
from ...kernels.cpu.layers import decoder_layer
from ...kernels.cpu.ops import is_unscaled_float32
from ...kernels.cpu.packed_weights import PackedWeights, with_same_dtype
from ...kernels.cpu.thread_pool import num_threads, run_tasks
from .linear import Linear
from .mlp import DenseMlp
from .norm import RmsNorm
from .packed_linear import PackedLinear
from .parameters import DecoderParameters, LayerParameters

_MAX_TOKENS = 256  # tokens of a step; beyond it activations between products leave the cache
_MAX_ROW_TOKENS = 64
# Least tokens and multiplications per thread: waking it and reading all weights must pay.
_PART_TOKENS, _PART_WORK = 8, 30_000_000


class CompiledLayers:
    """The layers' weights as the loops read them; `of` makes it."""

    def __init__(self, layers: Sequence[tuple[Any, ...]], eps: float, scale: float, work: int) -> None:
        """`work` is the number of multiplications of a token."""
        self._layers, self._eps, self._scale, self._work = layers, eps, scale, work

    @classmethod
    def of(cls, parameters: DecoderParameters, eps: float, scale: float) -> CompiledLayers | None:
        """Convert the layers; return None when the loops do not compute one of them."""
        layers: list[tuple[Any, ...]] = []
        work = 0
        for layer in parameters.layers:
            if not _is_compiled_block(layer):
                return None
            assert isinstance(layer.mlp, DenseMlp)
            products = loop_weights([layer.qkv, layer.o, layer.mlp.gate_up, layer.mlp.down])
            if products is None:
                return None
            qkv, o, gate_up, down = products
            work += sum(weights.size for weights, _ in products)
            norms = [norm.weight_E.numpy() for norm in layer.norms if norm is not None]
            layers.append((norms[0], *qkv, *o, norms[1], *gate_up, *down))
        return cls(layers, eps, scale, work)

    def supports(self, attentions: Mapping[int | None, Attention], kv: Sequence[KvCache], num_tokens: int) -> bool:
        """Return True when the loops compute this step."""
        return (
            num_tokens <= _MAX_TOKENS
            and all(_splits_evenly(attention) for attention in attentions.values())
            and is_unscaled_float32(kv[0])
        )

    def forward(
        self,
        x_TE: torch.Tensor,
        cos_T1D: torch.Tensor,
        sin_T1D: torch.Tensor,
        slots_T: torch.Tensor,
        kv: Sequence[KvCache],
        attentions: Sequence[Attention],
        captured: Mapping[int, torch.Tensor],
    ) -> None:
        """Compute all layers, and add their outputs to `x_TE` in place; store the tokens' keys and values in their
        slots.

        `kv` and `attentions` have one entry per layer. The tensors `captured` [T, E] receive the inputs of the layers
        that they are keyed by.
        """
        x, slots = x_TE.numpy(), slots_T.numpy()
        cos_TD, sin_TD = cos_T1D.squeeze(1).numpy(), sin_T1D.squeeze(1).numpy()
        caches = [(layer_kv.k_SKD.numpy(), layer_kv.v_SKD.numpy()) for layer_kv in kv]
        plans = [attention.plan for attention in attentions if isinstance(attention, CompiledAttention)]
        assert len(plans) == len(self._layers)
        copies = {place: capture.numpy() for place, capture in captured.items()}

        def compute(rows: slice, own: slice) -> None:
            own_x, own_cos, own_sin, own_slots = x[own], cos_TD[own], sin_TD[own], slots[own]
            own_plans = {id(plan): plan.for_rows(rows.start, rows.stop).array for plan in plans}
            for place, (layer, cache, plan) in enumerate(zip(self._layers, caches, plans, strict=True)):
                if place in copies:
                    copies[place][own] = own_x
                decoder_layer(
                    own_x,
                    *layer,
                    self._eps,
                    own_cos,
                    own_sin,
                    own_slots,
                    *cache,
                    self._scale,
                    own_plans[id(plan)],
                )

        run_tasks([partial(compute, rows, own) for rows, own in self._parts(plans[0])])

    def _parts(self, plan: AttentionPlan) -> list[tuple[slice, slice]]:
        """Split the step's rows into parts, which threads take through all layers; return their rows and tokens.

        A row's tokens read what its earlier tokens wrote in the same layer, and nothing of other rows.
        """
        ends_R = np.cumsum(plan.num_R)
        T = int(ends_R[-1])
        count = min(T // _PART_TOKENS, T * self._work // _PART_WORK) if num_threads() > 1 else 1
        if count < 2:
            return [(slice(0, len(ends_R)), slice(0, T))]
        first_rows = np.searchsorted(ends_R, np.arange(count) * T // count, side="right")
        bounds = [*np.unique(first_rows).tolist(), len(ends_R)]
        starts = [0, *ends_R.tolist()]
        return [(slice(begin, end), slice(starts[begin], starts[end])) for begin, end in pairwise(bounds)]


def _splits_evenly(attention: Attention) -> bool:
    """Return True for compiled attention without long rows, which one thread would compute."""
    if not isinstance(attention, CompiledAttention):
        return False
    return num_threads() == 1 or int(attention.plan.num_R.max()) <= _MAX_ROW_TOKENS


def _is_compiled_block(layer: LayerParameters) -> bool:
    """Return True for a pre-norm block of RMS norms and a gated silu MLP, without q/k norms."""
    norms, mlp = layer.norms, layer.mlp
    return (
        isinstance(norms.attention_in, RmsNorm)
        and norms.attention_out is None
        and isinstance(norms.mlp_in, RmsNorm)
        and norms.mlp_out is None
        and layer.qk_norm_HD is None
        and isinstance(mlp, DenseMlp)
        and mlp.gated
        and mlp.activation == "silu"
    )


def loop_weights(linears: Sequence[Linear]) -> list[tuple[PackedWeights, Floats]] | None:
    """Return weights and biases as the loops take them, of one type; None when one of the layers is not a packed
    one."""
    pairs = [
        linear.loop_weights
        for linear in linears
        if isinstance(linear, PackedLinear) and linear.loop_weights is not None
    ]
    if len(pairs) < len(linears):
        return None
    weights, biases = zip(*pairs, strict=True)
    return list(zip(with_same_dtype(weights), biases, strict=True))
