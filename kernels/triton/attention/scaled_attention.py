"""Inner loop of attention over keys and values with scales of their own: as `flash_attention.attend`, with the offsets'
part of the scores as a second product (`scaled_codes`).

Legend: M queries of a tile, N keys of a tile, D head size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..scaled_codes import load_scaled
from .flash_attention import LOG2E, score_factor, seen_scores

NO_UNIT = tl.constexpr(2.0**-120)  # below any scale


@triton.jit
def attend_scaled(
    acc_MD,
    max_M,
    sum_M,
    unit,  # of `acc_MD`: the largest scale of a value so far
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
    """Add the keys at positions [first, end) to the accumulators and return these with their unit."""
    WHOLE: tl.constexpr = MASK == "none"
    d = tl.arange(0, BLOCK_D)
    factor = score_factor(scale, CAP)
    cap_factor = 0.0
    if CAP:
        cap_factor = 2.0 * LOG2E * scale / cap
    for begin in range(first, end, TILE):
        at_N = begin + tl.arange(0, TILE)
        valid_N = at_N < end
        if WHOLE:  # noqa: SIM108 (a statement, of which Triton compiles one branch only)
            page_N = tl.load(pages + at_N // PAGE)
        else:
            page_N = tl.load(pages + at_N // PAGE, mask=valid_N, other=0)
        offset_N = (page_N.to(tl.int64) * PAGE + at_N % PAGE) * stride_slot + kv_offset
        k_ND, k_scale_N = load_scaled(k_memory, offset_N, valid_N, FORMAT, D, BLOCK_D, WHOLE)
        v_ND, v_scale_N = load_scaled(v_memory, offset_N, valid_N, FORMAT, D, BLOCK_D, WHOLE)
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
        if FORMAT != "int4":
            score_MN *= k_scale_N[None, :]
        # Read again for each tile, since registers do not hold three tiles of queries: the compiler does not know that
        # `nothing` is 0.
        part_MD = (at_M + begin * nothing)[:, None] * D + d[None, :]
        valid_MD = valid_M[:, None] & (d < D)[None, :]
        high_MD = tl.load(high_THD + part_MD, mask=valid_MD, other=0.0)
        low_MD = tl.load(low_THD + part_MD, mask=valid_MD, other=0.0)
        offset_MN = tl.dot(high_MD, tl.trans(angle_high_ND))
        offset_MN = tl.dot(low_MD, tl.trans(angle_high_ND), offset_MN)
        offset_MN = tl.dot(high_MD, tl.trans(angle_low_ND), offset_MN)
        score_MN += offset_MN * share_M[:, None]
        score_MN += first_M[:, None] * (position_N == 0).to(tl.float32)[None, :]
        score_MN = seen_scores(
            score_MN, at_N, valid_N, positions_M, prefix, bits_M, cap, cap_factor, MASK=MASK, WINDOW=WINDOW, CAP=CAP
        )
        new_M = tl.maximum(max_M, tl.max(score_MN, 1))
        base_M = tl.where(new_M == float("-inf"), 0.0, new_M)  # a query may see nothing of this range
        base_M *= factor
        weight_MN = tl.exp2(score_MN * factor - base_M[:, None])
        shrink_M = tl.exp2(max_M * factor - base_M)
        sum_M = sum_M * shrink_M + tl.sum(weight_MN, 1)
        if FORMAT == "int4":
            unit = 1.0
        else:
            # Weights take the values' scales, in a unit that keeps them within float16.
            new_unit = tl.maximum(unit, tl.max(v_scale_N, 0))
            shrink_M *= unit / new_unit
            weight_MN *= (v_scale_N / new_unit)[None, :]
            unit = new_unit
        acc_MD = acc_MD * shrink_M[:, None]
        acc_MD += tl.dot(weight_MN.to(tl.float16), v_ND)
        max_M = new_M
    return acc_MD, max_M, sum_M, unit
