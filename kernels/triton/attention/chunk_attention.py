"""Attention of prefill chunks over their prefix and themselves: one program per tile of queries and key head.

Legend: T tokens, R rows, H query heads, K key/value heads, D head size, M queries of a tile, I tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from ...kv_cache import KvCache
from ...transfer import to_device
from ..launch_configs import AttentionTile, num_parts
from ..launching import launch
from ..scaled_codes import FORMATS, ScaledQueries, scaled_bytes
from .flash_attention import attend, score_factor, share_beside_sinks, start
from .paged_rows import PagedRows, product_dtype
from .scaled_attention import attend_scaled

_MOST_PARTS = 8  # of a tile's keys


class QueryTiles(NamedTuple):
    """Tiles of queries. Tile i begins with token `first_I[i]` of row `row_I[i]`; tiles with most keys come first."""

    row_I: torch.Tensor  # int32
    first_I: torch.Tensor  # int32
    num_tokens: int  # of a tile, at most
    tile: AttentionTile


def query_tiles(
    num_tokens_R: Sequence[int], num_keys_R: Sequence[int], *, group: int, tile: AttentionTile, device: torch.device
) -> QueryTiles:
    """Return the tiles of all rows, moved to `device`. `group` query heads share a key head."""
    row_I, first_I = to_device(tile_table(num_tokens_R, num_keys_R, group=group, tile=tile), device)
    return QueryTiles(row_I, first_I, tokens_of_tile(tile, group), tile)


def tokens_of_tile(tile: AttentionTile, group: int) -> int:
    return max(1, tile.queries // group)


def tile_table(
    num_tokens_R: Sequence[int], num_keys_R: Sequence[int], *, group: int, tile: AttentionTile
) -> tuple[np.ndarray, np.ndarray]:
    """Return `row_I` and `first_I` of `QueryTiles`, int32 each."""
    step = tokens_of_tile(tile, group)
    tiles = [
        (keys - num + min(first + step, num), row, first)
        for row, (num, keys) in enumerate(zip(num_tokens_R, num_keys_R, strict=True))
        for first in range(0, num, step)
    ]
    tiles.sort(reverse=True)  # tiles with most keys begin first, so that none of them runs alone at the end
    _, row_I, first_I = np.array(tiles, dtype=np.int32).T
    return row_I.copy(), first_I.copy()


def chunk_attention(
    q_THD: torch.Tensor,
    kv: KvCache,
    rows: PagedRows,
    tiles: QueryTiles,
    out_THD: torch.Tensor,
    scale: float,
    soft_cap: float | None = None,
    *,
    sinks_H: torch.Tensor | None = None,
    parts: int | None = None,
    scaled: ScaledQueries | None = None,
) -> None:
    """Write causal `softmax(scale * q k^T) v` of the rows' tokens to `out_THD`, which is contiguous. No trees.

    With `soft_cap` c scores become `c * tanh(score / c)` first. `sinks_H` are as for
    `Attention.attend`. Where tiles and key heads are too few for the device, as with tensor parallelism, each tile's
    keys are cut into `parts`, which are merged by their log-sums. `scaled` is as for `split_attention`.
    """
    assert rows.visible_T is None
    H, D = q_THD.shape[1:]
    T, K, num_tiles = q_THD.shape[0], kv.k_SKD.shape[1], tiles.row_I.shape[0]
    parts = num_parts(q_THD.device, num_tiles * K, _MOST_PARTS) if parts is None else parts
    partial_STHD = weight_STH = None
    if parts > 1:
        partial_STHD = torch.empty((parts, T, H, D), dtype=torch.float32, device=q_THD.device)
        weight_STH = torch.empty((parts, T, H), dtype=torch.float32, device=q_THD.device)
    k_memory, v_memory = kv.k_SKD, kv.v_SKD
    if scaled is not None:
        q_THD, k_memory, v_memory = scaled.q_THD, k_memory.view(torch.uint8), v_memory.view(torch.uint8)
    launch(
        _attend_chunk,
        (num_tiles, K, parts),
        q_THD,
        k_memory,
        v_memory,
        kv.k_scale_K,
        kv.v_scale_K,
        *((None,) * 6 if scaled is None else (*scaled[1:5], *scaled.angles)),
        out_THD,
        partial_STHD,
        weight_STH,
        sinks_H,
        rows.page_table_RP,
        rows.num_keys_R,
        rows.first_query_R,
        rows.num_queries_R,
        tiles.row_I,
        tiles.first_I,
        scale,
        0.0 if soft_cap is None else soft_cap,
        0,
        T,
        q_THD.stride(0),
        q_THD.stride(1),
        rows.page_table_RP.stride(0),
        kv.k_SKD.stride(0),
        H=H,
        GROUP=H // K,
        TOKENS=tiles.num_tokens,
        WINDOW=rows.window or 0,
        CAP=soft_cap is not None,
        PAGE=rows.page_size,
        TILE=tiles.tile.keys,
        D=D,
        BLOCK_D=max(16, triton.next_power_of_2(D)),
        BLOCK_M=max(16, triton.next_power_of_2(tiles.num_tokens * (H // K))),
        PRODUCT=product_dtype(kv.k_SKD.dtype),
        FORMAT="" if scaled is None else FORMATS[kv.k_SKD.dtype],
        num_warps=tiles.tile.num_warps,
        num_stages=tiles.tile.num_stages,
    )
    if parts > 1:
        launch(
            _merge_parts,
            (num_tiles * tiles.num_tokens, H),
            out_THD,
            partial_STHD,
            weight_STH,
            sinks_H,
            rows.first_query_R,
            rows.num_queries_R,
            tiles.row_I,
            tiles.first_I,
            T,
            parts,
            H=H,
            TOKENS=tiles.num_tokens,
            D=D,
            BLOCK_D=max(16, triton.next_power_of_2(D)),
            BLOCK_S=_MOST_PARTS,
            num_warps=2,
        )


@triton.jit(do_not_specialize=["nothing", "stride_pages", "num_tokens"])
def _attend_chunk(
    q_THD,
    k_SKD,
    v_SKD,
    k_scale_K,
    v_scale_K,
    high_THD,
    low_THD,
    share_TH,
    first_TH,
    high_PD,
    low_PD,
    out_THD,
    partial_STHD,  # None: a tile's keys are one part
    weight_STH,  # log2 of the sum of a part's weights
    sinks_H,
    page_table_RP,
    num_keys_R,
    first_query_R,
    num_queries_R,
    row_I,
    first_I,
    scale,
    cap,
    nothing,  # 0
    num_tokens,
    stride_qt,
    stride_qh,
    stride_pages,
    stride_slot,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PRODUCT: tl.constexpr,
    FORMAT: tl.constexpr,  # of scaled codes, or ""
):
    row = tl.load(row_I + tl.program_id(0))
    first_own = tl.load(first_I + tl.program_id(0))
    head_k = tl.program_id(1)
    first_query = tl.load(first_query_R + row)
    num_queries = tl.load(num_queries_R + row)
    prefix = tl.load(num_keys_R + row) - num_queries

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    own_M = first_own + m // GROUP
    head_M = head_k * GROUP + m % GROUP
    valid_M = (m // GROUP < TOKENS) & (own_M < num_queries)
    token_M = (first_query + own_M).to(tl.int64)
    stored_MD = valid_M[:, None] & (d < D)[None, :]
    q_MD = tl.load(
        q_THD + token_M[:, None] * stride_qt + head_M[:, None] * stride_qh + d[None, :], mask=stored_MD, other=0.0
    ).to(PRODUCT)
    position_M = prefix + own_M
    if k_scale_K is not None:
        scale *= tl.load(k_scale_K + head_k)

    end = prefix + tl.minimum(first_own + TOKENS, num_queries)
    pages = page_table_RP + row.to(tl.int64) * stride_pages
    acc_MD, max_M, sum_M = start(BLOCK_M, BLOCK_D)
    begin = tl.maximum(prefix + first_own - WINDOW + 1, 0) if WINDOW else 0
    if partial_STHD is not None:
        size = tl.cdiv(tl.cdiv(end - begin, tl.num_programs(2)), TILE) * TILE
        begin += tl.program_id(2) * size
        end = tl.minimum(begin + size, end)
    unmasked_end = begin
    whole_end = begin
    if not WINDOW:
        unmasked_end = (prefix + first_own + 1) // TILE * TILE  # the first query sees these keys, so all queries do
        whole_end = tl.minimum(unmasked_end, end)
        unmasked_end = tl.maximum(unmasked_end, begin)
    if FORMAT != "":
        place_M = token_M.to(tl.int64) * H + head_M
        share_M = tl.load(share_TH + place_M, mask=valid_M, other=0.0)
        first_M = tl.load(first_TH + place_M, mask=valid_M, other=0.0)
        kv_offset = head_k * scaled_bytes(FORMAT, D)
        if not WINDOW:
            acc_MD, max_M, sum_M = attend_scaled(
                acc_MD, max_M, sum_M, q_MD, high_THD, low_THD, place_M, valid_M, share_M, first_M,
                begin, whole_end, k_SKD, v_SKD, kv_offset, stride_slot, pages, high_PD, low_PD, None, position_M,
                prefix, position_M, scale, cap, nothing, "none", WINDOW, CAP, PAGE, TILE, D, BLOCK_D, FORMAT,
            )  # fmt: skip
        acc_MD, max_M, sum_M = attend_scaled(
            acc_MD, max_M, sum_M, q_MD, high_THD, low_THD, place_M, valid_M, share_M, first_M,
            unmasked_end, end, k_SKD, v_SKD, kv_offset, stride_slot, pages, high_PD, low_PD, None, position_M,
            prefix, position_M, scale, cap, nothing, "causal", WINDOW, CAP, PAGE, TILE, D, BLOCK_D, FORMAT,
        )  # fmt: skip
    else:
        kv_offset = head_k * D
        if not WINDOW:
            acc_MD, max_M, sum_M = attend(
                acc_MD, max_M, sum_M, q_MD, begin, whole_end, k_SKD, v_SKD, kv_offset, stride_slot, pages, position_M,
                prefix, position_M, scale, cap, "none", WINDOW, CAP, PAGE, TILE, D, BLOCK_D,
            )  # fmt: skip
        acc_MD, max_M, sum_M = attend(
            acc_MD, max_M, sum_M, q_MD, unmasked_end, end, k_SKD, v_SKD, kv_offset, stride_slot, pages, position_M,
            prefix, position_M, scale, cap, "causal", WINDOW, CAP, PAGE, TILE, D, BLOCK_D,
        )  # fmt: skip
    safe_M = tl.where(sum_M == 0.0, 1.0, sum_M)  # padding queries of the tile may see nothing
    acc_MD /= safe_M[:, None]
    if v_scale_K is not None:
        acc_MD *= tl.load(v_scale_K + head_k)
    at_M = token_M * H + head_M
    weight_M = max_M * (score_factor(scale, CAP) if FORMAT == "" else 1.0) + tl.log2(safe_M)
    if partial_STHD is None:
        if sinks_H is not None:
            acc_MD *= share_beside_sinks(sinks_H, head_M, weight_M)[:, None]
        at_MD = at_M[:, None] * D + d[None, :]
        tl.store(out_THD + at_MD, acc_MD.to(out_THD.dtype.element_ty), mask=stored_MD)
    else:
        at_M += tl.program_id(2).to(tl.int64) * num_tokens * H
        tl.store(partial_STHD + at_M[:, None] * D + d[None, :], acc_MD, mask=stored_MD)
        tl.store(weight_STH + at_M, weight_M, mask=valid_M)


@triton.jit(do_not_specialize=["num_tokens", "parts"])
def _merge_parts(
    out_THD,
    partial_STHD,
    weight_STH,
    sinks_H,
    first_query_R,
    num_queries_R,
    row_I,
    first_I,
    num_tokens,
    parts,
    H: tl.constexpr,
    TOKENS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    tile, head = tl.program_id(0) // TOKENS, tl.program_id(1)
    row = tl.load(row_I + tile)
    query = tl.load(first_I + tile) + tl.program_id(0) % TOKENS
    if query >= tl.load(num_queries_R + row):
        return
    at = (tl.load(first_query_R + row) + query).to(tl.int64) * H + head
    s, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    at_S = at + s.to(tl.int64) * num_tokens * H
    weight_S = tl.load(weight_STH + at_S, mask=s < parts, other=float("-inf"))
    largest = tl.max(weight_S, 0)
    share_S = tl.exp2(weight_S - largest)  # some part has the token's own key
    total = tl.sum(share_S, 0)
    share_S = share_S * (share_beside_sinks(sinks_H, head, largest + tl.log2(total)) / total)
    partial_SD = tl.load(
        partial_STHD + at_S[:, None] * D + d[None, :], mask=(s < parts)[:, None] & (d < D)[None, :], other=0.0
    )
    tl.store(out_THD + at * D + d, tl.sum(share_S[:, None] * partial_SD, 0).to(out_THD.dtype.element_ty), mask=d < D)
