"""Attention over a paged KV cache: write the step's keys and values to their slots, read each row's back.

A cache may hold another dtype than the queries', eight-bit codes with scales included. Scales are never applied to what
is gathered: the queries take the keys' and the outputs the values', which is less by the length of the row.

Legend: T tokens of the step, S slots of the cache, H query heads, K key/value heads, D head size, B rows of a group.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..kv_cache import KvCache
from .attention_layout import AttentionLayout, PaddedRows
from .chunk import attend_chunk
from .quantise import E4M3, expand_e4m3, quantise


def store_kv(k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: KvCache, slots_T: torch.Tensor) -> None:
    """Write token t's key and value to slot `slots_T[t]` of the cache, in place; quantised, where the cache is. Slots
    are distinct."""
    _store(k_TKD, kv.k_SKD, kv.k_scale_K, slots_T)
    _store(v_TKD, kv.v_SKD, kv.v_scale_K, slots_T)


def _store(x_TKD: torch.Tensor, cache_SKD: torch.Tensor, scale_K: torch.Tensor | None, slots_T: torch.Tensor) -> None:
    if scale_K is None:
        cache_SKD.index_copy_(0, slots_T, x_TKD.to(cache_SKD.dtype))
    else:
        _bits(cache_SKD).index_copy_(0, slots_T, _bits(quantise(x_TKD, scale_K, cache_SKD.dtype)))


def _bits(cache: torch.Tensor) -> torch.Tensor:
    """e4m3 as int8 of the same bits: not every op of torch's takes it on every device."""
    return cache.view(torch.int8) if cache.dtype == E4M3 else cache


def paged_attention(q_THD: torch.Tensor, kv: KvCache, layout: AttentionLayout, scale: float) -> torch.Tensor:
    """`softmax(scale * q k^T) v` of each query over the keys that `layout` shows it, as [T, H, D].

    Query head h reads key/value head `h // (H // K)` (Ainslie et al. 2023, grouped-query attention).
    """
    if kv.k_scale_K is not None:
        q_THD = scale_heads(q_THD, kv.k_scale_K)
    outputs = [_attend(q_THD, kv, group, scale) for group in layout.groups]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    if kv.v_scale_K is not None:
        output = scale_heads(output, kv.v_scale_K)
    return output if layout.order is None else output.index_select(0, layout.order)


def scale_heads(x_THD: torch.Tensor, scale_K: torch.Tensor) -> torch.Tensor:
    """Each head times the scale of its key/value head."""
    T, H, D = x_THD.shape
    K = len(scale_K)
    return (x_THD.reshape(T, K, H // K, D) * scale_K.to(x_THD.dtype)[:, None, None]).view(T, H, D)


def _attend(q_THD: torch.Tensor, kv: KvCache, group: PaddedRows, scale: float) -> torch.Tensor:
    B, T, L = group.num_rows, group.num_queries, group.num_keys
    H, D, K = q_THD.shape[1], q_THD.shape[2], kv.k_SKD.shape[1]
    q = q_THD if group.queries is None else q_THD.index_select(0, group.queries)
    k_BKLD = group.rotate(gather_slots(kv.k_SKD, group.slots, q.dtype).view(B, L, K, D)).transpose(1, 2)
    v_BKLD = gather_slots(kv.v_SKD, group.slots, q.dtype).view(B, L, K, D).transpose(1, 2)
    if group.causal:
        return attend_chunk(q, k_BKLD[0].transpose(0, 1), v_BKLD[0].transpose(0, 1), scale)
    if T == 1:
        # The heads that share a key head become its queries: one product per key head, not one per query head.
        q_BKGD = q.reshape(B, K, H // K, D)
        out = F.scaled_dot_product_attention(q_BKGD, k_BKLD, v_BKLD, attn_mask=group.bias, scale=scale)
        return out.reshape(B, H, D)
    q_BHTD = q.reshape(B, T, H, D).transpose(1, 2)
    out = F.scaled_dot_product_attention(q_BHTD, k_BKLD, v_BKLD, attn_mask=group.bias, scale=scale, enable_gqa=H != K)
    return out.transpose(1, 2).reshape(B * T, H, D)


def gather_slots(cache_SKD: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the slots hold as `dtype`, without scales."""
    found = _bits(cache_SKD).view(cache_SKD.shape[0], -1).index_select(0, slots)
    return expand_e4m3(found, dtype) if cache_SKD.dtype == E4M3 else found.to(dtype)
