"""Inner loop of attention over keys and values with scales of their own: as `flash_attention.attend`, with the offsets'
part of the scores as a second product (`scaled_codes`).

Legend: M queries of a tile, N keys of a tile, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..scaled_codes import load_scaled
from .flash_attention import LOG2E, score_factor, seen_scores


@triton.jit
def attend_scaled(
    acc_MD,
    max_M,
    sum_M,
    q_MD,
    high_THD,
    low_THD,
    at_M,  # the queries' rows of these
    valid_M,
    share_M,
    first_M,
    first,
    end,
    k_memory,  # bytes
    v_memory,
    kv_offset,
    stride_slot,
    pages,
    high_PD,
    low_PD,
    own_positions,  # of the row's own tokens; None: they follow the keys before them
    positions_M,
    prefix,
    bits_M,
    scale,
    cap,
    nothing,  # 0
    MASK: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FORMAT: tl.constexpr,
):
    """Add the keys at positions [first, end) to the accumulators and return these. Scores are logarithms in base 2.

    A value's scale is a part of its key's score, so that the weights are those of codes; their sum is without it.
    """
    WHOLE: tl.constexpr = MASK == "none"
    d = tl.arange(0, BLOCK_D)
    factor = score_factor(scale, CAP)
    cap_factor = 0.0
    if CAP:
        cap_factor = 2.0 * LOG2E * scale / cap
    else:
        share_M *= factor
        first_M *= factor
    for begin in range(first, end, TILE):
        at_N = begin + tl.arange(0, TILE)
        valid_N = at_N < end
        if WHOLE:  # noqa: SIM108 (a statement, of which Triton compiles one branch only)
            page_N = tl.load(pages + at_N // PAGE)
        else:
            page_N = tl.load(pages + at_N // PAGE, mask=valid_N, other=0)
        offset_N = (page_N.to(tl.int64) * PAGE + at_N % PAGE) * stride_slot + kv_offset
        k_ND, k_scale_N = load_scaled(k_memory, offset_N, valid_N, FORMAT, D, BLOCK_D, WHOLE, False)
        position_N = at_N
        if own_positions is not None and MASK == "bits":
            own_position_N = tl.load(own_positions + at_N - prefix, mask=valid_N & (at_N >= prefix), other=0)
            position_N = tl.where(at_N < prefix, at_N, own_position_N.to(tl.int32))
        angle_ND = position_N[:, None] * D + d[None, :]
        if WHOLE and D == BLOCK_D:
            angle_high_ND = tl.load(high_PD + angle_ND)
            angle_low_ND = tl.load(low_PD + angle_ND)
        else:
            valid_ND = valid_N[:, None] & (d < D)[None, :]
            angle_high_ND = tl.load(high_PD + angle_ND, mask=valid_ND, other=0.0)
            angle_low_ND = tl.load(low_PD + angle_ND, mask=valid_ND, other=0.0)
        score_MN = tl.dot(q_MD, tl.trans(k_ND))
        # Read again for each tile, since registers do not hold three tiles of queries: the compiler does not know that
        # `nothing` is 0.
        part_MD = (at_M + begin * nothing)[:, None] * D + d[None, :]
        valid_MD = valid_M[:, None] & (d < D)[None, :]
        high_MD = tl.load(high_THD + part_MD, mask=valid_MD, other=0.0)
        low_MD = tl.load(low_THD + part_MD, mask=valid_MD, other=0.0)
        offset_MN = tl.dot(high_MD, tl.trans(angle_high_ND))
        offset_MN = tl.dot(low_MD, tl.trans(angle_high_ND), offset_MN)
        offset_MN = tl.dot(high_MD, tl.trans(angle_low_ND), offset_MN)
        v_ND, v_scale_N = load_scaled(v_memory, offset_N, valid_N, FORMAT, D, BLOCK_D, WHOLE, TILE >= 64)
        if FORMAT == "int4":
            if not CAP:
                score_MN *= factor
        else:
            # A value's scale is 2^level times a part from 1 to 2.
            bits_N = v_scale_N.to(tl.int32, bitcast=True)
            level_N = ((bits_N >> 23) - 127).to(tl.float32)
            without_N = (0x7F000000 - (bits_N & 0x7F800000)).to(tl.float32, bitcast=True)  # 2^-level
            if CAP:
                score_MN *= k_scale_N[None, :]
            else:
                score_MN = score_MN * (k_scale_N * factor)[None, :] + level_N[None, :]
        score_MN += offset_MN * share_M[:, None]
        score_MN += first_M[:, None] * (position_N == 0).to(tl.float32)[None, :]
        score_MN = seen_scores(
            score_MN, at_N, valid_N, positions_M, prefix, bits_M, cap, cap_factor, MASK=MASK, WINDOW=WINDOW, CAP=CAP
        )
        if CAP:
            score_MN *= factor
            if FORMAT != "int4":
                score_MN += level_N[None, :]
        new_M = tl.maximum(max_M, tl.max(score_MN, 1))
        base_M = tl.where(new_M == float("-inf"), 0.0, new_M)  # a query may see nothing of this range
        weight_MN = tl.exp2(score_MN - base_M[:, None])
        shrink_M = tl.exp2(max_M - base_M)
        if FORMAT == "int4":
            sum_M = sum_M * shrink_M + tl.sum(weight_MN, 1)
        else:
            sum_M = sum_M * shrink_M + tl.sum(weight_MN * without_N[None, :], 1)
            weight_MN *= (v_scale_N * without_N)[None, :]
        acc_MD = acc_MD * shrink_M[:, None]
        acc_MD += tl.dot(weight_MN.to(tl.float16), v_ND)
        max_M = new_M
    return acc_MD, max_M, sum_M
