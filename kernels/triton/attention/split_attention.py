"""Attention of rows with few tokens, decode steps and draft trees, over many keys: one program per split and key head.

The query heads that share a key head, for all tokens of the row, are one tile of queries: a key is read once for all.
Splits (flash-decoding: Dao, Haziza, Massa, Sizov 2023) let a single row fill the device. A tree's tokens see their
ancestors by a bitmask each; a decode row is a tree of one node.

Keys that rows share are rows of their own, pieces, in an earlier launch of the same kernel, which leaves its results to
the merge of each row's own splits.

Legend: T tokens, R rows, H query heads, K key/value heads, D head size, M queries of a tile, I splits, Q tokens of a
row, N partial results, L levels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ...attention_groups import LEVELS, PIECE_TOKENS
from ...kv_cache import KvCache
from ..launch_configs import split_tile
from ..launching import launch
from ..scaled_codes import FORMATS, ScaledQueries, scaled_bytes
from .flash_attention import LOG2E, attend, score_factor, share_beside_sinks, start
from .latent_attention import attend_latents
from .paged_rows import MAX_TREE, PagedRows, product_dtype, query_class
from .scaled_attention import attend_scaled
from .splits import ROWS_AT_ONCE, Splits, row_of_split


class Partials(NamedTuple):
    """Results of splits before they are merged. Row n is a token's result over one split."""

    sum_NHD: torch.Tensor  # float32, weighted mean of the split's values
    weight_NH: torch.Tensor  # float32, log2 of the sum of its weights

    @classmethod
    def empty(cls, num_rows: int, num_heads: int, head_dim: int, device: torch.device) -> Partials:
        return cls(
            torch.empty((num_rows, num_heads, head_dim), dtype=torch.float32, device=device),
            torch.empty((num_rows, num_heads), dtype=torch.float32, device=device),
        )


class SharedPass(NamedTuple):
    """Pieces of shared keys with the tokens that see them, and where each token finds its results."""

    rows: PagedRows  # of at most PIECE_TOKENS tokens
    splits: Splits
    places_TL: torch.Tensor  # int32: PIECE_TOKENS * piece + index in the piece; -1: none


class Merge(NamedTuple):
    """Results over shared keys that rows' own results are merged with; they are the first rows of `partials`."""

    shared: SharedPass
    partials: Partials

    @classmethod
    def empty(cls, shared: SharedPass, num_own: int, q_THD: torch.Tensor, kv: KvCache) -> Merge:
        """Allocate the results over shared keys, and `num_own` of a later launch behind them."""
        num_shared = shared.splits.num_max * PIECE_TOKENS
        return cls(shared, Partials.empty(num_shared + num_own, q_THD.shape[1], kv.value_dim, q_THD.device))


def split_attention(
    q_THD: torch.Tensor,
    kv: KvCache,
    rows: PagedRows,
    splits: Splits,
    out_THD: torch.Tensor,
    scale: float,
    soft_cap: float | None = None,
    *,
    sinks_H: torch.Tensor | None = None,
    fixed: bool = False,
    merge: Merge | None = None,
    scaled: ScaledQueries | None = None,
) -> None:
    """Write `softmax(scale * q k^T) v` of the rows' tokens to `out_THD`, which is contiguous.

    `splits` cut the keys that a window leaves to each row (`num_seen`). With `soft_cap` c scores become
    `c * tanh(score / c)` first. `sinks_H` are as for `Attention.attend`.

    `fixed` makes a row's bits independent of the batch: tiles of one size, and splits
    (`fixed_splits`, of all of a row's keys) that begin where the sequence does, for any window. Where `rows` have a
    `first_key_R`, the keys before it come from `merge`, which `attend_shared` filled. A cache with a basis needs
    `scaled`, the queries for its keys; the output is rotated as its values are.
    """
    H, D = q_THD.shape[1], kv.value_dim
    Q = rows.max_queries
    if merge is None:
        partials, base = Partials.empty(splits.num_max * Q, H, D, q_THD.device), 0
    else:
        partials, base = merge.partials, merge.shared.splits.num_max * PIECE_TOKENS
    _launch(q_THD, kv, rows, splits, out_THD, partials, base, scale, soft_cap, sinks_H, fixed, scaled)
    launch(
        _combine,
        (rows.num_keys_R.shape[0] * Q, H),
        out_THD,
        *partials,
        sinks_H,
        rows.first_query_R,
        rows.num_queries_R,
        rows.tokens_N,
        rows.first_key_R,
        splits.first,
        None if merge is None else merge.shared.splits.first,
        None if merge is None else merge.shared.places_TL,
        base,
        Q,
        H=H,
        D=D,
        BLOCK_D=max(16, triton.next_power_of_2(D)),
        BLOCK_I=16,
        PIECE=PIECE_TOKENS,
        LEVELS=LEVELS,
        num_warps=2,
    )


def attend_shared(
    q_THD: torch.Tensor,
    kv: KvCache,
    merge: Merge,
    scale: float,
    soft_cap: float | None = None,
    *,
    fixed: bool = False,
    scaled: ScaledQueries | None = None,
) -> None:
    """Compute the results over shared keys, with the arguments of `split_attention`."""
    rows, splits = merge.shared.rows, merge.shared.splits  # nothing is written to an output
    _launch(q_THD, kv, rows, splits, q_THD, merge.partials, 0, scale, soft_cap, None, fixed, scaled)


def _launch(
    q_THD: torch.Tensor,
    kv: KvCache,
    rows: PagedRows,
    splits: Splits,
    out_THD: torch.Tensor,
    partials: Partials,
    base: int,
    scale: float,
    soft_cap: float | None,
    sinks_H: torch.Tensor | None,
    fixed: bool,
    scaled: ScaledQueries | None,
) -> None:
    H, D = q_THD.shape[1:]
    K = kv.k_SKD.shape[1]
    if kv.is_latent:
        assert soft_cap is None
        assert sinks_H is None
        assert rows.window is None
        attend_latents(q_THD, kv, rows, splits, out_THD, *partials, base, scale, fixed=fixed)
        return
    R, Q, group = rows.num_keys_R.shape[0], rows.max_queries, H // K
    assert rows.visible_T is None or Q <= MAX_TREE
    assert rows.are_pieces or rows.window is None or rows.window >= Q, "a row's own tokens are within the window"
    # Tiles of one size where a row's bits must not depend on the batch.
    wanted = MAX_TREE if fixed else query_class(Q)
    block_m = max(16, triton.next_power_of_2(wanted * group))
    tile = split_tile(q_THD.device, D, kv.k_SKD.dtype, block_m, scaled=scaled is not None)
    block_m = max(tile.queries, triton.next_power_of_2(group))
    num_tiles = triton.cdiv(Q, block_m // group)
    k_memory, v_memory = kv.k_SKD, kv.v_SKD
    if scaled is not None:
        q_THD, k_memory, v_memory = scaled.q_THD, k_memory.view(torch.uint8), v_memory.view(torch.uint8)
    launch(
        _attend_split,
        (splits.num_max, K, num_tiles),
        q_THD,
        k_memory,
        v_memory,
        kv.k_scale_K,
        kv.v_scale_K,
        *((None,) * 6 if scaled is None else (*scaled[1:5], *scaled.angles)),
        out_THD,
        *partials,
        sinks_H,
        rows.page_table_RP,
        rows.num_keys_R,
        rows.first_key_R,
        rows.first_query_R,
        rows.num_queries_R,
        rows.tokens_N,
        rows.positions_T,
        rows.visible_T,
        splits.first,
        splits.size,
        scale,
        0.0 if soft_cap is None else soft_cap,
        0,
        base,
        Q,
        R,
        q_THD.stride(0),
        q_THD.stride(1),
        rows.page_table_RP.stride(0),
        kv.k_SKD.stride(0),
        H=H,
        GROUP=group,
        PIECES=rows.are_pieces,
        WINDOW=rows.window or 0,
        CAP=soft_cap is not None,
        FROM_START=fixed,
        PAGE=rows.page_size,
        TILE=tile.keys,
        D=D,
        BLOCK_D=max(16, triton.next_power_of_2(D)),
        BLOCK_M=block_m,
        BLOCK_R=ROWS_AT_ONCE,
        PRODUCT=product_dtype(kv.k_SKD.dtype),
        FORMAT="" if scaled is None else FORMATS[kv.k_SKD.dtype],
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@triton.jit(do_not_specialize=["nothing", "base", "max_queries", "num_rows", "stride_pages"])
def _attend_split(
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
    partial_NHD,
    weight_NH,
    sinks_H,
    page_table_RP,
    num_keys_R,
    first_key_R,
    first_query_R,
    num_queries_R,
    tokens_N,
    positions_T,
    visible_T,
    first_split,
    split_size,
    scale,
    cap,
    nothing,  # 0
    base,  # of the partial results
    max_queries,
    num_rows,
    stride_qt,
    stride_qh,
    stride_pages,
    stride_slot,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    PIECES: tl.constexpr,
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
    FORMAT: tl.constexpr,  # of scaled codes, or ""
):
    split = tl.program_id(0)
    head_k = tl.program_id(1)
    if split >= tl.load(first_split + num_rows):
        return
    row = row_of_split(first_split, num_rows, split, BLOCK_R)
    own_first = tl.load(first_split + row)
    num_splits = tl.load(first_split + row + 1) - own_first

    first_query = tl.load(first_query_R + row)
    num_queries = tl.load(num_queries_R + row)
    num_keys = tl.load(num_keys_R + row)
    first_key = 0
    if first_key_R is not None:
        first_key = tl.load(first_key_R + row)
    prefix = num_keys if PIECES else num_keys - num_queries  # the keys before the row's own tokens
    begin = tl.maximum(prefix - WINDOW + 1, first_key) if WINDOW and not FROM_START else first_key
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
    if tokens_N is not None:
        token_M = tl.load(tokens_N + token_M, mask=valid_M, other=0)
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
    pages = page_table_RP + row.to(tl.int64) * stride_pages - first_key // PAGE
    unmasked_end = first
    if not WINDOW:
        # Whole tiles before the row's own tokens need no mask.
        unmasked_end += tl.maximum(tl.minimum(end, prefix) - first, 0) // TILE * TILE
    if FORMAT != "":
        place_M = token_M.to(tl.int64) * H + head_M
        share_M = tl.load(share_TH + place_M, mask=valid_M, other=0.0)
        first_M = tl.load(first_TH + place_M, mask=valid_M, other=0.0)
        own_positions = None
        if visible_T is not None and tokens_N is None:  # else paths, whose keys follow one another
            own_positions = positions_T + first_query
        kv_offset = head_k * scaled_bytes(FORMAT, D)
        if not WINDOW:
            acc_MD, max_M, sum_M = attend_scaled(
                acc_MD, max_M, sum_M, q_MD, high_THD, low_THD, place_M, valid_M, share_M, first_M,
                first, unmasked_end, k_SKD, v_SKD, kv_offset, stride_slot, pages, high_PD, low_PD, own_positions,
                position_M, prefix, bits_M, scale, cap, nothing, "none", WINDOW, CAP, PAGE, TILE, D, BLOCK_D, FORMAT,
            )  # fmt: skip
        acc_MD, max_M, sum_M = attend_scaled(
            acc_MD, max_M, sum_M, q_MD, high_THD, low_THD, place_M, valid_M, share_M, first_M,
            unmasked_end, end, k_SKD, v_SKD, kv_offset, stride_slot, pages, high_PD, low_PD, own_positions,
            position_M, prefix, bits_M, scale, cap, nothing, "bits", WINDOW, CAP, PAGE, TILE, D, BLOCK_D, FORMAT,
        )  # fmt: skip
    else:
        kv_offset = head_k * D
        if not WINDOW:
            acc_MD, max_M, sum_M = attend(
                acc_MD, max_M, sum_M, q_MD, first, unmasked_end, k_SKD, v_SKD, kv_offset, stride_slot, pages,
                position_M, prefix, bits_M, scale, cap, "none", WINDOW, CAP, PAGE, TILE, D, BLOCK_D,
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
    whole = num_splits == (-1 if PIECES else 1)  # there is nothing to merge
    if first_key_R is not None:
        whole = whole & (first_key == 0)
    weight_M = max_M * (score_factor(scale, CAP) if FORMAT == "" else 1.0) + tl.log2(safe_M)
    if whole:
        if sinks_H is not None:
            acc_MD *= share_beside_sinks(sinks_H, head_M, weight_M)[:, None]
        at_MD = (token_M[:, None].to(tl.int64) * H + head_M[:, None]) * D + d[None, :]
        tl.store(out_THD + at_MD, acc_MD.to(out_THD.dtype.element_ty), mask=stored_MD)
    else:
        at_M = (base + split.to(tl.int64) * max_queries + query_M) * H + head_M
        tl.store(partial_NHD + at_M[:, None] * D + d[None, :], acc_MD, mask=stored_MD)
        tl.store(weight_NH + at_M, weight_M, mask=valid_M)


@triton.jit(do_not_specialize=["base", "max_queries"])
def _combine(
    out_THD,
    partial_NHD,
    weight_NH,  # log2 of the sum of each split's weights
    sinks_H,
    first_query_R,
    num_queries_R,
    tokens_N,
    first_key_R,
    first_split,
    shared_split,  # the first split of each piece
    places_TL,
    base,
    max_queries,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_I: tl.constexpr,
    PIECE: tl.constexpr,
    LEVELS: tl.constexpr,
):
    row = tl.program_id(0) // max_queries
    query = tl.program_id(0) % max_queries
    head = tl.program_id(1)
    first = tl.load(first_split + row)
    end = tl.load(first_split + row + 1)
    whole = end - first == 1
    if first_key_R is not None:
        whole = whole & (tl.load(first_key_R + row) == 0)
    if (query >= tl.load(num_queries_R + row)) | whole:
        return
    token = tl.load(first_query_R + row) + query
    if tokens_N is not None:
        token = tl.load(tokens_N + token)
    num_shared = 0
    if places_TL is not None:
        for level in tl.static_range(LEVELS):
            place = tl.load(places_TL + token * LEVELS + level)
            piece = tl.maximum(place, 0) // PIECE
            num = tl.load(shared_split + piece + 1) - tl.load(shared_split + piece)
            num_shared += tl.where(place < 0, 0, num)
    d = tl.arange(0, BLOCK_D)
    acc_D = tl.zeros([BLOCK_D], dtype=tl.float32)
    largest = float("-inf")
    total = 0.0
    if sinks_H is not None:  # as a first result, of value zero
        largest = tl.load(sinks_H + head) * LOG2E
        total = 1.0
    count = num_shared + end - first
    for begin in range(0, count, BLOCK_I):
        i = begin + tl.arange(0, BLOCK_I)
        result_I = base + (first + i - num_shared).to(tl.int64) * max_queries + query
        if places_TL is not None:
            # The results over shared keys come first, in the keys' order.
            before = 0
            for level in tl.static_range(LEVELS):
                place = tl.load(places_TL + token * LEVELS + level)
                piece = tl.maximum(place, 0) // PIECE
                first_shared = tl.load(shared_split + piece)
                num = tl.where(place < 0, 0, tl.load(shared_split + piece + 1) - first_shared)
                shared_I = (first_shared + i - before).to(tl.int64) * PIECE + place % PIECE
                result_I = tl.where((i >= before) & (i < before + num), shared_I, result_I)
                before += num
        at_I = result_I * H + head
        weight_I = tl.load(weight_NH + at_I, mask=i < count, other=float("-inf"))
        partial_ID = tl.load(
            partial_NHD + at_I[:, None] * D + d[None, :], mask=(i < count)[:, None] & (d < D)[None, :], other=0.0
        )
        new = tl.maximum(largest, tl.max(weight_I, 0))
        base_weight = tl.where(new == float("-inf"), 0.0, new)  # a window may leave no key in a split
        share_I = tl.exp2(weight_I - base_weight)
        shrink = tl.exp2(largest - base_weight)
        acc_D = acc_D * shrink + tl.sum(share_I[:, None] * partial_ID, 0)
        total = total * shrink + tl.sum(share_I, 0)
        largest = new
    at_D = (token.to(tl.int64) * H + head) * D + d
    total = tl.where(total == 0.0, 1.0, total)  # a row without keys, which is padding, gets zeros
    tl.store(out_THD + at_D, (acc_D / total).to(out_THD.dtype.element_ty), mask=d < D)
