"""Inner loop of attention (FlashAttention): some queries over a range of one sequence's keys, in tiles, with an online
softmax.

The kernels for splits and for chunks share it. Milakov and Gimelshein 2018 (online softmax), section 3; Dao 2023
(FlashAttention-2), section 3.1.

Legend: M queries of a tile (tokens of one row times the query heads that share a key head), N keys of a tile, D head
size.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def start(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the empty accumulators: sum of values, largest score without its factor, sum of weights."""
    return (
        tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32),
        tl.full([BLOCK_M], float("-inf"), dtype=tl.float32),
        tl.zeros([BLOCK_M], dtype=tl.float32),
    )


@triton.jit
def score_factor(scale, CAP: tl.constexpr):
    """Return what the accumulators' scores have to be multiplied by: the scale, unless it is inside the cap, in base
    2."""
    return LOG2E if CAP else scale * LOG2E


@triton.jit
def seen_scores(
    score_MN,
    at_N,
    valid_N,
    positions_M,
    prefix,
    bits_M,
    cap,
    cap_factor,
    MASK: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """Return the scores of the keys at `at_N` under the cap; those that a query does not see are minus infinity."""
    if CAP:
        # tanh(x) = 1 - 2 / (exp(2x) + 1)
        score_MN = cap - 2.0 * cap / (tl.exp2(score_MN * cap_factor) + 1.0)
    if MASK != "none":
        if MASK == "bits":
            own_N = at_N - prefix
            bit_MN = (bits_M[:, None] >> tl.maximum(own_N, 0).to(tl.int64)[None, :]) & 1
            seen_MN = (own_N < 0)[None, :] | (bit_MN != 0)
        else:
            seen_MN = at_N[None, :] <= positions_M[:, None]
        if WINDOW:
            near_MN = at_N[None, :] > positions_M[:, None] - WINDOW
            if MASK == "bits":
                near_MN |= (at_N >= prefix)[None, :]  # a node's index is no position, and a tree fits the window
            seen_MN &= near_MN
        score_MN = tl.where(seen_MN & valid_N[None, :], score_MN, float("-inf"))
    return score_MN


@triton.jit
def share_beside_sinks(sinks_H, head, weight):
    """Return the share of the keys in the softmax beside their heads' sinks, 1 without sinks. `weight` is log2 of the
    sum of the keys' weights."""
    if sinks_H is None:  # noqa: SIM108 (a statement, of which Triton compiles one branch only)
        share = 1.0
    else:
        share = 1.0 / (1.0 + tl.exp2(tl.load(sinks_H + head) * LOG2E - weight))
    return share


@triton.jit
def attend(
    acc_MD,
    max_M,
    sum_M,
    q_MD,  # in the dtype of the products
    first,
    end,
    k_SKD,
    v_SKD,
    kv_offset,  # of the key head, in elements
    stride_slot,
    pages,  # the row's page table
    positions_M,
    prefix,  # keys before the row's own tokens
    bits_M,  # the row's own tokens that each query sees
    scale,
    cap,
    MASK: tl.constexpr,  # "none": whole tiles that all queries see; "causal"; "bits"
    WINDOW: tl.constexpr,  # 0: none
    CAP: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Add the keys at positions [first, end) to the accumulators and return these. `scale` is positive."""
    d = tl.arange(0, BLOCK_D)
    factor = score_factor(scale, CAP)
    cap_factor = 0.0
    if CAP:
        cap_factor = 2.0 * LOG2E * scale / cap
    for begin in range(first, end, TILE):
        at_N = begin + tl.arange(0, TILE)
        valid_N = at_N < end
        if MASK == "none":
            page_N = tl.load(pages + at_N // PAGE)
        else:
            page_N = tl.load(pages + at_N // PAGE, mask=valid_N, other=0)
        offset_N = (page_N.to(tl.int64) * PAGE + at_N % PAGE) * stride_slot + kv_offset
        if MASK == "none" and D == BLOCK_D:
            k_ND = tl.load(k_SKD + offset_N[:, None] + d[None, :])
            v_ND = tl.load(v_SKD + offset_N[:, None] + d[None, :])
        else:
            valid_ND = valid_N[:, None] & (d < D)[None, :]
            k_ND = tl.load(k_SKD + offset_N[:, None] + d[None, :], mask=valid_ND, other=0.0)
            v_ND = tl.load(v_SKD + offset_N[:, None] + d[None, :], mask=valid_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND.to(q_MD.dtype)), input_precision="ieee")
        score_MN = seen_scores(
            score_MN, at_N, valid_N, positions_M, prefix, bits_M, cap, cap_factor, MASK=MASK, WINDOW=WINDOW, CAP=CAP
        )
        new_M = tl.maximum(max_M, tl.max(score_MN, 1))
        base_M = tl.where(new_M == float("-inf"), 0.0, new_M)  # a query may see nothing of this range
        # One fused multiplication and subtraction a score: the factor holds the scale and the change to base 2.
        base_M *= factor
        weight_MN = tl.exp2(score_MN * factor - base_M[:, None])
        shrink_M = tl.exp2(max_M * factor - base_M)
        sum_M = sum_M * shrink_M + tl.sum(weight_MN, 1)
        acc_MD = acc_MD * shrink_M[:, None]
        acc_MD += tl.dot(weight_MN.to(q_MD.dtype), v_ND.to(q_MD.dtype), input_precision="ieee")
        max_M = new_M
    return acc_MD, max_M, sum_M
