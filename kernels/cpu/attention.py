"""Compiled attention on CPUs for every kind of step: decode rows, chunks, forks, draft trees, in one batch.

A query meets its keys in blocks at fixed places, in ascending order, with an online softmax in float32 (Milakov and
Gimelshein 2018, section 3). So its bits depend on nothing but its own keys: not on chunks, nor on which rows share
pages, nor on the batch. `attention_plan` says which queries meet which blocks; a tile of it and a key/value head are a
task, and tasks are independent.

Legend: T tokens, S slots, H query heads, K key/value heads, G = H / K, D head size, R rows of a tile (a query of one
head).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numba import carray, types

from ..arguments import AttentionArgs
from ..kv_cache import KvCache
from ..reference.quantise import E4M3
from .attention_inner import BLOCK, address_of, highest_score, pointer_to, score_rows, weigh_scores, weigh_values
from .attention_plan import (
    BEGINS,
    COST,
    ENDS,
    GROUP,
    MAX_QUERIES,
    NUM_TILES,
    SEGMENT_FIELDS,
    SEGMENTS,
    TILE_FIELDS,
    TILES,
    TOKENS,
    AttentionPlan,
)
from .bfloat16 import narrow, widen
from .compiled import Floats, Ints, compiled
from .instructions import HOST
from .thread_pool import num_threads, run_tasks

LANES = HOST.lanes

# Codes of dtypes.
FLOAT32, BFLOAT16, FLOAT16, E4M3_CODES, INT8 = range(5)
DTYPES = {
    torch.float32: FLOAT32,
    torch.bfloat16: BFLOAT16,
    torch.float16: FLOAT16,
    E4M3: E4M3_CODES,
    torch.int8: INT8,
}
QUERY_DTYPES = (torch.float32, torch.bfloat16)
# Numbers of a cache's descriptor. The stride is that of slots, in numbers; scales are addresses of float32 [K], or 0.
KEYS, VALUES, STRIDE, KV_HEADS, HEAD_SIZE, DTYPE, KEY_SCALES, VALUE_SCALES, DESCRIPTOR = range(9)

_MIN_WORK = 1 << 16  # multiplications by keys: they take 10 microseconds, waking a thread takes more
_FEW_ROWS = 4  # rows that read a float32 block where it lies: copying it would cost more than it saves
_LOG2_E = np.float32(1.4426950408889634)
_NOTHING = np.float32(-np.inf)

_floats, _halves, _bytes = pointer_to(types.float32), pointer_to(types.uint16), pointer_to(types.int8)
_ints = pointer_to(types.int64)

_score_one, _score_two, _score_three = score_rows(1), score_rows(2), score_rows(3)
_weigh_one, _weigh_one_by_four, _weigh_one_by_eight = (weigh_values(1, vectors) for vectors in (1, 4, 8))
_weigh_two, _weigh_two_by_four = weigh_values(2, 1), weigh_values(2, 4)
_weigh_three, _weigh_three_by_four = weigh_values(3, 1), weigh_values(3, 4)


def kv_descriptor(kv: KvCache) -> Ints:
    """Return the layer's cache as the loops take it, int64 [DESCRIPTOR]. It holds addresses: the tensors must live as
    long."""
    scales = (0 if scale_K is None else scale_K.data_ptr() for scale_K in (kv.k_scale_K, kv.v_scale_K))
    _, K, D = kv.k_SKD.shape
    stride = kv.k_SKD.stride(0)
    assert kv.k_SKD.stride() == kv.v_SKD.stride() == (stride, D, 1)
    return np.array([kv.k_SKD.data_ptr(), kv.v_SKD.data_ptr(), stride, K, D, DTYPES[kv.k_SKD.dtype], *scales])


@compiled("int64(int64[::1], int64[::1])")
def num_tasks(plan: Ints, kv: Ints) -> int:
    return plan[NUM_TILES] * kv[KV_HEADS]  # type: ignore[no-any-return]


@compiled("int64(int64[::1], int64[::1])")
def scratch_size(plan: Ints, kv: Ints) -> int:
    """Return the float32s of scratch memory that a thread needs for the plan's tasks."""
    rows = plan[MAX_QUERIES] * plan[GROUP]
    size = -(-kv[HEAD_SIZE] // LANES) * LANES
    return rows * (2 * size + BLOCK + 3) + BLOCK * size + 4 * BLOCK  # type: ignore[no-any-return]


@compiled("float32(uint16)")
def _from_float16(half: np.uint16) -> np.float32:
    bits = np.uint32(half)
    magnitude = (bits & np.uint32(0x7FFF)) << np.uint32(13)
    normal = np.uint32(magnitude + np.uint32(112 << 23))
    # A subnormal is what its bits add to the least normal number.
    subnormal = (np.uint32(magnitude + np.uint32(113 << 23))).view(np.float32) - np.float32(2.0**-14)
    if magnitude < np.uint32(1 << 23):
        normal = np.float32(subnormal).view(np.uint32)
    if magnitude >= np.uint32(31 << 23):  # infinity and NaN
        normal = np.uint32(normal + np.uint32(112 << 23))
    return np.uint32(normal | ((bits & np.uint32(0x8000)) << np.uint32(16))).view(np.float32)  # type: ignore[no-any-return]


@compiled("float32(int8)")
def _from_e4m3(code: np.int8) -> np.float32:
    """Convert a code as `reference.quantise.expand_e4m3` does: NaN becomes 480."""
    bits = np.uint32(np.uint8(code))
    magnitude = (bits & np.uint32(0x7F)) << np.uint32(20)
    normal = np.uint32(magnitude + np.uint32(120 << 23))
    subnormal = (np.uint32(magnitude + np.uint32(121 << 23))).view(np.float32) - np.float32(2.0**-6)
    if magnitude < np.uint32(1 << 23):
        normal = np.float32(subnormal).view(np.uint32)
    return np.uint32(normal | ((bits & np.uint32(0x80)) << np.uint32(24))).view(np.float32)  # type: ignore[no-any-return]


@compiled("void(int64, int64, int64, int64, int64, float32, int64)")
def _read(source: int, dtype: int, first: int, num: int, size: int, scale: float, target: int) -> None:
    """Write `num` numbers, from the `first` on of those at an address, times `scale`, and zeros up to `size`."""
    to = carray(_floats(target), (size,))
    to[num:] = 0
    if dtype == FLOAT32:
        wide = carray(_floats(source + 4 * first), (num,))
        for d in range(num):
            to[d] = wide[d] * scale
    elif dtype == BFLOAT16:
        half = carray(_halves(source + 2 * first), (num,))
        for d in range(num):
            to[d] = widen(half[d]) * scale
    elif dtype == FLOAT16:
        half = carray(_halves(source + 2 * first), (num,))
        for d in range(num):
            to[d] = _from_float16(half[d]) * scale
    elif dtype == E4M3_CODES:
        codes = carray(_bytes(source + first), (num,))
        for d in range(num):
            to[d] = _from_e4m3(codes[d]) * scale
    else:
        codes = carray(_bytes(source + first), (num,))
        for d in range(num):
            to[d] = np.float32(codes[d]) * scale


@compiled("void(int64[::1], int64, int64, int64, int64, int64, int64, int64, int64[::1])")
def _find_block(
    slots: Ints, num: int, source: int, dtype: int, stride: int, offset: int, D: int, gathered: int, addresses: Ints
) -> None:
    """Write the addresses of a block's keys (or values) as float32s. They are copied to the address `gathered`, unless
    that is 0."""
    size = -(-D // LANES) * LANES
    for key in range(num):
        place = slots[key] * stride + offset
        addresses[key] = source + 4 * place
        if gathered != 0:
            addresses[key] = gathered + 4 * size * key
            _read(source, dtype, place, D, size, np.float32(1), addresses[key])
    for more in range(num, min(-(-num // 8) * 8, BLOCK)):
        addresses[more] = addresses[num - 1]


@compiled("void(int64, int64, int64, int64, int64, int64)")
def _score(q: int, num_rows: int, size: int, addresses: int, num_keys: int, scores: int) -> None:
    """Write the scores of all rows with a block's keys."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        queries, to = q + 4 * row * size, scores + 4 * row * BLOCK
        if left >= 3 and left != 4:
            _score_three(queries, size, addresses, num_keys, to)
            row += 3
        elif left >= 2:
            _score_two(queries, size, addresses, num_keys, to)
            row += 2
        else:
            _score_one(queries, size, addresses, num_keys, to)
            row += 1


@compiled("void(int64, int64, int64, int64, int64, int64, int64)")
def _weigh(weights: int, factors: int, num_rows: int, size: int, addresses: int, num_keys: int, sums: int) -> None:
    """Scale the sums of all rows by their factors, and add a block's values by their weights."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        w, f, to = weights + 4 * row * BLOCK, factors + 4 * row, sums + 4 * row * size
        d = 0
        if left >= 3 and left != 4:
            while d + 4 * LANES <= size:
                _weigh_three_by_four(w, f, addresses, num_keys, 4 * d, to, size)
                d += 4 * LANES
            while d < size:
                _weigh_three(w, f, addresses, num_keys, 4 * d, to, size)
                d += LANES
            row += 3
        elif left >= 2:
            while d + 4 * LANES <= size:
                _weigh_two_by_four(w, f, addresses, num_keys, 4 * d, to, size)
                d += 4 * LANES
            while d < size:
                _weigh_two(w, f, addresses, num_keys, 4 * d, to, size)
                d += LANES
            row += 2
        else:
            while d + 8 * LANES <= size:
                _weigh_one_by_eight(w, f, addresses, num_keys, 4 * d, to, size)
                d += 8 * LANES
            while d + 4 * LANES <= size:
                _weigh_one_by_four(w, f, addresses, num_keys, 4 * d, to, size)
                d += 4 * LANES
            while d < size:
                _weigh_one(w, f, addresses, num_keys, 4 * d, to, size)
                d += LANES
            row += 1


@compiled("void(int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, float32, float32, int64)")
def attend_task(
    task: int,
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
    """Write `softmax(scale * q k^T) v` of the queries of one tile and one key/value head.

    `task` is below `num_tasks`. `plan` is an `AttentionPlan.array`, `kv` a `kv_descriptor`. `q` and `out` are addresses
    of [T, H, D], whose numbers have the dtype code `dtype` (FLOAT32 or BFLOAT16); a token is `q_stride` or `out_stride`
    numbers after the one before, its heads lie together. `cap` is the soft cap of scores, 0 for none. `scratch` is the
    address of `scratch_size` float32s, aligned to 8 bytes, the thread's own. Nothing is allocated.
    """
    K, D, G = kv[KV_HEADS], kv[HEAD_SIZE], plan[GROUP]
    tile, head = task // K, task % K
    at = plan[TILES] + tile * TILE_FIELDS
    first_q, end_q, first_segment, end_segment = plan[at], plan[at + 1], plan[at + 2], plan[at + 3]
    R, size = (end_q - first_q) * G, -(-D // LANES) * LANES
    addresses = scratch + 8 * BLOCK
    queries = addresses + 8 * BLOCK
    sums = queries + 4 * R * size
    gathered = sums + 4 * R * size
    scores = gathered + 4 * BLOCK * size
    factors = scores + 4 * R * BLOCK
    slots_L, addresses_L = carray(_ints(scratch), (BLOCK,)), carray(_ints(addresses), (BLOCK,))
    sums_RD, scores_RL = carray(_floats(sums), (R, size)), carray(_floats(scores), (R, BLOCK))
    factor_R, highest_R = carray(_floats(factors), (R,)), carray(_floats(factors + 4 * R), (R,))
    total_R = carray(_floats(factors + 8 * R), (R,))

    # Scores are in powers of two, which saves the exponential a product.
    q_scale = scale / cap if cap > 0 else scale * _LOG2_E
    out_scale = np.float32(1)
    if kv[KEY_SCALES] != 0:
        q_scale *= carray(_floats(kv[KEY_SCALES]), (K,))[head]
        out_scale = carray(_floats(kv[VALUE_SCALES]), (K,))[head]
    for row in range(R):
        token = plan[plan[TOKENS] + first_q + row // G]
        place = token * q_stride + (head * G + row % G) * D
        _read(q, dtype, place, D, size, q_scale, queries + 4 * row * size)
        sums_RD[row] = 0
        highest_R[row], total_R[row] = _NOTHING, 0

    for segment in range(first_segment, end_segment):
        at = plan[SEGMENTS] + segment * SEGMENT_FIELDS
        low, high, first_block, end_block = plan[at], plan[at + 1], plan[at + 2], plan[at + 3]
        unit, table, length = plan[at + 4], plan[at + 5], plan[at + 6]
        for block in range(first_block, end_block):
            base = block * BLOCK
            # The first and the last queries may see nothing of the block.
            start, stop = low, high
            while start < stop and (plan[plan[ENDS] + start] <= base or plan[plan[BEGINS] + start] >= base + BLOCK):
                start += 1
            while start < stop and (
                plan[plan[ENDS] + stop - 1] <= base or plan[plan[BEGINS] + stop - 1] >= base + BLOCK
            ):
                stop -= 1
            if start == stop:
                continue
            num_keys = min(length - base, BLOCK)
            for key in range(num_keys):
                place = base + key
                slots_L[key] = plan[table + place // unit] * unit + place % unit
            row, num_rows = (start - first_q) * G, (stop - start) * G
            direct = kv[DTYPE] == FLOAT32 and size == D and num_rows <= _FEW_ROWS
            to = 0 if direct else gathered
            _find_block(slots_L, num_keys, kv[KEYS], kv[DTYPE], kv[STRIDE], head * D, D, to, addresses_L)
            _score(queries + 4 * row * size, num_rows, size, addresses, num_keys, scores + 4 * row * BLOCK)
            for query in range(start, stop):
                begin = min(max(plan[plan[BEGINS] + query] - base, 0), BLOCK)
                end = min(max(plan[plan[ENDS] + query] - base, 0), BLOCK)
                for r in range((query - first_q) * G, (query - first_q + 1) * G):
                    scores_L = scores_RL[r]
                    if cap > 0:
                        for key in range(BLOCK):
                            scores_L[key] = cap * _LOG2_E * np.tanh(scores_L[key])
                    scores_L[:begin] = _NOTHING
                    scores_L[end:] = _NOTHING
                    before = highest_R[r]
                    highest = highest_score(scores + 4 * r * BLOCK)
                    highest = before if highest < before else highest
                    highest_R[r] = highest
                    factor_R[r] = np.float32(1) if highest == before else np.exp2(before - highest)
                    total = weigh_scores(scores + 4 * r * BLOCK, highest if highest != _NOTHING else np.float32(0))
                    total_R[r] = total_R[r] * factor_R[r] + total
            _find_block(slots_L, num_keys, kv[VALUES], kv[DTYPE], kv[STRIDE], head * D, D, to, addresses_L)
            _weigh(
                scores + 4 * row * BLOCK,
                factors + 4 * row,
                num_rows,
                size,
                addresses,
                num_keys,
                sums + 4 * row * size,
            )

    for row in range(R):
        token = plan[plan[TOKENS] + first_q + row // G]
        place = token * out_stride + (head * G + row % G) * D
        factor = out_scale / total_R[row]
        if dtype == FLOAT32:
            wide = carray(_floats(out + 4 * place), (D,))
            for d in range(D):
                wide[d] = sums_RD[row, d] * factor
        else:
            half = carray(_halves(out + 2 * place), (D,))
            for d in range(D):
                half[d] = narrow(sums_RD[row, d] * factor, half[d])


@compiled("void(int64, int64, int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, float32, float32)")
def attend_tasks(
    first: int,
    end: int,
    step: int,
    plan: Ints,
    kv: Ints,
    q: int,
    q_stride: int,
    out: int,
    out_stride: int,
    dtype: int,
    scale: float,
    cap: float,
) -> None:
    """Compute the tasks first, first + step, ... below `end`, with scratch memory of its own."""
    scratch = np.empty(scratch_size(plan, kv) // 2 + 1, dtype=np.int64)
    for task in range(first, end, step):
        attend_task(task, plan, kv, q, q_stride, out, out_stride, dtype, scale, cap, address_of(scratch))


@compiled("void(int64[::1], float32[:,:,::1], float32[:,:,::1], float32[:,:,::1], float32, float32[:,:,::1])")
def attend_rows(plan: Ints, q_THD: Floats, k_SKD: Floats, v_SKD: Floats, scale: float, out_THD: Floats) -> None:
    """Compute all tasks of a plan over a float32 cache without scales."""
    H, D = q_THD.shape[1:]
    kv = np.zeros(DESCRIPTOR, dtype=np.int64)
    kv[KEYS], kv[VALUES] = address_of(k_SKD), address_of(v_SKD)
    kv[STRIDE], kv[KV_HEADS], kv[HEAD_SIZE], kv[DTYPE] = k_SKD.shape[1] * D, k_SKD.shape[1], D, FLOAT32
    q, out = address_of(q_THD), address_of(out_THD)
    attend_tasks(0, num_tasks(plan, kv), 1, plan, kv, q, H * D, out, H * D, FLOAT32, scale, np.float32(0))


@dataclass(frozen=True)
class CompiledAttention:
    """Attention of a step by compiled tasks, which threads share. `cap` is the soft cap of scores, 0 for none."""

    plan: AttentionPlan
    cap: float = 0.0

    def attend(self, q_THD: torch.Tensor, kv: KvCache, scale: float) -> torch.Tensor:
        T, H, D = q_THD.shape
        if q_THD.stride()[1:] != (D, 1):
            q_THD = q_THD.contiguous()
        out_THD = torch.empty((T, H, D), dtype=q_THD.dtype)
        array, descriptor = self.plan.array, kv_descriptor(kv)
        arguments = (
            array,
            descriptor,
            q_THD.data_ptr(),
            q_THD.stride(0),
            out_THD.data_ptr(),
            H * D,
            DTYPES[q_THD.dtype],
            scale,
            self.cap,
        )
        count = num_tasks(array, descriptor)
        threads = min(num_threads(), count) if array[COST] * kv.k_SKD.shape[1] * D > _MIN_WORK else 1
        if threads < 2:
            attend_tasks(0, count, 1, *arguments)
        else:
            # Tasks come in the order of their costs, so every second one is half of the work.
            run_tasks([partial(attend_tasks, first, count, threads, *arguments) for first in range(threads)])
        return out_THD


def compiled_attention(args: AttentionArgs, cap: float | None = None) -> CompiledAttention | None:
    """Return the compiled attention of a step; None if it rotates keys when it reads them, or has other dtypes."""
    if args.key_rope is not None or args.dtype not in QUERY_DTYPES or args.kv.k_SKD.dtype not in DTYPES:
        return None
    group = args.num_heads // args.kv.k_SKD.shape[1]
    return CompiledAttention(
        AttentionPlan.of(args.rows, page_size=args.page_size, window=args.window, group=group), cap or 0.0
    )
