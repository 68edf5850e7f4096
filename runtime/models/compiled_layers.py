"""A decoder's layers as compiled loops, for steps of few tokens of a small float32 model on a CPU: there Python and
torch take longer to begin a layer's operators than these take to run.

Legend: T tokens of the step, E hidden size, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...kernels import Attention, KvCache
from ...kernels.cpu.compiled import Floats
from ...kernels.cpu.layers import decoder_layer
from ...kernels.cpu.ops import PagedTokens, is_plain
from ...kernels.cpu.panels import Weights, alike
from .linear import Linear
from .mlp import DenseMlp
from .packed import PackedLinear, are_few
from .parameters import DecoderParameters


class CompiledLayers:
    """Made by `of`."""

    def __init__(self, layers: Sequence[tuple[Any, ...]], eps: float, scale: float) -> None:
        self._layers, self._eps, self._scale = layers, eps, scale

    @classmethod
    def of(cls, parameters: DecoderParameters, eps: float, scale: float) -> CompiledLayers | None:
        """None where a layer's products are others', or it has parts that the loops have not."""
        layers: list[tuple[Any, ...]] = []
        for layer in parameters.layers:
            if not isinstance(layer.mlp, DenseMlp) or layer.qk_norm_HD is not None:
                return None
            products = held([layer.qkv, layer.o, layer.mlp.gate_up, layer.mlp.down])
            if products is None:
                return None
            qkv, o, gate_up, down = products
            norms = layer.input_norm_E.numpy(), layer.post_norm_E.numpy()
            layers.append((norms[0], *qkv, *o, norms[1], *gate_up, *down))
        return cls(layers, eps, scale)

    def serve(self, attentions: Mapping[int | None, Attention], kv: Sequence[KvCache], x_TE: torch.Tensor) -> bool:
        return (
            are_few(len(x_TE))
            and is_plain(kv[0])
            and all(isinstance(attention, PagedTokens) for attention in attentions.values())
        )

    def add_layer(
        self,
        index: int,
        x_TE: torch.Tensor,
        cos_T1D: torch.Tensor,
        sin_T1D: torch.Tensor,
        slots_T: torch.Tensor,
        kv: KvCache,
        attention: Attention,
    ) -> None:
        """What layer `index` adds to `x_TE`, in place; the tokens' keys and values go to their slots."""
        assert isinstance(attention, PagedTokens)
        decoder_layer(
            x_TE.numpy(),
            *self._layers[index],
            self._eps,
            cos_T1D.squeeze(1).numpy(),
            sin_T1D.squeeze(1).numpy(),
            slots_T.numpy(),
            kv.k_SKD.numpy(),
            kv.v_SKD.numpy(),
            self._scale,
            *attention.sight,
        )


def held(linears: Sequence[Linear]) -> list[tuple[Weights, Floats]] | None:
    """Their weights and biases as the loops take them, weights of one type; None: one of them is of another kind."""
    pairs = [linear.held for linear in linears if isinstance(linear, PackedLinear) and linear.held is not None]
    if len(pairs) < len(linears):
        return None
    weights, biases = zip(*pairs, strict=True)
    return list(zip(alike(weights), biases, strict=True))
