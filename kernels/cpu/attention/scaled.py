"""Compiled attention over codes with scales of their own, keys relative to statistics (`reference.scaled_codes`).

As in `paged`, a query meets blocks of keys in ascending order, with an online softmax, and its bits depend on its own
keys only. A score is that of the codes, times their scale, and that of the offset: for each span of blocks a query is
turned back by the angles of the span's first place, and multiplied by constants of the layer (`basis`). Position 0 has
a term more. Weights take the values' scales after they are added up.

Legend: H query heads, K key/value heads, G = H / K, D head size, R rows of a tile (a query of one head).
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, types

from ...reference.scaled_codes import GROUP, e5m3_scales
from ..bfloat16 import widen
from ..compiled import Ints, compiled_in_order
from ..instructions import HOST
from ..pointers import address_of, pointer_to
from .basis import (
    FACTORS,
    FIRSTS,
    NUM_TERMS,
    PACKED_TERMS,
    SPAN,
    TERMS,
    WORDS,
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
)
from .dots import fetch_keys
from .inner import (
    BLOCK,
    E4M3_CODES,
    FOUR_BITS,
    INT8,
    LOG2_E,
    ROW_BYTES,
    ROWS,
    TOTAL_BYTES,
    mask_scores,
    read_query,
    total_weight,
    weigh_scores,
    write_output,
)
from .pack_pairs import CHANNEL, CHANNELS, CHUNK, END, FIRST, SEGMENT_FIELDS, find_segments, pack_keys, pack_values
from .pairs import FORMATS, KEYS_AT_ONCE, WEIGHT_BYTES, round_query, round_weights
from .pairs import score as score_codes
from .pairs import weigh as weigh_codes
from .plan import copy_block, find_addresses, queries_of_block, read_block, set_addresses
from .plan_array import BEGINS, ENDS, HEADS, MAX_QUERIES, SEGMENTS, TILE_FIELDS, TILES, TOKENS
from .plan_array import GROUP as QUERY_GROUP
from .plan_array import SEGMENT_FIELDS as SEGMENT_WORDS

LANES = HOST.lanes
_UNIT_E4M3 = np.float32(FORMATS[E4M3_CODES].unit)
# What 1 of a widened level is, by the code of its scale.
_LEVEL_SCALES = e5m3_scales(torch.arange(256, dtype=torch.uint8)).numpy() * np.float32(FORMATS[FOUR_BITS].unit)
_MOST_INT8, _MOST_E4M3, _MOST_FOUR_BITS = (
    (np.float32(FORMATS[form].most_of_query), np.float32(FORMATS[form].most_of_weights))
    for form in (INT8, E4M3_CODES, FOUR_BITS)
)

_floats, _halves = pointer_to(types.float32), pointer_to(types.uint16)
_ints, _bytes = pointer_to(types.int64), pointer_to(types.uint8)


@compiled_in_order("int64(int64[::1], int64[::1])")
def scaled_scratch_size(plan: Ints, kv: Ints) -> int:
    """Return the float32s of scratch memory that a thread needs for the plan's tasks."""
    rows = plan[MAX_QUERIES] * plan[QUERY_GROUP] * plan[HEADS] + ROWS
    D = kv[HEAD_SIZE]
    size, Z, groups = _sizes(D)
    of_row = size + (size + TERMS + LANES) + Z // 2 + Z + LANES + 2 + (BLOCK + 1) + groups * (BLOCK // 2 + 1)
    return (
        rows * of_row
        + BLOCK * (2 * Z + 2 * groups + D // 4 + 24)
        + size
        + 64 * LANES
        + 8 * SEGMENT_FIELDS * (D // 16 + 2)
    )  # type: ignore[no-any-return]


@compiled_in_order("UniTuple(int64, 3)(int64)")
def _sizes(D: int) -> tuple[int, int, int]:
    """Return D rounded up to vectors, at most so many channels with what fills up segments, and groups of channels."""
    groups = -(-D // GROUP)
    return -(-D // LANES) * LANES, D + CHUNK * (groups + 2), groups


@compiled_in_order("void(int64, int64, int64, int64, int64, int64)")
def _find_scales(dtype: int, addresses: int, offset: int, num: int, groups: int, scales: int) -> None:
    """Write what 1 of a widened code is, for a block's keys or values and each group of channels; 0 behind them."""
    addresses_L, scales_GL = carray(_ints(addresses), (BLOCK,)), carray(_floats(scales), (groups, BLOCK))
    for key in range(num):
        if dtype == FOUR_BITS:
            codes = carray(_bytes(addresses_L[key] + offset), (groups,))
            for g in range(groups):
                scales_GL[g, key] = _LEVEL_SCALES[codes[g]]
        else:
            scale = widen(carray(_halves(addresses_L[key] + offset), (1,))[0])
            scales_GL[0, key] = scale if dtype == INT8 else scale * _UNIT_E4M3
    for g in range(groups):
        for key in range(num, BLOCK):
            scales_GL[g, key] = 0


@compiled_in_order(f"void({', '.join(['int64'] * 16)}, float32, float32, int64)")
def _attend_block(
    blocks: int,
    base: int,
    num_keys: int,
    size: int,
    Z: int,
    groups: int,
    count: int,
    queries: int,
    factors: int,
    plain: int,
    terms: int,
    M: int,
    rows_at: int,
    spans: int,
    num_queries: int,
    group: int,
    cap: float,
    most: float,
    scores: int,
) -> None:
    """Add a block's values to the sums of `num_queries` times `group` rows, by the weights of its keys.

    The block has `num_keys` keys from the place `base` on. At `blocks` are the addresses of what it consists of: packed
    keys and values, their scales for `groups` groups of channels, packed offsets, what position 0 is more than its
    offset, the table of `count` segments, and 0 or the addresses of a block to fetch, with the offset of its keys'
    bytes, their number, and how far values are behind. Of the rows these are addresses: `queries` as words with
    `factors`, `plain` for position 0, `terms` (M each) for offsets; at `rows_at` those of sums, bases and totals, at
    `spans` those of the places that the queries see. `scores` is memory for ROWS rows more, with their weights and
    factors.
    """
    block_11, rows_3, spans_2 = carray(_ints(blocks), (11,)), carray(_ints(rows_at), (3,)), carray(_ints(spans), (2,))
    keys, values, k_scales, v_scales, offsets, first, segments, coming, coming_offset, coming_bytes, to_values = (
        block_11
    )
    fetched = -(-BLOCK // (num_queries * group))  # keys with each row
    sums, bases, totals = rows_3[0], rows_3[1], rows_3[2]
    begins_Q, ends_Q = carray(_ints(spans_2[0]), (num_queries,)), carray(_ints(spans_2[1]), (num_queries,))
    step = max(1, ROWS_TOGETHER // group)
    weights = scores + ROW_BYTES * (min(step, num_queries) * group + ROWS)
    units = weights + WEIGHT_BYTES * groups * (min(step, num_queries) * group + ROWS)
    for start in range(0, num_queries, step):
        stop, seen = min(start + step, num_queries), 1
        for query in range(start, stop):  # a prompt's last block: its first queries see few of the keys
            seen = min(max(seen, ends_Q[query] - base), num_keys)
        num_rows, padded, at = (stop - start) * group, -(-seen // KEYS_AT_ONCE) * KEYS_AT_ONCE, start * group
        score(terms + 4 * M * at, num_rows, M, offsets, 0, True, padded, scores, 0, 0)
        score_codes(
            queries + 2 * Z * at, 2 * Z, factors + 4 * at, num_rows, keys, segments, count, k_scales, padded, scores
        )
        for query in range(start, stop):
            begin, end = min(max(begins_Q[query] - base, 0), BLOCK), min(max(ends_Q[query] - base, 0), BLOCK)
            for row in range(query * group, (query + 1) * group):
                of_row = scores + ROW_BYTES * (row - at)
                if coming != 0:  # with each row some: the processor drops fetches when many are under way
                    fetch_keys(coming, fetched * row, fetched * (row + 1), coming_offset, coming_bytes, to_values)
                if base == 0:
                    carray(_floats(of_row), (BLOCK,))[0] += _product(plain + 4 * size * row, first, size)
                if begin > 0 or end < BLOCK or cap > 0:
                    mask_scores(of_row, begin, end, cap)
                weigh_scores(of_row, bases + 4 * row, totals + TOTAL_BYTES * row, sums + 4 * Z * row, Z)
                for g in range(groups):
                    place = (row - at) * groups + g
                    round_weights(
                        of_row, v_scales + ROW_BYTES * g, most, weights + WEIGHT_BYTES * place, units + 4 * place
                    )
        weigh_codes(weights, groups, units, num_rows, values, seen, segments, count, sums + 4 * Z * at, Z)


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
    words, form = carray(_ints(kv[BASIS]), (WORDS,)), kv[DTYPE]
    tile, first_head = task // (K // together), task % (K // together) * together
    at = plan[TILES] + tile * TILE_FIELDS
    first_q, end_q, first_segment, end_segment = plan[at], plan[at + 1], plan[at + 2], plan[at + 3]
    R, M = (end_q - first_q) * G, words[NUM_TERMS]
    size, _, groups = _sizes(D)
    if form != FOUR_BITS:
        groups = 1
    most_of_query, most_of_weights = _MOST_INT8
    if form == E4M3_CODES:
        most_of_query, most_of_weights = _MOST_E4M3
    elif form == FOUR_BITS:
        most_of_query, most_of_weights = _MOST_FOUR_BITS
    scratch = (scratch + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    segments = scratch
    count = find_segments(form, D, segments)
    Z = carray(_ints(segments), (count, SEGMENT_FIELDS))[count - 1, END]
    addresses = segments + 8 * SEGMENT_FIELDS * (D // 16 + 2)
    blocks, rows_at, spans = addresses + 8 * BLOCK, addresses + 8 * BLOCK + 96, addresses + 8 * BLOCK + 128
    coming = spans + 16
    copies = coming + 8 * BLOCK
    angles = (copies + 8 * BLOCK + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    rows = together * R + ROWS
    plain = angles + 4 * size
    turned = plain + 4 * rows * size
    terms = turned + 4 * size
    queries = terms + 4 * rows * M
    sums = (queries + 2 * rows * Z + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    keys = sums + 4 * rows * Z
    values = keys + 2 * BLOCK * Z
    k_scales = values + 2 * BLOCK * Z
    v_scales = k_scales + ROW_BYTES * groups
    totals = v_scales + ROW_BYTES * groups
    bases = totals + TOTAL_BYTES * rows
    factors = bases + 4 * rows
    staged = factors + 4 * rows
    staged_bytes = (B + 2 * CHUNK - 1) // CHUNK * CHUNK
    scores = (staged + BLOCK * staged_bytes + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)
    block_11, rows_3, spans_2 = carray(_ints(blocks), (11,)), carray(_ints(rows_at), (3,)), carray(_ints(spans), (2,))
    block_11[0], block_11[1], block_11[2], block_11[3], block_11[6] = keys, values, k_scales, v_scales, segments
    # A chunk of the last codes ends behind them; they are copied where that is another's memory.
    is_staged = (D // 2 if form == FOUR_BITS else D) % CHUNK > 0

    # Scores are in powers of two, which saves the exponential a product.
    score_scale = scale / cap if cap > 0 else scale * LOG2_E
    for head in range(together):
        sinks = 0 if kv[SINKS] == 0 else kv[SINKS] + 4 * (first_head + head) * G
        begin_rows(bases + 4 * head * R, totals + TOTAL_BYTES * head * R, sums + 4 * head * R * Z, R, Z, sinks, G)
        factor_D = carray(_floats(words[FACTORS] + 4 * D * (first_head + head)), (D,))
        for query in range(first_q, end_q):
            for g in range(G):
                place = plan[plan[TOKENS] + query] * q_stride + ((first_head + head) * G + g) * D
                row = head * R + (query - first_q) * G + g
                read_query(q, dtype, place, D, size, score_scale, plain + 4 * size * row)
                x, y = (
                    carray(_floats(plain + 4 * size * row), (size,)),
                    carray(_floats(turned), (D,)),
                )
                for d in range(D):
                    y[d] = x[d] * factor_D[d]
                rotate(turned, D)
                round_query(turned, D, segments, count, most_of_query, queries + 2 * Z * row, factors + 4 * row)

    segment, at = first_segment, plan[SEGMENTS] + first_segment * SEGMENT_WORDS
    source, slot_bytes, value_offset = kv[KEYS] + first_head * B, kv[STRIDE], kv[VALUES] - kv[KEYS]
    block, num_keys, fetched = plan[at + 2], 0, False
    turned_segment = turned_span = -1  # whose rows are turned back
    if segment < end_segment:
        num_keys = find_addresses(plan, at, block, source, slot_bytes, addresses)
    while segment < end_segment:
        low, high, own_segment, own_block = plan[at], plan[at + 1], segment, block
        first_row, end_row = low, high
        base, block, num_coming = own_block * BLOCK, block + 1, 0
        if block == plan[at + 3]:
            segment, at = segment + 1, at + SEGMENT_WORDS
            block = plan[at + 2]
        if segment < end_segment:
            num_coming = find_addresses(plan, at, block, source, slot_bytes, coming)
        low, high = queries_of_block(plan, low, high, base)
        fetches = low < high and num_coming > 0 and (high - low) * G <= BLOCK
        if low < high:
            if not fetched:
                read_block(addresses, num_keys, 0, together * B, scores)
                read_block(addresses, num_keys, value_offset, together * B, scores)
            span, of_span = own_block // (SPAN // BLOCK), own_block % (SPAN // BLOCK)
            if own_segment != turned_segment or span != turned_span:
                turned_segment, turned_span = own_segment, span
                find_angles(kv[BASIS], D, span, angles)
                for head in range(together):
                    for own in range(head * R + (first_row - first_q) * G, head * R + (end_row - first_q) * G):
                        turn_back(
                            plain + 4 * size * own, angles, kv[BASIS], first_head + head, D, turned, terms + 4 * M * own
                        )
            spans_2[0], spans_2[1] = places + 8 * (plan[BEGINS] + low), places + 8 * (plan[ENDS] + low)
            block_11[7], block_11[9], block_11[10] = coming if fetches else 0, B, value_offset
            for head in range(together):
                row = head * R + (low - first_q) * G
                block_11[8] = head * B
                _find_scales(form, addresses, head * B, num_keys, groups, k_scales)
                _find_scales(form, addresses, value_offset + head * B, num_keys, groups, v_scales)
                own, k_offset, v_offset = addresses, head * B, value_offset + head * B
                if is_staged:
                    copy_block(addresses, k_offset, num_keys, B, staged_bytes, staged)
                    set_addresses(staged, staged_bytes, num_keys, copies)
                    own, k_offset = copies, 0
                pack_keys(form, own, k_offset, num_keys, segments, count, keys)
                if is_staged:
                    copy_block(addresses, v_offset, num_keys, B, staged_bytes, staged)
                    v_offset = 0
                pack_values(form, own, v_offset, num_keys, segments, count, values)
                rows_3[0], rows_3[1] = sums + 4 * Z * row, bases + 4 * row
                rows_3[2] = totals + TOTAL_BYTES * row
                block_11[4] = words[PACKED_TERMS] + 4 * M * (SPAN * (first_head + head) + BLOCK * of_span)
                block_11[5] = words[FIRSTS] + 4 * size * (first_head + head)
                _attend_block(
                    blocks, base, num_keys, size, Z, groups, count, queries + 2 * Z * row, factors + 4 * row,
                    plain + 4 * size * row, terms + 4 * M * row, M, rows_at, spans, high - low, G, cap,
                    most_of_weights, scores,
                )  # fmt: skip
        num_keys, addresses, coming, fetched = num_coming, coming, addresses, fetches

    for head in range(together):
        for query in range(first_q, end_q):
            for g in range(G):
                row = head * R + (query - first_q) * G + g
                place = plan[plan[TOKENS] + query] * out_stride + ((first_head + head) * G + g) * D
                factor = np.float32(1) / total_weight(totals + TOTAL_BYTES * row)
                for index in range(count):
                    of_segment = carray(_ints(segments + 8 * SEGMENT_FIELDS * index), (SEGMENT_FIELDS,))
                    x = carray(_floats(sums + 4 * (Z * row + of_segment[FIRST])), (of_segment[CHANNELS],))
                    y = carray(_floats(turned + 4 * of_segment[CHANNEL]), (of_segment[CHANNELS],))
                    for d in range(of_segment[CHANNELS]):
                        y[d] = x[d]
                rotate(turned, D)
                write_output(turned, D, factor, out, dtype, place)


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
