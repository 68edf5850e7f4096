"""Arithmetic of a draft head. Serving and training differ only in how its one layer attends.

A head predicts hidden states. From token x_j and the feature f_{j-1} of the token before it, it estimates f_j, whose
logits predict x_{j+1}. The estimate is fed back with a drafted x_{j+1}, and so on. The position of x_j in the head is j
- 1.

Legend: N tokens, E hidden size, C captured size, V the head's vocabulary, H query heads, K key/value heads, D head
size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F

from ....kernels import Ops, for_device
from ...models.linear import Linear
from ...models.packed_linear import use_loops
from ...models.rope.angles import Rope
from .config import HeadConfig
from .parameters import HeadParameters, packed_parameters

# Heads of queries, keys and values [N, H + 2K, D] of the tokens, and their angles [N, 1, D] -> attention output
# [N, H * D].
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class LayerOps(Protocol):
    """The target's ops for serving, or differentiable ones for training."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...
    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...
    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...


class HeadOutput(NamedTuple):
    feature_NE: torch.Tensor  # estimate of the token's feature, which is fed back
    read_NE: torch.Tensor  # input of the logits


class EagleHead:
    """A head on its device. `target_embedding` [vocab_size, E] and `target_lm_head` replace parts that it lacks."""

    def __init__(
        self,
        config: HeadConfig,
        parameters: HeadParameters,
        *,
        target_embedding: torch.Tensor,
        target_lm_head: Linear,
        token_offsets: torch.Tensor | None = None,
        ops: LayerOps,
    ) -> None:
        """`token_offsets` int64 [V]: logit i is that of token `i + token_offsets[i]`; None: of token i."""
        self.config = config
        self.parameters = parameters
        self.dtype = parameters.post_norm_E.dtype
        self.device = parameters.post_norm_E.device
        self.rope = Rope(config.rope, config.head_dim, device=self.device, dtype=self.dtype)
        self.scale = config.head_dim**-0.5
        self.embedding = target_embedding if parameters.embedding is None else parameters.embedding
        self._target_lm_head = target_lm_head
        self._token_ids = None
        if token_offsets is not None:
            self._token_ids = torch.arange(len(token_offsets), device=self.device) + token_offsets.to(self.device)
        self._ops = ops

    @property
    def serving_ops(self) -> Ops:
        """The target's ops. A head in training has none."""
        assert hasattr(self._ops, "rope_and_store"), "a head in training"
        return cast(Ops, self._ops)

    @property
    def lm_head(self) -> Linear:
        return self._target_lm_head if self.parameters.lm_head is None else self.parameters.lm_head

    def pack(self) -> None:
        """Pack the weights for fast products. Packed weights can be neither saved nor trained."""
        self.parameters = packed_parameters(self.parameters)

    def use_loops(self) -> None:
        """Compute with compiled loops from the next step on; they were not loaded when the head was made."""
        own = self.parameters
        use_loops([own.fc, own.qkv, own.o, own.gate_up, own.down, self.lm_head])
        if self.serving_ops.name == "plain-cpu":
            self._ops = for_device(self.device, attention_cap=self.serving_ops.attention_cap)

    def features(self, captured_NC: torch.Tensor) -> torch.Tensor:
        """Return the features [N, E] from the captured hidden states; EAGLE-3 projects three layers to one width."""
        return self.parameters.fc(captured_NC) if self.config.kind == "eagle3" else captured_NC

    def forward(
        self, ids_N: torch.Tensor, before_NE: torch.Tensor, positions_N: torch.Tensor, attend: Attend
    ) -> HeadOutput:
        """Run the layer on tokens `ids_N` with the features (or estimates) of the tokens before them."""
        cos, sin = self.rope.angles(positions_N, positions_N)
        return self.forward_rotated(ids_N, before_NE, cos, sin, attend)

    def forward_rotated(
        self, ids_N: torch.Tensor, before_NE: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> HeadOutput:
        """Like `forward`, with the positions' angles [N, 1, D], which rounds of a tree share."""
        config, own, ops = self.config, self.parameters, self._ops
        qkv_NND, residual = self.heads(ids_N, before_NE)
        attended = own.o(attend(qkv_NND, cos, sin))
        x, residual = ops.add_rms_norm(attended, residual, own.post_norm_E, config.norm_eps)
        feature = residual + own.down(ops.silu_and_mul(own.gate_up(x)))
        read = feature if own.norm_E is None else ops.rms_norm(feature, own.norm_E, config.norm_eps)
        return HeadOutput(feature, read)

    def heads(self, ids_N: torch.Tensor, before_NE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the heads of queries, keys and values [N, H + 2K, D] of the tokens, and the residual [N, E]."""
        config, own, ops = self.config, self.parameters, self._ops
        embedded_NE = F.embedding(ids_N, self.embedding)
        if own.hidden_norm_E is None or own.input_norm_E is None:
            residual = own.fc(torch.cat((embedded_NE, before_NE), dim=-1))
            x = residual
        else:
            normed_NE = ops.rms_norm(before_NE, own.hidden_norm_E, config.norm_eps)
            residual = normed_NE if config.norm_before_residual else before_NE
            x = torch.cat((ops.rms_norm(embedded_NE, own.input_norm_E, config.norm_eps), normed_NE), dim=-1)
        return own.qkv(x).view(len(ids_N), config.num_heads + 2 * config.num_kv_heads, config.head_dim), residual

    def logits(self, read_NE: torch.Tensor) -> torch.Tensor:
        """Return the logits, float32 [N, V]."""
        return self.lm_head(read_NE).float()

    def target_logits(self, final_NE: torch.Tensor) -> torch.Tensor:
        """Return the target's logits of its final hidden states, restricted to the head's vocabulary: float32
        [N, V]."""
        logits = self._target_lm_head(final_NE).float()
        return logits if self._token_ids is None else logits[:, self._token_ids]

    def token_ids(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the target's token ids of `indices` of the head's vocabulary, any shape."""
        return indices if self._token_ids is None else self._token_ids[indices]
