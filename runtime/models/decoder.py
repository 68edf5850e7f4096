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

from ...kernels import Attention, KvCache, Ops, for_device
from ..parallel.group import ALONE
from ..parallel.shard import Shard
from .compiled_layers import CompiledLayers
from .config import ModelConfig
from .fixed_rows import FixedRows, with_fixed_rows
from .linear import Linear
from .packed import pack
from .parameters import DecoderParameters, LayerParameters, num_parameters
from .rope import Rope

# Of products, where they must all have the same. Fewer waste less on a step of few tokens, more read the weights less
# often on one of many.
FIXED_ROWS = {"cpu": 16, "cuda": 64}


@dataclass(frozen=True)
class DecoderInputs:
    """One step: the rows' tokens, concatenated."""

    ids_T: torch.Tensor
    cos_T1D: torch.Tensor
    sin_T1D: torch.Tensor
    slots_T: torch.Tensor  # where each token's KV goes
    attention: dict[int | None, Attention]  # by window
    wanted_O: torch.Tensor | None  # indices of tokens whose hidden states are read; None: all


class Decoder:
    """A model on its device, ready to run. `ops` None are those of its device, or plain torch, where keys have to be
    stored unrotated and the device's ops do not rotate what they read."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: DecoderParameters,
        ops: Ops | None = None,
        shard: Shard = ALONE.shard,
    ) -> None:
        """`config` is the whole model's; `shard` says which part of it the parameters are."""
        self.config = shard.local(config)
        self.whole_config = config
        self.kv_heads = shard.kv_part(config)  # those of `whole_config` that are computed here
        self.dtype = parameters.norm_E.dtype
        self.device = parameters.norm_E.device
        self.rope = Rope(config.rope, config.head_dim, device=self.device, dtype=self.dtype)
        self.num_parameters = num_parameters(config)
        if ops is None:
            ops = for_device(self.device, "reference" if self.rope.depends_on_length else "auto")
        self.ops = ops
        # Slices whose number is fixed attend one by one, as their heads do that are alone on a rank. Triton's kernels
        # compute each key/value head by itself anyway.
        one_by_one = shard.ordered and ops.name != "triton"
        self._head_slices = shard.heads_of_slices(config) if one_by_one else None
        self.parameters = parameters
        # Beside the weight itself, which the embedding often is.
        rows, head = parameters.rows, parameters.head
        self.head: Linear = pack(head) if rows is None else rows.head([pack(part) for part in rows.parts(head.weight)])
        if ops.deterministic:
            num_rows = FIXED_ROWS[self.device.type]
            self.parameters = with_fixed_rows(parameters, num_rows)
            self.head = FixedRows(self.head, num_rows)
        self._scale = config.head_dim**-0.5
        self._compiled = None
        if ops.name == "cpu" and self._head_slices is None:
            self._compiled = CompiledLayers.of(self.parameters, config.norm_eps, self._scale)

    def hidden(self, inputs: DecoderInputs, kv: Sequence[KvCache]) -> torch.Tensor:
        """Final hidden states [O, E] of the wanted tokens; the KV of all tokens is written to `kv`, one per layer."""
        return self.hidden_and_features(inputs, kv, ())[0]

    def hidden_and_features(
        self, inputs: DecoderInputs, kv: Sequence[KvCache], captures: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `hidden`, and [T, len(captures) * E] states of *all* tokens on the way, side by side; None when there are
        no captures. Capture i < L is the input of layer i before its norm, L the final hidden state."""
        config, eps, ops = self.config, self.config.norm_eps, self.ops
        captured: dict[int, torch.Tensor] = {}
        wanted_O = inputs.wanted_O
        rows, embedding = self.parameters.rows, self.parameters.embedding_VE
        residual = F.embedding(inputs.ids_T, embedding) if rows is None else rows.embed(inputs.ids_T, embedding)
        if self._compiled is not None and self._compiled.serve(inputs.attention, kv, residual):
            for index, layer_kv in enumerate(kv):
                if index in captures:
                    captured[index] = residual.clone()
                attention = inputs.attention[config.windows[index]]
                self._compiled.add_layer(
                    index, residual, inputs.cos_T1D, inputs.sin_T1D, inputs.slots_T, layer_kv, attention
                )
            return self._finish(ops.rms_norm(residual, self.parameters.norm_E, eps), captured, captures, wanted_O)
        x = ops.rms_norm(residual, self.parameters.layers[0].input_norm_E, eps)
        for index, layer in enumerate(self.parameters.layers):
            if index:
                x, residual = ops.add_rms_norm(x, residual, layer.input_norm_E, eps)
            if index in captures:
                captured[index] = residual
            x = self._attention(x, layer, inputs, kv[index], inputs.attention[config.windows[index]])
            if index == config.num_layers - 1 and wanted_O is not None and config.num_layers not in captures:
                # Nobody reads the other tokens' hidden states, and their keys and values are all written.
                x, residual, wanted_O = x[wanted_O], residual[wanted_O], None
            x, residual = ops.add_rms_norm(layer.o(x), residual, layer.post_norm_E, eps)
            x = layer.mlp(x, ops)
        hidden = ops.rms_norm(residual + x, self.parameters.norm_E, eps)
        return self._finish(hidden, captured, captures, wanted_O)

    def _finish(
        self,
        hidden: torch.Tensor,
        captured: dict[int, torch.Tensor],
        captures: Sequence[int],
        wanted_O: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        captured[self.config.num_layers] = hidden
        features = torch.cat([captured[index] for index in captures], dim=-1) if captures else None
        return hidden if wanted_O is None else hidden[wanted_O], features

    def logits(self, hidden_OE: torch.Tensor) -> torch.Tensor:
        """float32 [O, V]."""
        return self.head(hidden_OE).float()

    def _attention(
        self, x_TE: torch.Tensor, layer: LayerParameters, inputs: DecoderInputs, kv: KvCache, attention: Attention
    ) -> torch.Tensor:
        """[T, H * D], before the output projection."""
        T, H, K = x_TE.shape[0], self.config.num_heads, self.config.num_kv_heads
        qkv = layer.qkv(x_TE).view(T, H + 2 * K, self.config.head_dim)
        q_THD = self.ops.rope_and_store(
            qkv,
            inputs.cos_T1D,
            inputs.sin_T1D,
            kv,
            inputs.slots_T,
            num_heads=H,
            qk_norm_HD=layer.qk_norm_HD,
            eps=self.config.norm_eps,
            rotate_keys=not self.rope.depends_on_length,  # else they are rotated when read
        )
        if self._head_slices is None:
            return attention.attend(q_THD, kv, self._scale).view(T, -1)
        parts = [
            attention.attend(q_THD[:, own].contiguous(), kv.heads(own_kv), self._scale)
            for own, own_kv in self._head_slices
        ]
        return torch.cat(parts, dim=1).view(T, -1)
