"""The plain torch ops as a set that an engine can be given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..kv_cache import KvCache
from ..ops import Attention
from . import experts, layers, logits, sampling, trees
from .attention import paged_attention, store_kv
from .attention_layout import AttentionLayout, KeyRope, RowSpan, attention_layout
from .deterministic_attention import deterministic_attention


@dataclass(frozen=True)
class PaddedAttention:
    layout: AttentionLayout
    cap: float | None = None

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        return paged_attention(q_THD, kv, self.layout, scale, self.cap)


class ReferenceOps:
    name: str = "reference"
    deterministic: bool = False
    rotates_stored_keys: bool = True
    groups_experts: bool = True

    def __init__(self, attention_cap: float | None = None) -> None:
        self.attention_cap = attention_cap

    rms_norm = staticmethod(layers.rms_norm)
    add_rms_norm = staticmethod(layers.add_rms_norm)
    silu_and_mul = staticmethod(layers.silu_and_mul)
    grouped_matmul = staticmethod(experts.grouped_matmul)
    combine_experts = staticmethod(experts.combine_experts)
    apply_token_bitmask = staticmethod(logits.apply_token_bitmask)
    apply_penalties = staticmethod(logits.apply_penalties)
    token_logprobs = staticmethod(sampling.token_logprobs)
    walk_trees = staticmethod(trees.walk_trees)
    compact_kv = staticmethod(trees.compact_kv)

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
        device = kv.k_SKD.device
        return PaddedAttention(
            attention_layout(rows, page_size=page_size, window=window, dtype=dtype, device=device, key_rope=key_rope),
            self.attention_cap,
        )

    def decode_attention(
        self,
        page_table_RP: torch.Tensor,
        num_keys_R: torch.Tensor,
        kv: KvCache,
        *,
        page_size: int,
        window: int | None,
    ) -> None:
        """Rows are grouped by their lengths."""

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
        num_keys = kv.k_SKD.shape[1]
        qk, v = qkv_TND[:, : num_heads + num_keys], qkv_TND[:, num_heads + num_keys :]
        if qk_norm_HD is not None:
            qk = self.rms_norm(qk, qk_norm_HD, eps)
        if rotate_keys:
            qk = layers.apply_rope(qk, cos_T1D, sin_T1D)
            q, k = qk[:, :num_heads], qk[:, num_heads:]
        else:
            q, k = layers.apply_rope(qk[:, :num_heads], cos_T1D, sin_T1D), qk[:, num_heads:]
        store_kv(k, v, kv, slots_T)
        return q

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
        return sampling.sample_tokens(
            logits_RV,
            temperature_R=temperature_R,
            top_k_R=top_k_R,
            top_p_R=top_p_R,
            min_p_R=min_p_R,
            draw_R=draw_R,
        )


class DeterministicOps(ReferenceOps):
    """Row by row where torch would choose its way by the number of rows. Products of weights are not among the ops:
    whoever has them gives them one shape."""

    deterministic = True
    rotates_stored_keys = False

    grouped_matmul = staticmethod(experts.deterministic_grouped_matmul)
    silu_and_mul = staticmethod(layers.deterministic_silu_and_mul)

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
        assert key_rope is None
        return deterministic_attention(rows, page_size=page_size, window=window, device=kv.k_SKD.device)

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
        sample = super().sample_tokens
        rows = (slice(row, row + 1) for row in range(len(logits_RV)))
        return torch.cat(
            [
                sample(
                    logits_RV[row],
                    temperature_R=temperature_R[row],
                    top_k_R=top_k_R[row],
                    top_p_R=top_p_R[row],
                    min_p_R=min_p_R[row],
                    draw_R=draw_R[row],
                    max_top_k=max_top_k,
                )
                for row in rows
            ]
        )

    def token_logprobs(
        self, logits_RV: torch.Tensor, tokens_R: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = [
            sampling.token_logprobs(logits_RV[row : row + 1], tokens_R[row : row + 1], num_top)
            for row in range(len(logits_RV))
        ]
        logprobs, tops, ids = zip(*rows, strict=True)
        return torch.cat(logprobs), torch.cat(tops), torch.cat(ids)
