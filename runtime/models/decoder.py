"""The forward pass of a Llama-like decoder, as its config describes it. Knows tokens, positions and slots; knows no
requests, and nothing of what becomes of its logits.

Legend: T tokens of the step, O outputs wanted, L layers, E hidden size, V vocabulary, H query heads, K key/value heads,
D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ... import kernels
from ...kernels import AttentionLayout, KvCache
from ..parallel.group import ALONE
from ..parallel.shard import Shard
from .config import ModelConfig
from .packed import pack
from .parameters import DecoderParameters, LayerParameters, num_parameters
from .rope import Rope


@dataclass(frozen=True)
class DecoderInputs:
    """One step: the rows' tokens, concatenated."""

    ids_T: torch.Tensor
    cos_T1D: torch.Tensor
    sin_T1D: torch.Tensor
    slots_T: torch.Tensor  # where each token's KV goes
    layouts: dict[int | None, AttentionLayout]  # by window
    wanted_O: torch.Tensor | None  # indices of tokens whose hidden states are read; None: all


class Decoder:
    """A model on its device, ready to run."""

    def __init__(self, config: ModelConfig, parameters: DecoderParameters, shard: Shard = ALONE.shard) -> None:
        """`config` is the whole model's; `shard` says which part of it the parameters are."""
        self.config = shard.local(config)
        self.whole_config = config
        self.kv_heads = shard.kv_part(config)  # those of `whole_config` that are computed here
        self.dtype = parameters.norm_E.dtype
        self.device = parameters.norm_E.device
        self.rope = Rope(config.rope, config.head_dim, device=self.device, dtype=self.dtype)
        # Slices whose number is fixed attend one by one, as their heads do that are alone on a rank. A CUDA kernel
        # computes each head by itself anyway.
        one_by_one = shard.ordered and self.device.type == "cpu"
        self._head_slices = shard.heads_of_slices(config) if one_by_one else None
        self.num_parameters = num_parameters(config)
        self.parameters = parameters
        # Beside the weight itself, which the embedding often is.
        rows, head = parameters.rows, parameters.head
        self.head = pack(head) if rows is None else rows.head([pack(part) for part in rows.parts(head.weight)])
        self._scale = config.head_dim**-0.5

    def hidden(self, inputs: DecoderInputs, kv: Sequence[KvCache]) -> torch.Tensor:
        """Final hidden states [O, E] of the wanted tokens; the KV of all tokens is written to `kv`, one per layer."""
        return self.hidden_and_features(inputs, kv, ())[0]

    def hidden_and_features(
        self, inputs: DecoderInputs, kv: Sequence[KvCache], captures: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `hidden`, and [T, len(captures) * E] states of *all* tokens on the way, side by side; None when there are
        no captures. Capture i < L is the input of layer i before its norm, L the final hidden state."""
        config, eps = self.config, self.config.norm_eps
        captured: dict[int, torch.Tensor] = {}
        wanted_O = inputs.wanted_O
        rows, embedding = self.parameters.rows, self.parameters.embedding_VE
        residual = F.embedding(inputs.ids_T, embedding) if rows is None else rows.embed(inputs.ids_T, embedding)
        x = kernels.rms_norm(residual, self.parameters.layers[0].input_norm_E, eps)
        for index, layer in enumerate(self.parameters.layers):
            if index:
                x, residual = kernels.add_rms_norm(x, residual, layer.input_norm_E, eps)
            if index in captures:
                captured[index] = residual
            x = self._attention(x, layer, inputs, kv[index], inputs.layouts[config.windows[index]])
            if index == config.num_layers - 1 and wanted_O is not None and config.num_layers not in captures:
                # Nobody reads the other tokens' hidden states, and their keys and values are all written.
                x, residual, wanted_O = x[wanted_O], residual[wanted_O], None
            x, residual = kernels.add_rms_norm(layer.o(x), residual, layer.post_norm_E, eps)
            x = layer.mlp(x)
        hidden = captured[config.num_layers] = kernels.rms_norm(residual + x, self.parameters.norm_E, eps)
        features = torch.cat([captured[index] for index in captures], dim=-1) if captures else None
        return hidden if wanted_O is None else hidden[wanted_O], features

    def logits(self, hidden_OE: torch.Tensor) -> torch.Tensor:
        """float32 [O, V]."""
        return self.head(hidden_OE).float()

    def _attention(
        self, x_TE: torch.Tensor, layer: LayerParameters, inputs: DecoderInputs, kv: KvCache, layout: AttentionLayout
    ) -> torch.Tensor:
        """[T, H * D], before the output projection."""
        T, H, K = x_TE.shape[0], self.config.num_heads, self.config.num_kv_heads
        qkv = layer.qkv(x_TE).view(T, H + 2 * K, self.config.head_dim)
        qk, v = qkv[:, : H + K], qkv[:, H + K :]
        if layer.qk_norm_HD is not None:
            qk = kernels.rms_norm(qk, layer.qk_norm_HD, self.config.norm_eps)
        if self.rope.depends_on_length:  # keys are stored unrotated, and rotated when read
            q, k = kernels.apply_rope(qk[:, :H], inputs.cos_T1D, inputs.sin_T1D), qk[:, H:]
        else:
            qk = kernels.apply_rope(qk, inputs.cos_T1D, inputs.sin_T1D)
            q, k = qk[:, :H], qk[:, H:]
        kernels.store_kv(k, v, kv, inputs.slots_T)
        if self._head_slices is None:
            return kernels.paged_attention(q, kv, layout, self._scale).view(T, -1)
        parts = [
            kernels.paged_attention(q[:, own].contiguous(), kv.heads(own_kv), layout, self._scale)
            for own, own_kv in self._head_slices
        ]
        return torch.cat(parts, dim=1).view(T, -1)
