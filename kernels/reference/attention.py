"""Attention over a paged KV cache: store the step's keys and values, and attend to each row's.

A cache may have another dtype than the queries, codes with scales included. The keys' scales multiply the queries and
the values' scales the outputs, which are fewer numbers than the gathered keys and values. For the same reason queries
are rotated as four-bit keys are, and outputs back.

Legend: T tokens of the step, S slots of the cache, L keys, H query heads, K key/value heads, G = H / K, D head size,
B rows of a group; in `attend_chunk` B queries of a block, N key/value heads at a time, R = B * G rows of a product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..arguments import RopeAndStoreArgs
from ..kv_cache import KvCache
from .attention_layout import AttentionLayout, PaddedRows
from .layers import apply_rope
from .quantise import (
    E4M3,
    E5M2,
    expand_e4m3,
    expand_e5m2,
    quantise,
    rotate,
    to_e5m2,
)
from .scaled_codes import pack_keys, pack_values, unpack, unpack_keys

_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
# Rows of a key head's product that repay a call, and bytes of its scores that stay in a processor's cache.
_ROWS, _SCORES = 512, 2 << 20


def store_kv(
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    kv: KvCache,
    slots_T: torch.Tensor,
    positions_T: torch.Tensor | None = None,
) -> None:
    """Write token t's key and value to slot `slots_T[t]` of the cache, in place, as codes if it is quantised. Slots are
    distinct. A cache with a basis needs the tokens' positions."""
    if kv.basis is not None:
        assert positions_T is not None, "keys are stored relative to statistics that depend on positions"
        k_SKB, v_SKB = map(_bits, (kv.k_SKD, kv.v_SKD))
        k_SKB.index_copy_(0, slots_T, _bits(pack_keys(k_TKD, positions_T, kv.basis, kv.k_SKD.dtype)))
        v_SKB.index_copy_(0, slots_T, _bits(pack_values(v_TKD, kv.v_SKD.dtype)))
        return
    _store(k_TKD, kv.k_SKD, kv.k_scale_K, slots_T)
    _store(v_TKD, kv.v_SKD, kv.v_scale_K, slots_T)


def store_latent(
    latent_TC: torch.Tensor, rope_TNR: torch.Tensor, kv: KvCache, args: RopeAndStoreArgs, interleaved: bool
) -> torch.Tensor:
    """Rotate the heads of `rope_TNR`, those of queries and at last the key's, and return the queries' [T, N - 1, R];
    write latents, with the rotated key behind, to the cache. `interleaved` heads pair the dimensions (2i, 2i + 1);
    rotated ones are in the order of their pairs' halves."""
    if interleaved:
        rope_TNR = rope_TNR.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
    rope_TNR = apply_rope(rope_TNR, args.cos_T1D, args.sin_T1D)
    key_TD = torch.cat((latent_TC, rope_TNR[:, -1]), dim=-1)
    _store(key_TD[:, None], kv.k_SKD, kv.k_scale_K, args.slots_T)
    return rope_TNR[:, :-1]


def _store(x_TKD: torch.Tensor, cache_SKD: torch.Tensor, scale_K: torch.Tensor | None, slots_T: torch.Tensor) -> None:
    if scale_K is not None:
        stored = quantise(x_TKD, scale_K, cache_SKD.dtype)
    else:
        stored = to_e5m2(x_TKD) if cache_SKD.dtype == E5M2 else x_TKD.to(cache_SKD.dtype)
    _bits(cache_SKD).index_copy_(0, slots_T, _bits(stored))


def _bits(cache: torch.Tensor) -> torch.Tensor:
    """View eight-bit floats as int8 of the same bits, because some torch ops lack them on some devices."""
    return cache.view(torch.int8) if cache.dtype in (E4M3, E5M2) else cache


def paged_attention(
    q_THD: torch.Tensor,
    kv: KvCache,
    layout: AttentionLayout,
    scale: float,
    cap: float | None = None,
    sinks_H: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `softmax(scale * q k^T) v` of each query over the keys that `layout` shows it, as [T, H, D] with the
    values' D.

    With `cap`, each score s becomes cap * tanh(s / cap) before the softmax (Gemma Team 2024, Gemma 2, section 2).
    `sinks_H` are further logits, one a head, that take part in the softmax and have no value (Xiao et al. 2023).
    Query head h reads key/value head `h // (H // K)` (Ainslie et al. 2023, grouped-query attention).
    """
    dtype = q_THD.dtype
    q_THD = scaled_queries(q_THD, kv)
    outputs = [_attend(q_THD, kv, group, scale, cap, sinks_H) for group in layout.groups]
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    output = plain_outputs(output, kv).to(dtype)
    return output if layout.order is None else output.index_select(0, layout.order)


def scaled_queries(q_THD: torch.Tensor, kv: KvCache) -> torch.Tensor:
    """Return the queries times the keys' scales. Keys of a cache with a basis are read as the numbers meant, in float32
    at least."""
    if kv.basis is not None:
        return q_THD.to(torch.promote_types(q_THD.dtype, torch.float32))
    return q_THD if kv.k_scale_K is None else _scale_heads(q_THD, kv.k_scale_K)


def plain_outputs(output_THD: torch.Tensor, kv: KvCache) -> torch.Tensor:
    """Return sums of the cache's values as sums of the numbers meant."""
    if kv.v_scale_K is not None:
        output_THD = _scale_heads(output_THD, kv.v_scale_K)
    return rotate(output_THD) if kv.basis is not None else output_THD


def _scale_heads(x_THD: torch.Tensor, scale_K: torch.Tensor) -> torch.Tensor:
    """Multiply each head by the scale of its key/value head, or its channels' scales."""
    T, H, D = x_THD.shape
    K = len(scale_K)
    return (x_THD.reshape(T, K, H // K, D) * scale_K.to(x_THD.dtype).view(K, 1, -1)).view(T, H, D)


def _attend(
    q_THD: torch.Tensor,
    kv: KvCache,
    group: PaddedRows,
    scale: float,
    cap: float | None,
    sinks_H: torch.Tensor | None,
) -> torch.Tensor:
    B, T, L = group.num_rows, group.num_queries, group.num_keys
    H, D, K = q_THD.shape[1], q_THD.shape[2], kv.k_SKD.shape[1]
    q = q_THD if group.queries is None else q_THD.index_select(0, group.queries)
    bias = None if group.bias is None else group.bias.to(q.dtype)
    k_BLKD = gather_keys(kv, group.slots, group.positions, q.dtype).view(B, L, K, D)
    k_BKLD = k_BLKD.transpose(1, 2)
    if kv.is_latent:
        v_BKLD = k_BKLD[..., : kv.v_SKD.shape[2]]
    else:
        v_BKLD = gather_values(kv, group.slots, q.dtype).view(B, L, K, D).transpose(1, 2)
    # torch's fused attention would repeat the one latent for every head.
    if cap is not None or sinks_H is not None or (kv.is_latent and not group.causal):
        return _attend_by_scores(q.reshape(B, T, H, D), k_BKLD, v_BKLD, group, scale, cap, sinks_H)
    if group.causal:
        return attend_chunk(q, k_BKLD[0].transpose(0, 1), v_BKLD[0].transpose(0, 1), scale)
    if T == 1:
        # The heads that share a key head become its queries: one product per key head, not one per query head.
        q_BKGD = q.reshape(B, K, H // K, D)
        out = F.scaled_dot_product_attention(q_BKGD, k_BKLD, v_BKLD, attn_mask=bias, scale=scale)
        return out.reshape(B, H, D)
    q_BHTD = q.reshape(B, T, H, D).transpose(1, 2)
    out = F.scaled_dot_product_attention(q_BHTD, k_BKLD, v_BKLD, attn_mask=bias, scale=scale, enable_gqa=H != K)
    return out.transpose(1, 2).reshape(B * T, H, D)


def _attend_by_scores(
    q_BTHD: torch.Tensor,
    k_BKLD: torch.Tensor,
    v_BKLD: torch.Tensor,
    group: PaddedRows,
    scale: float,
    cap: float | None,
    sinks_H: torch.Tensor | None,
) -> torch.Tensor:
    """Return [B * T, H, D], computed op by op because torch's fused attention has neither cap nor sinks."""
    B, T, H, D = q_BTHD.shape
    K, L = k_BKLD.shape[1:3]
    q_BKRD = q_BTHD.view(B, T, K, H // K, D).permute(0, 2, 3, 1, 4).reshape(B, K, -1, D)
    V = v_BKLD.shape[3]
    scores = (q_BKRD @ k_BKLD.transpose(2, 3)).float().view(B, K, H // K, T, L) * scale
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    if group.causal:  # the queries are the last T of L positions
        hidden_TL = torch.ones((T, L), dtype=torch.bool, device=scores.device).triu_(L - T + 1)
        scores = scores.masked_fill(hidden_TL, float("-inf"))
    elif group.bias is not None:
        scores = scores + group.bias.float().reshape(B, 1, 1, -1, L)
    if sinks_H is not None:
        sinks = sinks_H.float().view(1, K, H // K, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :L].to(v_BKLD.dtype).reshape(B, K, -1, L)
    out_BKGTV = (weights @ v_BKLD).view(B, K, H // K, T, V)
    return out_BKGTV.permute(0, 3, 1, 2, 4).contiguous().view(B * T, H, V)


def gather_keys(kv: KvCache, slots: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the keys of the slots as `gather_slots` does; of a cache with a basis the numbers meant, [L, K, D].
    `positions` are those of the keys."""
    if kv.basis is None:
        return gather_slots(kv.k_SKD, slots, dtype)
    return unpack_keys(_codes_of(kv.k_SKD, slots), positions, kv.basis, dtype)


def gather_values(kv: KvCache, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values of the slots as `gather_slots` does; of a cache with a basis as they were rotated, [L, K,
    D]."""
    return gather_slots(kv.v_SKD, slots, dtype) if kv.basis is None else unpack(_codes_of(kv.v_SKD, slots), dtype)


def _codes_of(cache_SKB: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    return _bits(cache_SKB).index_select(0, slots).view(cache_SKB.dtype)


def gather_slots(cache_SKD: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the contents of the slots as `dtype`, without scales of heads."""
    found = _bits(cache_SKD).view(cache_SKD.shape[0], -1).index_select(0, slots)
    if cache_SKD.dtype == E5M2:
        return expand_e5m2(found, dtype)
    return expand_e4m3(found, dtype) if cache_SKD.dtype == E4M3 else found.to(dtype)


def attend_chunk(q_THD: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, scale: float) -> torch.Tensor:
    """Return causal `softmax(scale * q k^T) v`, [T, H, D] with the values' D, of one row's chunk: the last T of L
    positions.

    torch's fused attention on a CPU multiplies each query head by itself, and with a mask reads every key for every
    query. Here the heads that share a key head are rows of one product. A block of queries meets the keys up to its own
    last one, and only the square on the diagonal is masked. The softmax adds up in float32 at least.
    """
    T, H, D = q_THD.shape
    L, K = k_LKD.shape[:2]
    G = H // K
    size = max(16, min(_ROWS, _SCORES // (L * q_THD.element_size())) // G)
    by_onednn = q_THD.dtype == torch.float32 and q_THD.device.type == "cpu" and _HAS_ONEDNN
    # Key heads in one call. One for each thread makes the fewest calls in which a thread reads what it wrote itself.
    at_once = 1 if by_onednn or q_THD.device.type != "cpu" else torch.get_num_threads()
    out_TKGD = q_THD.new_empty((T, K, G, v_LKD.shape[2]))
    q_KTGD = (q_THD * scale).view(T, K, G, D).transpose(0, 1)
    k_KLD, v_KLD = (x_LKD.transpose(0, 1).contiguous() for x_LKD in (k_LKD, v_LKD))
    v_KDL = v_KLD.transpose(1, 2).contiguous() if by_onednn else v_KLD.transpose(1, 2)
    hidden_BB = q_THD.new_full((size, size), float("-inf")).triu_(1)
    for first in range(0, K, at_once):
        heads = slice(first, first + at_once)
        for start in range(0, T, size):
            end = min(start + size, T)
            num_keys = L - T + end
            q_NRD = q_KTGD[heads, start:end].flatten(1, 2)
            scores = _products(q_NRD, k_KLD[heads, :num_keys], by_onednn)
            diagonal_NBGB = scores.unflatten(1, (end - start, G))[..., L - T + start :]
            diagonal_NBGB += hidden_BB[: end - start, None, : end - start]
            weights = torch.softmax(scores, dim=-1)
            out_NRD = _products(weights, v_KDL[heads, :, :num_keys], by_onednn)
            out_TKGD[start:end, heads] = out_NRD.unflatten(1, (end - start, G)).transpose(0, 1)
    return out_TKGD.view(T, H, -1)


def _products(x: torch.Tensor, y: torch.Tensor, by_onednn: bool) -> torch.Tensor:
    """Return x y^T of each head."""
    if by_onednn:
        # torch's own product uses MKL, which takes twice the time on processors that are not Intel's.
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x[0], y[0].contiguous(), None, "none", [], "")
        return product[None]
    return torch.bmm(x, y.transpose(1, 2))
