"""Compiled attention over codes with scales of their own, keys relative to statistics (`reference.scaled_codes`).

As in `paged`, a query meets blocks of keys in ascending order, with an online softmax, and its bits depend on its own
keys only. A score is that of the codes, times their scale, and that of the offset: for each block a query is turned
back by the angles of the block's first place, and multiplied by constants of the layer (`basis`). Position 0 has a
term more. Weights take the values' scales after they are added up.

Legend: H query heads, K key/value heads, G = H / K, D head size, R rows of a tile (a query of one head).
"""

from __future__ import annotations

import numpy as np
from numba import carray, types

from ...reference.scaled_codes import GROUP
from ..bfloat16 import widen
from ..compiled import Ints, compiled_in_order
from ..instructions import HOST
from ..pointers import address_of, pointer_to
from .basis import (
    FACTORS,
    FIRSTS,
    PACKED_OFFSETS,
    e5m3_scale,
    find_angles,
    pack_numbers,
    relative_key,
    rotate,
    turn_back,
)
from .blocks import (
    BASIS,
    DTYPE,
    HEAD_BYTES,
    HEAD_SIZE,
    KEYS,
    KV_HEADS,
    ROWS_TOGETHER,
    SINKS,
    STRIDE,
    VALUES,
    begin_rows,
    score,
    weigh,
)
from .inner import (
    BLOCK,
    FOUR_BITS,
    KEYS_AT_ONCE,
    LOG2_E,
    ROW_BYTES,
    ROWS,
    TOTAL_BYTES,
    gather,
    mask_scores,
    pack_keys,
    read_query,
    total_weight,
    weigh_scores,
    write_output,
)
from .plan import copy_block, find_addresses, read_block, set_addresses
from .plan_array import BEGINS, ENDS, HEADS, MAX_QUERIES, SEGMENT_FIELDS, SEGMENTS, TILE_FIELDS, TILES, TOKENS
from .plan_array import GROUP as QUERY_GROUP

LANES = HOST.lanes
_SCALE_BYTES = 2

_floats, _halves = pointer_to(types.float32), pointer_to(types.uint16)
_ints, _bytes = pointer_to(types.int64), pointer_to(types.uint8)


@compiled_in_order("int64(int64[::1], int64[::1])")
def scaled_scratch_size(plan: Ints, kv: Ints) -> int:
    """Return the float32s of scratch memory that a thread needs for the plan's tasks."""
    rows = plan[MAX_QUERIES] * plan[QUERY_GROUP] * plan[HEADS] + ROWS
    size = -(-kv[HEAD_SIZE] // LANES) * LANES
    return rows * (4 * size + 2 * BLOCK + LANES + 1) + 4 * BLOCK * size + 10 * BLOCK + size + 2 * LANES  # type: ignore[no-any-return]


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _unpack(
    dtype: int, addresses: int, offset: int, num: int, D: int, size: int, staged: int, to: int, scales: int
) -> None:
    """Write a block's keys or values as float32s, `size` each, and their scales: 1 of four bits, which are multiplied
    already. They lie `offset` bytes behind BLOCK addresses. `staged` is memory for their bytes and addresses."""
    addresses_L, scales_L = carray(_ints(addresses), (BLOCK,)), carray(_floats(scales), (BLOCK,))
    for key in range(num, BLOCK):
        scales_L[key] = 0
    if dtype == FOUR_BITS:
        for key in range(num):
            scales_L[key] = 1
            _unpack_levels(addresses_L[key] + offset, D, size, staged, to + 4 * size * key)
        return
    for key in range(num):
        scales_L[key] = widen(carray(_halves(addresses_L[key] + offset), (1,))[0])
    if size == D:
        gather(dtype, addresses, offset + _SCALE_BYTES, num, size, to)
        return
    copy_block(addresses, offset + _SCALE_BYTES, num, D, size, staged + 8 * BLOCK)
    set_addresses(staged + 8 * BLOCK, size, num, staged)
    gather(dtype, staged, 0, num, size, to)


@compiled_in_order("void(int64, int64, int64, int64, int64)")
def _unpack_levels(source: int, D: int, size: int, staged: int, to: int) -> None:
    """Write the numbers of a key or value of four bits, and zeros up to `size`; `staged` is memory for D float32s."""
    G, half = -(-D // GROUP), D // 2
    scales, codes, to_D = (
        carray(_bytes(source), (G,)),
        carray(_bytes(source + G), (half,)),
        carray(_floats(to), (size,)),
    )
    scale_D = carray(_floats(staged), (D,))
    for g in range(G):
        scale = e5m3_scale(scales[g])
        for d in range(g * GROUP, min(D, (g + 1) * GROUP)):
            scale_D[d] = scale
    for d in range(half):
        c = np.float32(np.int32(codes[d] & 15)) - np.float32(7.5)
        to_D[d] = c * (np.float32(1) + c * c * np.float32(1 / 128)) * scale_D[d]
    for d in range(half):
        c = np.float32(np.int32(codes[d] >> 4)) - np.float32(7.5)
        to_D[half + d] = c * (np.float32(1) + c * c * np.float32(1 / 128)) * scale_D[half + d]
    for d in range(D, size):
        to_D[d] = 0


@compiled_in_order(f"void({', '.join(['int64'] * 16)}, float32, int64)")
def _attend_block(
    keys: int,
    offsets: int,
    first: int,
    values: int,
    key_scales: int,
    value_scales: int,
    base: int,
    num_keys: int,
    size: int,
    queries: int,
    turned: int,
    to_plain: int,
    rows_at: int,
    spans: int,
    num_queries: int,
    group: int,
    cap: float,
    scores: int,
) -> None:
    """Add a block's values to the sums of `num_queries` times `group` rows, by the weights of its keys.

    The block has `num_keys` keys from the place `base` on: packed `keys` and `offsets`, the addresses of `values`,
    their scales, and `first`, what position 0 is more than its offset. `queries` and `turned` are the rows' queries,
    for keys and for offsets; `to_plain` is the way from the former to those for `first`. At `rows_at` are the addresses
    of sums, bases and totals, at `spans` those of the places that the queries see. `scores` is memory for twice the
    rows and ROWS more.
    """
    rows_3, spans_2 = carray(_ints(rows_at), (3,)), carray(_ints(spans), (2,))
    sums, bases, totals = rows_3[0], rows_3[1], rows_3[2]
    begins_Q, ends_Q = carray(_ints(spans_2[0]), (num_queries,)), carray(_ints(spans_2[1]), (num_queries,))
    k_scale_L, v_scale_L = carray(_floats(key_scales), (BLOCK,)), carray(_floats(value_scales), (BLOCK,))
    step = max(1, ROWS_TOGETHER // group)
    shifts = scores + ROW_BYTES * (min(step, num_queries) * group + ROWS)  # scores of the offsets
    for start in range(0, num_queries, step):
        stop, seen = min(start + step, num_queries), 1
        for query in range(start, stop):  # a prompt's last block: its first queries see few of the keys
            seen = min(max(seen, ends_Q[query] - base), num_keys)
        num_rows, padded, at = (stop - start) * group, -(-seen // KEYS_AT_ONCE) * KEYS_AT_ONCE, start * group
        score(queries + 4 * size * at, num_rows, size, keys, 0, True, padded, scores, 0, 0)
        score(turned + 4 * size * at, num_rows, size, offsets, 0, True, padded, shifts, 0, 0)
        for query in range(start, stop):
            begin, end = min(max(begins_Q[query] - base, 0), BLOCK), min(max(ends_Q[query] - base, 0), BLOCK)
            for row in range(query * group, (query + 1) * group):
                of_row = scores + ROW_BYTES * (row - at)
                score_L = carray(_floats(of_row), (BLOCK,))
                shift_L = carray(_floats(shifts + ROW_BYTES * (row - at)), (BLOCK,))
                for key in range(padded):
                    score_L[key] = score_L[key] * k_scale_L[key] + shift_L[key]
                if base == 0:
                    score_L[0] += _product(queries + to_plain + 4 * size * row, first, size)
                if begin > 0 or end < BLOCK or cap > 0:
                    mask_scores(of_row, begin, end, cap)
                weigh_scores(of_row, bases + 4 * row, totals + TOTAL_BYTES * row, sums + 4 * size * row, size)
                for key in range(seen):
                    score_L[key] *= v_scale_L[key]
        weigh(scores, num_rows, size, values, seen, 0, sums + 4 * size * at, values, 0)


@compiled_in_order("float32(int64, int64, int64)")
def _product(x: int, y: int, size: int) -> np.float32:
    x_D, y_D, total = carray(_floats(x), (size,)), carray(_floats(y), (size,)), np.float32(0)
    for d in range(size):
        total += x_D[d] * y_D[d]
    return total


@compiled_in_order(
    "void(int64, int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, float32, float32, int64)"
)
def attend_scaled(
    task: int,
    together: int,
    plan: Ints,
    kv: Ints,
    q: int,
    q_stride: int,
    out: int,
    out_stride: int,
    dtype: int,
    scale: float,
    cap: float,
    scratch: int,
) -> None:
    """Compute what `paged.attend_task` does, of a cache with a basis; `together` are the task's key/value heads."""
    K, D, G, B, places = kv[KV_HEADS], kv[HEAD_SIZE], plan[QUERY_GROUP], kv[HEAD_BYTES], address_of(plan)
    words = carray(_ints(kv[BASIS]), (6,))
    tile, first_head = task // (K // together), task % (K // together) * together
    at = plan[TILES] + tile * TILE_FIELDS
    first_q, end_q, first_segment, end_segment = plan[at], plan[at + 1], plan[at + 2], plan[at + 3]
    R, size = (end_q - first_q) * G, -(-D // LANES) * LANES
    rows_bytes = 4 * (together * R + ROWS) * size
    scratch = (scratch + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    addresses, copies = scratch, scratch + 8 * BLOCK
    k_scales, v_scales = scratch + 24 * BLOCK, scratch + 28 * BLOCK
    rows_at, spans = scratch + 32 * BLOCK, scratch + 32 * BLOCK + 24
    angles = scratch + 36 * BLOCK
    queries = angles + 4 * size
    plain, turned = queries + rows_bytes, queries + 2 * rows_bytes
    sums = turned + rows_bytes
    packed = sums + 4 * together * R * size
    keys, values = packed + 4 * BLOCK * size, packed + 8 * BLOCK * size
    staged = packed + 12 * BLOCK * size
    totals = staged + 4 * BLOCK * size
    bases = totals + TOTAL_BYTES * together * R
    scores = (bases + 4 * together * R + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    rows_3, spans_2 = carray(_ints(rows_at), (3,)), carray(_ints(spans), (2,))

    # Scores are in powers of two, which saves the exponential a product.
    score_scale = scale / cap if cap > 0 else scale * LOG2_E
    for head in range(together):
        sinks = 0 if kv[SINKS] == 0 else kv[SINKS] + 4 * (first_head + head) * G
        begin_rows(bases + 4 * head * R, totals + TOTAL_BYTES * head * R, sums + 4 * head * R * size, R, size, sinks, G)
        factor_D = carray(_floats(words[FACTORS] + 4 * D * (first_head + head)), (D,))
        for query in range(first_q, end_q):
            for g in range(G):
                place = plan[plan[TOKENS] + query] * q_stride + ((first_head + head) * G + g) * D
                row = 4 * size * (head * R + (query - first_q) * G + g)
                read_query(q, dtype, place, D, size, score_scale, plain + row)
                x, y = carray(_floats(plain + row), (size,)), carray(_floats(queries + row), (size,))
                z = carray(_floats(turned + row), (size,))
                for d in range(D):
                    y[d] = x[d] * factor_D[d]
                for d in range(D, size):
                    y[d] = z[d] = 0
                rotate(queries + row, D)

    segment, at = first_segment, plan[SEGMENTS] + first_segment * SEGMENT_FIELDS
    source, slot_bytes, value_offset = kv[KEYS] + first_head * B, kv[STRIDE], kv[VALUES] - kv[KEYS]
    while segment < end_segment:
        for block in range(plan[at + 2], plan[at + 3]):
            low, high, base = plan[at], plan[at + 1], block * BLOCK
            # The first and the last queries may see nothing of the block.
            while low < high and (plan[plan[ENDS] + low] <= base or plan[plan[BEGINS] + low] >= base + BLOCK):
                low += 1
            while low < high and (plan[plan[ENDS] + high - 1] <= base or plan[plan[BEGINS] + high - 1] >= base + BLOCK):
                high -= 1
            if low == high:
                continue
            num_keys = find_addresses(plan, at, block, source, slot_bytes, addresses)
            read_block(addresses, num_keys, 0, together * B, scores)
            read_block(addresses, num_keys, value_offset, together * B, scores)
            find_angles(kv[BASIS], D, block, angles)
            spans_2[0], spans_2[1] = places + 8 * (plan[BEGINS] + low), places + 8 * (plan[ENDS] + low)
            for head in range(together):
                row = head * R + (low - first_q) * G
                for own in range(row, row + (high - low) * G):
                    turn_back(plain + 4 * size * own, angles, D, turned + 4 * size * own)
                _unpack(kv[DTYPE], addresses, head * B, num_keys, D, size, staged, keys, k_scales)
                _unpack(kv[DTYPE], addresses, value_offset + head * B, num_keys, D, size, staged, values, v_scales)
                set_addresses(keys, 4 * size, num_keys, copies)
                pack_keys(copies, 0, size, -(-num_keys // KEYS_AT_ONCE) * KEYS_AT_ONCE, packed)
                set_addresses(values, 4 * size, num_keys, copies)
                rows_3[0], rows_3[1] = sums + 4 * size * row, bases + 4 * row
                rows_3[2] = totals + TOTAL_BYTES * row
                offsets = words[PACKED_OFFSETS] + 4 * BLOCK * size * (first_head + head)
                _attend_block(
                    packed, offsets, words[FIRSTS] + 4 * size * (first_head + head), copies, k_scales, v_scales, base,
                    num_keys, size, queries + 4 * size * row, turned + 4 * size * row, rows_bytes, rows_at, spans,
                    high - low, G, cap, scores,
                )  # fmt: skip
        segment, at = segment + 1, at + SEGMENT_FIELDS

    for head in range(together):
        for query in range(first_q, end_q):
            for g in range(G):
                row = head * R + (query - first_q) * G + g
                place = plan[plan[TOKENS] + query] * out_stride + ((first_head + head) * G + g) * D
                factor = np.float32(1) / total_weight(totals + TOTAL_BYTES * row)
                rotate(sums + 4 * size * row, D)
                write_output(sums + 4 * size * row, D, factor, out, dtype, place)


@compiled_in_order("void(int64, int64[::1], int64, int64, int64)")
def store_scaled(keys: int, kv: Ints, position: int, slot: int, scratch: int) -> None:
    """Write a token's keys after their rotary embedding, and its values behind them, to a slot of a cache with a basis.

    `keys` is the address of both, float32 [2 K, D], which stay as they are; `scratch` that of D numbers rounded up to
    vectors, and D more."""
    K, D = kv[KV_HEADS], kv[HEAD_SIZE]
    size, to_D = -(-D // LANES) * LANES, carray(_floats(scratch), (D,))
    for head in range(2 * K):
        from_D = carray(_floats(keys + 4 * D * head), (D,))
        for d in range(D):
            to_D[d] = from_D[d]
        if head < K:
            relative_key(scratch, kv[BASIS], head, D, size, position)
            pack_numbers(scratch, D, kv[DTYPE], kv[KEYS] + slot * kv[STRIDE] + head * kv[HEAD_BYTES])
        else:
            rotate(scratch, D)
            pack_numbers(scratch, D, kv[DTYPE], kv[VALUES] + slot * kv[STRIDE] + (head - K) * kv[HEAD_BYTES])
