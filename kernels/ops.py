"""Protocol of the device ops. An engine has one set of ops, made by `dispatch.for_device`.

The plain torch in `reference` defines each op and runs on every device that torch knows. Ops of more than four
arguments take them as one value of `arguments`.

Legend: T tokens of a step, R rows, H query heads, K key/value heads, D head size, E hidden size, I intermediate size,
V vocabulary, W mask words, N experts, C experts of a token, P = T * C pairs of the two, O outputs, M alternatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from .arguments import (
    AttentionArgs,
    DecodeAttentionArgs,
    GroupRouting,
    RecurrenceInputs,
    RopeAndStoreArgs,
)
from .kv_cache import KvCache
from .lora import AdapterSegments, LowRankProduct
from .reference.experts import Routing
from .reference.sampling import SamplingTensors


class Attention(Protocol):
    """Attention of one step and window: built once, called by every layer of that window."""

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute `softmax(scale * q k^T) v` of each query over the keys it sees, as [T, H, D] with the values' D.

        Query head h reads key/value head `h // (H // K)` (Ainslie et al. 2023, grouped-query attention). `sinks_H`,
        contiguous float32, are further logits, one a head, that take part in its softmax and have no value (Xiao et al.
        2023).
        """
        ...


class LatentArgs(NamedTuple):
    """Arguments of `Ops.attend_latents`."""

    attention: Attention
    matrices: Any  # `cpu.latent_attention.LatentMatrices`
    scale: float
    norm_C: torch.Tensor  # of latents
    eps: float
    rope: RopeAndStoreArgs
    interleaved: bool  # as of `store_latent`


class Ops(Protocol):
    """Device ops by name. The function of the same name in `reference` defines each one."""

    @property
    def name(self) -> str: ...

    @property
    def deterministic(self) -> bool:
        """True if a token's numbers are, bit for bit, the same in any other batch or chunk."""
        ...

    @property
    def attention_cap(self) -> float | None:
        """Soft cap c of attention scores, c * tanh(score / c) before the softmax; None: no cap."""
        ...

    @property
    def groups_experts(self) -> bool:
        """True if `grouped_matmul` is the fastest product for a mixture's experts; False if one packed layer per expert
        is."""
        ...

    def attention(self, args: AttentionArgs) -> Attention:
        """Prepare causal attention of the step's rows."""
        ...

    def decode_attention(self, args: DecodeAttentionArgs) -> Attention | None:
        """Prepare attention of rows of few tokens whose lengths are read on the device, so that a captured CUDA graph
        serves any lengths. None: these ops need the lengths on the host."""
        ...

    def rope_and_store(
        self, qkv_TND: torch.Tensor, kv: KvCache, qk_norm_HD: torch.Tensor | None, args: RopeAndStoreArgs
    ) -> torch.Tensor:
        """Return the rotated queries [T, H, D]; write the rotated keys, and the values, to the cache.

        `qkv_TND` holds the heads of queries, keys and values. `qk_norm_HD` [H + K, D] are the weights of an RMS norm of
        each head of queries and keys, applied before the rotation; None: no norm.
        """
        ...

    def store_latent(
        self, latent_TC: torch.Tensor, rope_TNR: torch.Tensor, kv: KvCache, args: RopeAndStoreArgs, interleaved: bool
    ) -> torch.Tensor:
        """Rotate the heads of `rope_TNR`, those of queries and at last the key's, and return the queries' [T, N - 1,
        R]; write latents, with the rotated key behind, to the cache.

        `interleaved` heads pair the dimensions (2i, 2i + 1); rotated ones are in the order of their pairs' halves.
        """
        ...

    def attend_latents(
        self, q_TY: torch.Tensor, first_TX: torch.Tensor, kv: KvCache, args: LatentArgs
    ) -> torch.Tensor | None:
        """Return latent attention, [T, H * V], in whichever form takes less; None: these ops have no loops for it, and
        the model calls `store_latent` and multiplies by its matrices itself.

        A row of `q_TY` begins with the queries of all heads, before rotation and absorption; a row of `first_TX` ends
        with the latent, before its norm, and the part of the key to be rotated. Queries are rotated in place, latents
        written to the cache.
        """
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def clamped_swiglu(self, gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
        """Return `gate * sigmoid(alpha * gate) * (up + 1)` of [P, 2I], whose first half is the gate: at most `limit`,
        ups within -limit and limit."""
        ...

    def grouped_matmul(
        self, x: torch.Tensor, weight_NOI: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply each expert's rows by its weight; the experts' weights lie in one tensor."""
        ...

    def route(self, scores_TN: torch.Tensor, num_chosen: int, normalised: bool) -> Routing:
        """Choose each token's experts by the router's scores, and sort the pairs of both by expert."""
        ...

    def route_by_groups(self, scores_TN: torch.Tensor, bias_N: torch.Tensor | None, args: GroupRouting) -> Routing:
        """Choose each token's experts in its best groups, and sort the pairs of both by expert. `bias_N` is added to
        the affinities to choose by, not to the weights."""
        ...

    def combine_experts(self, y_PE: torch.Tensor, place_P: torch.Tensor, weights_TC: torch.Tensor) -> torch.Tensor: ...

    def add_low_rank(
        self, y_TO: torch.Tensor, x_TC: torch.Tensor, product: LowRankProduct, segments: AdapterSegments
    ) -> None:
        """Add each adapter's low-rank product of its tokens' `x_TC` to `y_TO`, in place."""
        ...

    def step_states(self, state_SHKV: torch.Tensor, slots_R: torch.Tensor, inputs: RecurrenceInputs) -> torch.Tensor:
        """Advance recurrent states in the slots of the rows by one token each, in place; return the outputs [R, H,
        V]."""
        ...

    def apply_token_bitmask(self, logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> torch.Tensor: ...

    def likeliest_tokens(self, logits_RV: torch.Tensor) -> torch.Tensor:
        """Return each row's token of the largest logit, the first one of equals, or NOT_FINITE; int64 [R]."""
        ...

    def sample_tokens(self, logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
        """Return a token for each row, int64 [R]: the likeliest at temperature 0, else one drawn by `draw_tokens` from
        `sampling_weights`; NOT_FINITE where the largest logit is no finite number."""
        ...

    def drawn_logprobs(
        self, logits_RV: torch.Tensor, tokens_R: torch.Tensor, sampling: SamplingTensors
    ) -> torch.Tensor:
        """Return log p of the tokens in the distributions that `sample_tokens` draws from, float64 [R]. Temperatures
        are positive."""
        ...

    def log_sums(self, logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logarithm of the sum of a row's exponentials, and the entropy of its softmax in nats; float32 [R].
        The logits are float32."""
        ...

    def walk_trees(
        self, sampled_O: torch.Tensor, guessed_O: torch.Tensor, parents_O: torch.Tensor, *, max_depth: int
    ) -> torch.Tensor: ...
