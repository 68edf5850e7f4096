"""Attention of rows with few tokens, decode steps and draft trees, over many keys: one program per split and key head.

The query heads that share a key head, for all tokens of the row, are one tile of queries: a key is read once for all.
Splits (flash-decoding: Dao, Haziza, Massa, Sizov 2023) let a single row fill the device. A tree's tokens see their
ancestors by a bitmask each; a decode row is a tree of one node.

Legend: T tokens, R rows, H query heads, K key/value heads, D head size, M queries of a tile, I splits, Q tokens of a
row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..kv_cache import KvCache
from .flash_attention import attend, start
from .launch_configs import split_tile
from .paged_rows import MAX_TREE, PagedRows, product_dtype
from .splits import Splits


def split_attention(
    q_THD: torch.Tensor,
    kv: KvCache,
    rows: PagedRows,
    splits: Splits,
    out_THD: torch.Tensor,
    scale: float,
    soft_cap: float | None = None,
    *,
    fixed: bool = False,
) -> None:
    """Write `softmax(scale * q k^T) v` of the rows' tokens to `out_THD`, which is contiguous.

    `splits` cut the keys that a window leaves to each row (`num_seen`). With `soft_cap` c scores become
    `c * tanh(score / c)` first. `fixed` makes a row's bits independent of the batch: tiles of one size, and splits
    (`fixed_splits`, of all of a row's keys) that begin where the sequence does, for any window.
    """
    H, D = q_THD.shape[1:]
    K = kv.k_SKD.shape[1]
    R, Q, group = rows.num_keys_R.shape[0], rows.max_queries, H // K
    assert rows.visible_T is None or Q <= MAX_TREE
    assert rows.window is None or rows.window >= Q, "a row's own tokens are within the window"
    partial_IQHD = torch.empty((splits.num_max, Q, H, D), dtype=torch.float32, device=q_THD.device)
    weight_IQH = torch.empty((splits.num_max, Q, H), dtype=torch.float32, device=q_THD.device)
    tile = split_tile(q_THD.device, D)
    block_m = max(16, tile.queries, triton.next_power_of_2(group))
    if not fixed:
        block_m = min(block_m, max(16, triton.next_power_of_2(Q * group)))
    num_tiles = triton.cdiv(Q, block_m // group)
    block_d = max(16, triton.next_power_of_2(D))
    _attend_split[(splits.num_max, K, num_tiles)](
        q_THD,
        kv.k_SKD,
        kv.v_SKD,
        kv.k_scale_K,
        kv.v_scale_K,
        out_THD,
        partial_IQHD,
        weight_IQH,
        rows.page_table_RP,
        rows.num_keys_R,
        rows.first_query_R,
        rows.num_queries_R,
        rows.positions_T,
        rows.visible_T,
        splits.first,
        splits.size,
        scale,
        0.0 if soft_cap is None else soft_cap,
        R,
        q_THD.stride(0),
        q_THD.stride(1),
        rows.page_table_RP.stride(0),
        kv.k_SKD.stride(0),
        H=H,
        GROUP=group,
        Q=Q,
        WINDOW=rows.window or 0,
        CAP=soft_cap is not None,
        FROM_START=fixed,
        PAGE=rows.page_size,
        TILE=tile.keys,
        D=D,
        BLOCK_D=block_d,
        BLOCK_M=block_m,
        BLOCK_R=triton.next_power_of_2(R + 1),
        PRODUCT=product_dtype(kv.k_SKD.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    _combine[(R * Q, H)](
        out_THD,
        partial_IQHD,
        weight_IQH,
        rows.first_query_R,
        rows.num_queries_R,
        splits.first,
        H=H,
        Q=Q,
        D=D,
        BLOCK_D=block_d,
        BLOCK_I=16,
        num_warps=2,
    )


def num_seen(num_keys_R: torch.Tensor, num_queries_R: torch.Tensor, window: int | None) -> torch.Tensor:
    """Return how many of its last keys a row's tokens see together."""
    if window is None:
        return num_keys_R
    return torch.minimum(num_keys_R, num_queries_R + (window - 1))


@triton.jit
def _attend_split(
    q_THD,
    k_SKD,
    v_SKD,
    k_scale_K,
    v_scale_K,
    out_THD,
    partial_IQHD,
    weight_IQH,
    page_table_RP,
    num_keys_R,
    first_query_R,
    num_queries_R,
    positions_T,
    visible_T,
    first_split,
    split_size,
    scale,
    cap,
    num_rows,
    stride_qt,
    stride_qh,
    stride_pages,
    stride_slot,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    Q: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    FROM_START: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    split = tl.program_id(0)
    head_k = tl.program_id(1)
    if split >= tl.load(first_split + num_rows):
        return
    r = tl.arange(0, BLOCK_R)
    starts_R = tl.load(first_split + r, mask=r < num_rows, other=2**31 - 1)
    row = tl.sum((starts_R <= split).to(tl.int32)) - 1
    own_first = tl.load(first_split + row)
    num_splits = tl.load(first_split + row + 1) - own_first

    first_query = tl.load(first_query_R + row)
    num_queries = tl.load(num_queries_R + row)
    num_keys = tl.load(num_keys_R + row)
    prefix = num_keys - num_queries
    begin = tl.maximum(prefix - WINDOW + 1, 0) if WINDOW and not FROM_START else 0
    size = tl.load(split_size)
    first = begin + (split - own_first) * size
    end = tl.minimum(first + size, num_keys)

    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    query_M = tl.program_id(2) * TOKENS + m // GROUP
    head_M = head_k * GROUP + m % GROUP
    valid_M = (m // GROUP < TOKENS) & (query_M < num_queries)
    token_M = first_query + query_M
    q_MD = tl.load(
        q_THD + token_M[:, None].to(tl.int64) * stride_qt + head_M[:, None] * stride_qh + d[None, :],
        mask=valid_M[:, None] & (d < D)[None, :],
        other=0.0,
    ).to(PRODUCT)
    position_M = tl.load(positions_T + token_M, mask=valid_M, other=0).to(tl.int32)
    if visible_T is None:
        bits_M = (tl.full([BLOCK_M], 2, dtype=tl.int64) << query_M.to(tl.int64)) - 1
    else:
        bits_M = tl.load(visible_T + token_M, mask=valid_M, other=0)
    if k_scale_K is not None:
        scale *= tl.load(k_scale_K + head_k)

    acc_MD, max_M, sum_M = start(BLOCK_M, BLOCK_D)
    pages = page_table_RP + row.to(tl.int64) * stride_pages
    kv_offset = head_k * D
    if WINDOW:
        unmasked_end = first
    else:
        # Whole tiles before the row's own tokens need no mask.
        unmasked_end = first + tl.maximum(tl.minimum(end, prefix) - first, 0) // TILE * TILE
        acc_MD, max_M, sum_M = attend(
            acc_MD, max_M, sum_M, q_MD, first, unmasked_end, k_SKD, v_SKD, kv_offset, stride_slot, pages, position_M,
            prefix, bits_M, scale, cap, "none", WINDOW, CAP, PAGE, TILE, D, BLOCK_D,
        )  # fmt: skip
    acc_MD, max_M, sum_M = attend(
        acc_MD, max_M, sum_M, q_MD, unmasked_end, end, k_SKD, v_SKD, kv_offset, stride_slot, pages, position_M,
        prefix, bits_M, scale, cap, "bits", WINDOW, CAP, PAGE, TILE, D, BLOCK_D,
    )  # fmt: skip

    safe_M = tl.where(sum_M == 0.0, 1.0, sum_M)
    acc_MD /= safe_M[:, None]
    if v_scale_K is not None:
        acc_MD *= tl.load(v_scale_K + head_k)
    stored_MD = valid_M[:, None] & (d < D)[None, :]
    if num_splits == 1:
        at_MD = (token_M[:, None].to(tl.int64) * H + head_M[:, None]) * D + d[None, :]
        tl.store(out_THD + at_MD, acc_MD.to(out_THD.dtype.element_ty), mask=stored_MD)
    else:
        at_M = (split.to(tl.int64) * Q + query_M) * H + head_M
        tl.store(partial_IQHD + at_M[:, None] * D + d[None, :], acc_MD, mask=stored_MD)
        tl.store(weight_IQH + at_M, max_M + tl.log2(safe_M), mask=valid_M)


@triton.jit
def _combine(
    out_THD,
    partial_IQHD,
    weight_IQH,  # log2 of the sum of each split's weights
    first_query_R,
    num_queries_R,
    first_split,
    H: tl.constexpr,
    Q: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    row = tl.program_id(0) // Q
    query = tl.program_id(0) % Q
    head = tl.program_id(1)
    first = tl.load(first_split + row)
    end = tl.load(first_split + row + 1)
    if (query >= tl.load(num_queries_R + row)) | (end - first < 2):
        return
    token = tl.load(first_query_R + row) + query
    d = tl.arange(0, BLOCK_D)
    acc_D = tl.zeros([BLOCK_D], dtype=tl.float32)
    largest = float("-inf")
    total = 0.0
    for begin in range(first, end, BLOCK_I):
        i = begin + tl.arange(0, BLOCK_I)
        at_I = (i.to(tl.int64) * Q + query) * H + head
        weight_I = tl.load(weight_IQH + at_I, mask=i < end, other=float("-inf"))
        partial_ID = tl.load(
            partial_IQHD + at_I[:, None] * D + d[None, :], mask=(i < end)[:, None] & (d < D)[None, :], other=0.0
        )
        new = tl.maximum(largest, tl.max(weight_I, 0))
        base = tl.where(new == float("-inf"), 0.0, new)  # a window may leave no key in a split
        share_I = tl.exp2(weight_I - base)
        shrink = tl.exp2(largest - base)
        acc_D = acc_D * shrink + tl.sum(share_I[:, None] * partial_ID, 0)
        total = total * shrink + tl.sum(share_I, 0)
        largest = new
    at_D = (token.to(tl.int64) * H + head) * D + d
    tl.store(out_THD + at_D, (acc_D / total).to(out_THD.dtype.element_ty), mask=d < D)
