"""Attention to latents: one key head for all query heads, whose first dimensions are the values too.

A program takes some (token, head) pairs of a row over one split of its keys. A key is loaded once, for its score as two
products, of the latent and of the rotated part, and for the sum of values. The rows' splits and the merge of their
results are those of `split_attention`.

Legend: T tokens, R rows, H query heads, D size of a key, C of its latent, X of its rotated part, M pairs of a program,
N keys of a tile or partial results.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...arguments import RopeAndStoreArgs
from ...kv_cache import KvCache
from ...reference.quantise import E5M2, QUANTISED_MAX
from ..launch_configs import latent_tile
from ..launching import launch
from ..store import E5M2_MAX, quantise
from .flash_attention import LOG2E, start
from .paged_rows import PagedRows, product_dtype
from .splits import ROWS_AT_ONCE, Splits, fixed_splits, row_of_split


def attend_latents(
    q_THD: torch.Tensor,
    kv: KvCache,
    rows: PagedRows,
    splits: Splits,
    out_THC: torch.Tensor,
    partial_NHC: torch.Tensor,
    weight_NH: torch.Tensor,
    base: int,
    scale: float,
    *,
    fixed: bool,
) -> None:
    """Write the results of rows with one split to `out_THC`, of others to the partial results from row `base` on.

    `fixed` makes a row's bits independent of the batch: tiles have one size.
    """
    H, D = q_THD.shape[1:]
    C = kv.v_SKD.shape[2]
    num_pairs = H if fixed else rows.max_queries * H
    tile = latent_tile(q_THD.device, kv.k_SKD.dtype, max(16, triton.next_power_of_2(num_pairs)))
    launch(
        _attend_latents,
        (splits.num_max, triton.cdiv(rows.max_queries * H, tile.queries)),
        q_THD,
        kv.k_SKD,
        kv.k_scale_K,
        out_THC,
        partial_NHC,
        weight_NH,
        rows.page_table_RP,
        rows.num_keys_R,
        rows.first_key_R,
        rows.first_query_R,
        rows.num_queries_R,
        rows.tokens_N,
        rows.visible_T,
        splits.first,
        splits.size,
        scale,
        base,
        rows.max_queries,
        rows.num_keys_R.shape[0],
        q_THD.stride(0),
        q_THD.stride(1),
        rows.page_table_RP.stride(0),
        kv.k_SKD.stride(0),
        H=H,
        PIECES=rows.are_pieces,
        PAGE=rows.page_size,
        TILE=tile.keys,
        C=C,
        X=D - C,
        BLOCK_C=max(16, triton.next_power_of_2(C)),
        BLOCK_X=max(16, triton.next_power_of_2(D - C)),
        BLOCK_M=tile.queries,
        BLOCK_R=ROWS_AT_ONCE,
        PRODUCT=product_dtype(kv.k_SKD.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def attend_chunks(q_THD: torch.Tensor, kv: KvCache, rows: PagedRows, out_THC: torch.Tensor, scale: float) -> None:
    """Write causal attention of rows of many tokens to `out_THC`: a row's keys are one split."""
    assert rows.visible_T is None
    longest = rows.page_table_RP.shape[1] * rows.page_size
    splits = fixed_splits(rows.num_keys_R, size=longest, max_keys=longest)
    nothing = out_THC.new_empty((0, *out_THC.shape[1:]), dtype=torch.float32)
    attend_latents(q_THD, kv, rows, splits, out_THC, nothing, nothing[..., 0], 0, scale, fixed=False)


@triton.jit(do_not_specialize=["base", "max_queries", "num_rows", "stride_pages"])
def _attend_latents(
    q_THD,
    kv_SD,
    scale_1,
    out_THC,
    partial_NHC,
    weight_NH,
    page_table_RP,
    num_keys_R,
    first_key_R,
    first_query_R,
    num_queries_R,
    tokens_N,
    visible_T,
    first_split,
    split_size,
    scale,
    base,  # of the partial results
    max_queries,
    num_rows,
    stride_qt,
    stride_qh,
    stride_pages,
    stride_slot,
    H: tl.constexpr,
    PIECES: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    C: tl.constexpr,
    X: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    split = tl.program_id(0)
    if split >= tl.load(first_split + num_rows):
        return
    row = row_of_split(first_split, num_rows, split, BLOCK_R)
    num_queries = tl.load(num_queries_R + row)
    first_m = tl.program_id(1) * BLOCK_M
    if first_m >= num_queries * H:
        return
    own_first = tl.load(first_split + row)
    num_splits = tl.load(first_split + row + 1) - own_first
    num_keys = tl.load(num_keys_R + row)
    first_key = 0
    if first_key_R is not None:
        first_key = tl.load(first_key_R + row)
    prefix = num_keys if PIECES else num_keys - num_queries  # the keys before the row's own tokens
    size = tl.load(split_size)
    first = first_key + (split - own_first) * size
    end = tl.minimum(first + size, num_keys)

    m = first_m + tl.arange(0, BLOCK_M)
    query_M = m // H
    head_M = m % H
    valid_M = query_M < num_queries
    token_M = tl.load(first_query_R + row) + query_M
    if tokens_N is not None:
        token_M = tl.load(tokens_N + token_M, mask=valid_M, other=0)
    if visible_T is not None:
        bits_M = tl.load(visible_T + token_M, mask=valid_M, other=0)
    elif not PIECES:
        end = tl.minimum(end, prefix + tl.minimum((first_m + BLOCK_M - 1) // H, num_queries - 1) + 1)
    c = tl.arange(0, BLOCK_C)
    x = tl.arange(0, BLOCK_X)
    at_q_M = q_THD + token_M.to(tl.int64) * stride_qt + head_M * stride_qh
    q_MC = tl.load(at_q_M[:, None] + c[None, :], mask=valid_M[:, None] & (c < C)[None, :], other=0.0).to(PRODUCT)
    q_MX = tl.load(at_q_M[:, None] + C + x[None, :], mask=valid_M[:, None] & (x < X)[None, :], other=0.0).to(PRODUCT)
    if scale_1 is not None:
        scale *= tl.load(scale_1)
    factor = scale * LOG2E

    acc_MC, max_M, sum_M = start(BLOCK_M, BLOCK_C)
    pages = page_table_RP + row.to(tl.int64) * stride_pages - first_key // PAGE
    for begin in range(first, end, TILE):
        at_N = begin + tl.arange(0, TILE)
        valid_N = at_N < end
        page_N = tl.load(pages + at_N // PAGE, mask=valid_N, other=0)
        at_key_N = kv_SD + (page_N.to(tl.int64) * PAGE + at_N % PAGE) * stride_slot
        c_NC = tl.load(at_key_N[:, None] + c[None, :], mask=valid_N[:, None] & (c < C)[None, :], other=0.0).to(PRODUCT)
        x_NX = tl.load(at_key_N[:, None] + C + x[None, :], mask=valid_N[:, None] & (x < X)[None, :], other=0.0)
        score_MN = tl.dot(q_MX, tl.trans(x_NX.to(PRODUCT)), input_precision="ieee")
        score_MN += tl.dot(q_MC, tl.trans(c_NC), input_precision="ieee")
        own_N = at_N - prefix
        if visible_T is None:
            seen_MN = own_N[None, :] <= query_M[:, None]
        else:
            bit_MN = (bits_M[:, None] >> tl.maximum(own_N, 0).to(tl.int64)[None, :]) & 1
            seen_MN = (own_N < 0)[None, :] | (bit_MN != 0)
        score_MN = tl.where(seen_MN & valid_N[None, :], score_MN, float("-inf"))
        new_M = tl.maximum(max_M, tl.max(score_MN, 1))
        base_M = tl.where(new_M == float("-inf"), 0.0, new_M) * factor  # a query may see nothing of this range
        weight_MN = tl.exp2(score_MN * factor - base_M[:, None])
        shrink_M = tl.exp2(max_M * factor - base_M)
        sum_M = sum_M * shrink_M + tl.sum(weight_MN, 1)
        acc_MC = acc_MC * shrink_M[:, None]
        acc_MC += tl.dot(weight_MN.to(PRODUCT), c_NC, input_precision="ieee")
        max_M = new_M

    safe_M = tl.where(sum_M == 0.0, 1.0, sum_M)
    acc_MC /= safe_M[:, None]
    if scale_1 is not None:
        acc_MC *= tl.load(scale_1)
    stored_MC = valid_M[:, None] & (c < C)[None, :]
    whole = num_splits == (-1 if PIECES else 1)  # there is nothing to merge
    if first_key_R is not None:
        whole = whole & (first_key == 0)
    if whole:
        at_M = token_M.to(tl.int64) * H + head_M
        tl.store(out_THC + at_M[:, None] * C + c[None, :], acc_MC.to(out_THC.dtype.element_ty), mask=stored_MC)
    else:
        at_M = (base + split.to(tl.int64) * max_queries + query_M) * H + head_M
        tl.store(partial_NHC + at_M[:, None] * C + c[None, :], acc_MC, mask=stored_MC)
        tl.store(weight_NH + at_M, max_M * factor + tl.log2(safe_M), mask=valid_M)


def store_latent(
    latent_TC: torch.Tensor, rope_TNX: torch.Tensor, kv: KvCache, args: RopeAndStoreArgs, interleaved: bool
) -> torch.Tensor:
    """Return the rotated queries [T, N - 1, X]; write latents, with the rotated key behind, to the cache.

    In a quantised cache they are divided by its scale. In e5m2 they are kept within its range. A token with slot -1 is
    not written. The arguments are those of `Ops.store_latent`.
    """
    T, N, X = rope_TNX.shape
    C = latent_TC.shape[1]
    q_THX = torch.empty((T, N - 1, X), dtype=rope_TNX.dtype, device=rope_TNX.device)
    launch(
        _store_latent,
        (T,),
        latent_TC,
        rope_TNX,
        args.cos_T1D,
        args.sin_T1D,
        kv.k_SKD,
        kv.k_scale_K,
        args.slots_T,
        q_THX,
        latent_TC.stride(0),
        rope_TNX.stride(0),
        rope_TNX.stride(1),
        kv.k_SKD.stride(0),
        N=N,
        C=C,
        X=X,
        INTERLEAVED=interleaved,
        BLOCK_N=min(triton.next_power_of_2(N), 16),
        BLOCK_C=triton.next_power_of_2(C),
        BLOCK_X=triton.next_power_of_2(X),
        LIMIT=E5M2_MAX.value if kv.k_SKD.dtype == E5M2 else QUANTISED_MAX.get(kv.k_SKD.dtype, 0.0),
        num_warps=4,
    )
    return q_THX


@triton.jit
def _store_latent(
    latent_TC,
    rope_TNX,
    cos_TX,
    sin_TX,
    kv_SD,
    scale_1,
    slots_T,
    q_THX,
    stride_latent,
    stride_t,
    stride_n,
    stride_slot,
    N: tl.constexpr,
    C: tl.constexpr,
    X: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_X: tl.constexpr,
    LIMIT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_T + token).to(tl.int64) * stride_slot
    dtype: tl.constexpr = kv_SD.dtype.element_ty
    x = tl.arange(0, BLOCK_X)
    HALF: tl.constexpr = X // 2
    place_X = x
    if INTERLEAVED:
        place_X = x % HALF * 2 + x // HALF
    swapped_X = (x + HALF) % X
    if INTERLEAVED:
        swapped_X = swapped_X % HALF * 2 + swapped_X // HALF
    cos_X = tl.load(cos_TX + token * X + x, mask=x < X, other=0.0).to(tl.float32)
    sin_X = tl.load(sin_TX + token * X + x, mask=x < X, other=0.0).to(tl.float32)
    scale = 1.0
    if scale_1 is not None:
        scale = tl.load(scale_1)
    for begin in range(0, N, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        valid_NX = (n < N)[:, None] & (x < X)[None, :]
        source = rope_TNX + token * stride_t + n[:, None] * stride_n
        x_NX = tl.load(source + place_X[None, :], mask=valid_NX, other=0.0).to(tl.float32)
        other_NX = tl.load(source + swapped_X[None, :], mask=valid_NX, other=0.0).to(tl.float32)
        rotated_NX = (x_NX * cos_X[None, :] + other_NX * sin_X[None, :]).to(q_THX.dtype.element_ty)
        is_q = n < N - 1
        at_NX = (token * (N - 1) + n)[:, None] * X + x[None, :]
        tl.store(q_THX + at_NX, rotated_NX, mask=valid_NX & is_q[:, None])
        is_key = (n == N - 1) & (slot >= 0)
        at_NX = slot + C + x[None, :] + n[:, None] * 0
        if LIMIT == 0.0:
            tl.store(kv_SD + at_NX, rotated_NX.to(dtype), mask=valid_NX & is_key[:, None])
        else:
            codes_NX = quantise(rotated_NX.to(tl.float32), scale, LIMIT, dtype)
            tl.store(kv_SD + at_NX, codes_NX, mask=valid_NX & is_key[:, None])
    if slot < 0:
        return
    c = tl.arange(0, BLOCK_C)
    latent_C = tl.load(latent_TC + token * stride_latent + c, mask=c < C, other=0.0)
    if LIMIT == 0.0:
        tl.store(kv_SD + slot + c, latent_C.to(dtype), mask=c < C)
    else:
        tl.store(kv_SD + slot + c, quantise(latent_C.to(tl.float32), scale, LIMIT, dtype), mask=c < C)
