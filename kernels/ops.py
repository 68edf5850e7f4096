"""What a set of device ops must offer. An engine has one set, made once by `choose.for_device`.

The plain torch in `reference` says what each op means and runs on every device that torch knows.

Legend: T tokens of a step, R rows, H query heads, K key/value heads, D head size, E hidden size, I intermediate size,
V vocabulary, W mask words, N experts, C experts of a token, P = T * C pairs of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from .kv_cache import KvCache
from .reference.attention_layout import KeyRope, RowSpan


class Attention(Protocol):
    """Which of a step's queries meet which keys: made once for a step and a window, used by every layer with it."""

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        """`softmax(scale * q k^T) v` of each query over the keys that it sees, as [T, H, D]. Query head h reads
        key/value head `h // (H // K)` (Ainslie et al. 2023, grouped-query attention)."""
        ...


class Ops(Protocol):
    """Each op by name; what it means stands with the function of that name in `reference`."""

    @property
    def name(self) -> str: ...

    @property
    def deterministic(self) -> bool:
        """Whether a token's numbers are, bit for bit, those that it has in any other batch or chunk."""
        ...

    @property
    def attention_cap(self) -> float | None:
        """The c of attention scores that become c * tanh(score / c) before the softmax; None: scores as they are."""
        ...

    @property
    def rotates_stored_keys(self) -> bool:
        """Whether `attention` takes a `key_rope`."""
        ...

    @property
    def groups_experts(self) -> bool:
        """Whether `grouped_matmul` is the best product for a mixture's experts, or else one for each that is packed for
        its device."""
        ...

    def attention(
        self,
        rows: Sequence[RowSpan],
        kv: KvCache,
        *,
        num_heads: int,
        page_size: int,
        window: int | None,
        dtype: torch.dtype,
        key_rope: KeyRope | None = None,
    ) -> Attention:
        """Causal attention of `rows`, whose tokens are concatenated in order, over caches that look like `kv`. With a
        `window` W, position i sees the positions (i - W, i]. `dtype` is the queries'."""
        ...

    def decode_attention(
        self,
        page_table_RP: torch.Tensor,
        num_keys_R: torch.Tensor,
        kv: KvCache,
        *,
        page_size: int,
        window: int | None,
    ) -> Attention | None:
        """The same for rows of one token, from int32 tensors of the device: nothing depends on their values but what is
        computed there, so a graph that holds it serves any lengths. A row of 0 keys stands for none: its output is
        zeros. None: these ops must know lengths."""
        ...

    def rope_and_store(
        self,
        qkv_TND: torch.Tensor,
        cos_T1D: torch.Tensor,
        sin_T1D: torch.Tensor,
        kv: KvCache,
        slots_T: torch.Tensor,
        *,
        num_heads: int,
        qk_norm_HD: torch.Tensor | None,
        eps: float,
        rotate_keys: bool,
    ) -> torch.Tensor:
        """The rotated queries [T, H, D]; keys, rotated too with `rotate_keys`, and values go to `slots_T` of the cache.
        `qkv_TND` are the heads of queries, keys and values; `qk_norm_HD` [H + K, D] are the weights of an RMS norm of
        each of the former two, applied first."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def add_rms_norm(
        self, x_TE: torch.Tensor, residual_TE: torch.Tensor, weight_E: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def grouped_matmul(
        self, x: torch.Tensor, weight_NOI: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None
    ) -> torch.Tensor:
        """One product for each expert of a mixture, whose weights lie in one tensor."""
        ...

    def combine_experts(self, y_PE: torch.Tensor, order_P: torch.Tensor, weights_TC: torch.Tensor) -> torch.Tensor: ...

    def apply_token_bitmask(self, logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> torch.Tensor: ...

    def apply_penalties(
        self,
        logits_RV: torch.Tensor,
        *,
        rows_N: torch.Tensor,
        tokens_N: torch.Tensor,
        counts_N: torch.Tensor,
        repetition_N: torch.Tensor,
        frequency_N: torch.Tensor,
        presence_N: torch.Tensor,
    ) -> torch.Tensor: ...

    def sample_tokens(
        self,
        logits_RV: torch.Tensor,
        *,
        temperature_R: torch.Tensor,
        top_k_R: torch.Tensor,
        top_p_R: torch.Tensor,
        min_p_R: torch.Tensor,
        draw_R: torch.Tensor,
        max_top_k: int,
    ) -> torch.Tensor:
        """A token for each row, int64 [R]: the likeliest at temperature 0, else one drawn by `draw_tokens` from
        `sampling_weights`. `max_top_k` is the largest `top_k` below V of a row that has a `top_p` below 1; 0: none."""
        ...

    def token_logprobs(
        self, logits_RV: torch.Tensor, tokens_R: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...

    def walk_trees(
        self, sampled_O: torch.Tensor, guessed_O: torch.Tensor, parents_O: torch.Tensor, *, max_depth: int
    ) -> torch.Tensor: ...

    def compact_kv(
        self,
        memories: Iterable[torch.Tensor],
        on_way_N: torch.Tensor,
        slots_N: torch.Tensor,
        moves_N: torch.Tensor,
        targets_M: torch.Tensor,
    ) -> None: ...
