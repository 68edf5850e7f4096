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

from ...kernels import Attention, KvCache, Ops, RopeAndStoreArgs, for_device
from ..parallel.group import SINGLE_RANK, Group
from .compiled_layers import CompiledLayers
from .config import ModelConfig
from .fixed_rows import FixedRowsLinear, with_fixed_rows
from .linear import Linear
from .packed_linear import pack_linear
from .parameters import DecoderParameters, LayerParameters, num_parameters
from .rope import Rope

# Of products, where they must all have the same. Fewer waste less on a step of few tokens, more read the weights less
# often on one of many.
ROWS_PER_PRODUCT = {"cpu": 16, "cuda": 64}


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
    """A model on its device, ready to run; or what a rank holds of it, where it is divided. `ops` None are those of its
    device, or plain torch, where keys have to be stored unrotated and the device's ops do not rotate what they read."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: DecoderParameters,
        ops: Ops | None = None,
        group: Group = SINGLE_RANK,
    ) -> None:
        """`config` is the whole model's; the parameters are the part of it that the rank of `group` holds."""
        shard = group.shard
        self.config = shard.local(group.stage.local(config))
        self.whole_config = config
        self.layers = group.stage.layers(config)  # those of `whole_config` that are computed here
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
        self.head: Linear = head
        if group.stage.has_ends:
            self.head = (
                pack_linear(head)
                if rows is None
                else rows.head([pack_linear(part) for part in rows.parts(head.weight)])
            )
        if ops.deterministic:
            num_rows = ROWS_PER_PRODUCT[self.device.type]
            self.parameters = with_fixed_rows(parameters, num_rows)
            self.head = FixedRowsLinear(self.head, num_rows)
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
        captured: dict[int, torch.Tensor] = {}
        stream = self.through_layers(self.embed(inputs.ids_T), inputs, kv, captures, captured)
        return self.finish(stream, inputs.wanted_O, captures, captured)

    def embed(self, ids_T: torch.Tensor) -> torch.Tensor:
        """[T, E], what the first layer begins with."""
        rows, embedding = self.parameters.rows, self.parameters.embedding_VE
        return F.embedding(ids_T, embedding) if rows is None else rows.embed(ids_T, embedding)

    def through_layers(
        self,
        stream_TE: torch.Tensor,
        inputs: DecoderInputs,
        kv: Sequence[KvCache],
        captures: Sequence[int],
        captured: dict[int, torch.Tensor],
    ) -> torch.Tensor:
        """What this stage's layers make of `stream_TE`: [T, E], but after the model's last layer [O, E], of the wanted
        tokens, unless the final hidden state of all is captured. `captured` gets the captures that are among these
        layers' inputs, by layer."""
        config, eps, ops = self.config, self.config.norm_eps, self.ops
        num_layers, wanted_O = self.whole_config.num_layers, inputs.wanted_O
        is_last, residual = self.layers.stop == num_layers, stream_TE
        if self._compiled is not None and self._compiled.serve(inputs.attention, kv, len(residual)):
            copies = {
                index - self.layers.start: torch.empty_like(residual) for index in captures if index in self.layers
            }
            attentions = [inputs.attention[window] for window in config.windows]
            self._compiled.go_through(residual, inputs.cos_T1D, inputs.sin_T1D, inputs.slots_T, kv, attentions, copies)
            captured |= {self.layers.start + place: copy for place, copy in copies.items()}
            return residual[wanted_O] if is_last and wanted_O is not None and num_layers not in captures else residual
        rope_args = RopeAndStoreArgs(
            inputs.cos_T1D,
            inputs.sin_T1D,
            inputs.slots_T,
            num_heads=config.num_heads,
            eps=eps,
            rotate_keys=not self.rope.depends_on_length,  # else they are rotated when read
        )
        x = None
        for place, layer in enumerate(self.parameters.layers):
            index = self.layers.start + place
            if x is None:
                x = ops.rms_norm(residual, layer.input_norm_E, eps)
            else:
                x, residual = ops.add_rms_norm(x, residual, layer.input_norm_E, eps)
            if index in captures:
                captured[index] = residual
            x = self._attention(x, layer, rope_args, kv[place], inputs.attention[config.windows[place]])
            if index == num_layers - 1 and wanted_O is not None and num_layers not in captures:
                # Nobody reads the other tokens' hidden states, and their keys and values are all written.
                if not len(wanted_O):
                    return residual[:0]
                x, residual = x[wanted_O], residual[wanted_O]
            x, residual = ops.add_rms_norm(layer.o(x), residual, layer.post_norm_E, eps)
            x = layer.mlp(x, ops)
        return residual if x is None else residual + x

    def finish(
        self,
        stream: torch.Tensor,
        wanted_O: torch.Tensor | None,
        captures: Sequence[int],
        captured: dict[int, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `hidden_and_features`, of what the last layer gave and all that was captured."""
        num_layers = self.whole_config.num_layers
        hidden = self.ops.rms_norm(stream, self.parameters.norm_E, self.config.norm_eps)
        if num_layers in captures:
            captured[num_layers] = hidden
            if wanted_O is not None:
                hidden = hidden[wanted_O]
        if len(captures) == 1:
            return hidden, captured[captures[0]]
        return hidden, torch.cat([captured[index] for index in captures], dim=-1) if captures else None

    def logits(self, hidden_OE: torch.Tensor) -> torch.Tensor:
        """float32 [O, V]."""
        return self.head(hidden_OE).float()

    def _attention(
        self, x_TE: torch.Tensor, layer: LayerParameters, args: RopeAndStoreArgs, kv: KvCache, attention: Attention
    ) -> torch.Tensor:
        """[T, H * D], before the output projection."""
        T, H, K = x_TE.shape[0], self.config.num_heads, self.config.num_kv_heads
        qkv = layer.qkv(x_TE).view(T, H + 2 * K, self.config.head_dim)
        q_THD = self.ops.rope_and_store(qkv, kv, layer.qk_norm_HD, args)
        if self._head_slices is None:
            return attention.attend(q_THD, kv, self._scale).view(T, -1)
        parts = [
            attention.attend(q_THD[:, own].contiguous(), kv.heads(own_kv), self._scale)
            for own, own_kv in self._head_slices
        ]
        return torch.cat(parts, dim=1).view(T, -1)
