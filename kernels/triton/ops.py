"""The Triton kernels as a set that an engine can be given; plain torch where a kernel would gain nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..kv_cache import KvCache
from ..reference import logits as plain_logits
from ..reference import trees
from ..reference.attention_layout import KeyRope, RowSpan
from . import experts, layers, logits, paged_attention, sampling, store


@dataclass(frozen=True)
class TritonOps:
    deterministic: bool = False

    name = "triton"
    rotates_stored_keys = False
    groups_experts = True
    attention_cap = None

    rms_norm = staticmethod(layers.rms_norm)
    add_rms_norm = staticmethod(layers.add_rms_norm)
    silu_and_mul = staticmethod(layers.silu_and_mul)
    combine_experts = staticmethod(experts.combine_experts)
    apply_token_bitmask = staticmethod(logits.apply_token_bitmask)
    apply_penalties = staticmethod(plain_logits.apply_penalties)
    sample_tokens = staticmethod(sampling.sample_tokens)
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
    ) -> paged_attention.TritonAttention:
        assert key_rope is None
        return paged_attention.step_attention(
            rows,
            kv,
            num_heads=num_heads,
            page_size=page_size,
            window=window,
            dtype=dtype,
            deterministic=self.deterministic,
        )

    def decode_attention(
        self,
        page_table_RP: torch.Tensor,
        num_keys_R: torch.Tensor,
        kv: KvCache,
        *,
        page_size: int,
        window: int | None,
    ) -> paged_attention.TritonAttention:
        return paged_attention.decode_attention(
            page_table_RP, num_keys_R, kv, page_size=page_size, window=window, deterministic=self.deterministic
        )

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
        assert rotate_keys
        return store.rope_and_store(qkv_TND, cos_T1D, sin_T1D, kv, slots_T, num_heads, qk_norm_HD, eps)

    def grouped_matmul(
        self, x: torch.Tensor, weight_NOI: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None
    ) -> torch.Tensor:
        return experts.grouped_matmul(x, weight_NOI, ends_N, rows_P, fixed=self.deterministic)

    def token_logprobs(
        self, logits_RV: torch.Tensor, tokens_R: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logprob_R, normaliser_R = sampling.logprobs(logits_RV, tokens_R)
        top_RM, ids_RM = logits_RV.topk(min(num_top, logits_RV.shape[1]), dim=-1)
        return logprob_R, top_RM.float() - normaliser_R[:, None], ids_RM
