"""Attention over a paged KV cache: write the step's keys and values to their slots, read each row's back.

Legend: T tokens of the step, S slots of the cache, H query heads, K key/value heads, D head size, B rows of a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..kv_cache import KvCache
from .layout import AttentionLayout, PaddedRows


def store_kv(k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: KvCache, slots_T: torch.Tensor) -> None:
    """Write token t's key and value to slot `slots_T[t]` of the cache, in place. Slots are distinct."""
    kv.k_SKD.index_copy_(0, slots_T, k_TKD)
    kv.v_SKD.index_copy_(0, slots_T, v_TKD)


def paged_attention(q_THD: torch.Tensor, kv: KvCache, layout: AttentionLayout, scale: float) -> torch.Tensor:
    """`softmax(scale * q k^T) v` of each query over the keys that `layout` shows it, as [T, H, D].

    Query head h reads key/value head `h // (H // K)` (Ainslie et al. 2023, grouped-query attention).
    """
    outputs = [_attend(q_THD, kv, group, scale) for group in layout.groups]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if layout.order is None else output.index_select(0, layout.order)


def _attend(q_THD: torch.Tensor, kv: KvCache, group: PaddedRows, scale: float) -> torch.Tensor:
    B, T, L = group.num_rows, group.num_queries, group.num_keys
    H, D, K = q_THD.shape[1], q_THD.shape[2], kv.k_SKD.shape[1]
    q = q_THD if group.queries is None else q_THD.index_select(0, group.queries)
    k_BKLD = group.rotate(_gather(kv.k_SKD, group.slots).view(B, L, K, D)).transpose(1, 2)
    v_BKLD = _gather(kv.v_SKD, group.slots).view(B, L, K, D).transpose(1, 2)
    if T == 1:
        # The heads that share a key head become its queries: one product per key head, not one per query head.
        q_BKGD = q.reshape(B, K, H // K, D)
        out = F.scaled_dot_product_attention(q_BKGD, k_BKLD, v_BKLD, attn_mask=group.bias, scale=scale)
        return out.reshape(B, H, D)
    q_BHTD = q.reshape(B, T, H, D).transpose(1, 2)
    out = F.scaled_dot_product_attention(
        q_BHTD, k_BKLD, v_BKLD, attn_mask=group.bias, is_causal=group.causal, scale=scale, enable_gqa=H != K
    )
    return out.transpose(1, 2).reshape(B * T, H, D)


def _gather(cache_SKD: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return cache_SKD.view(cache_SKD.shape[0], -1).index_select(0, slots)
