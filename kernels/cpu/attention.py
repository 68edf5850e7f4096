"""Compiled attention on CPUs for every kind of step: decode rows, chunks, forks, draft trees, in one batch.

A query meets its keys in blocks at fixed places, in ascending order, with an online softmax in float32 (Milakov and
Gimelshein 2018, section 3). So its bits depend on nothing but its own keys: not on chunks, nor on which rows share
pages, nor on the batch. `attention_plan` says which queries meet which blocks; a tile of it and a key/value head are a
task, and tasks are independent.

Legend: T tokens, S slots, H query heads, K key/value heads, G = H / K, D head size, R rows of a tile (a query of one
head).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numba import carray, types

from ..arguments import AttentionArgs
from ..kv_cache import KvCache
from ..reference.quantise import E4M3
from .attention_dots import NO_BASE, ROWS, TOTAL_BYTES, attend_block, fetch_block, pack_block, round_query, total_weight
from .attention_inner import (
    BFLOAT16,
    BFLOAT16_DOTS,
    BLOCK,
    E4M3_CODES,
    FLOAT16,
    FLOAT32,
    INT8,
    LOG2_E,
    address_of,
    gather_rows,
    highest_score,
    mask_scores,
    pointer_to,
    score_rows,
    weigh_scores,
    weigh_values,
)
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
    find_slots,
)
from .bfloat16 import narrow, widen
from .compiled import Floats, Ints, compiled_in_order, exp
from .instructions import HOST
from .thread_pool import num_threads, run_tasks

LANES = HOST.lanes

# Codes of dtypes.
DTYPES = {
    torch.float32: FLOAT32,
    torch.bfloat16: BFLOAT16,
    torch.float16: FLOAT16,
    E4M3: E4M3_CODES,
    torch.int8: INT8,
}
QUERY_DTYPES = (torch.float32, torch.bfloat16)
# Numbers of a cache's descriptor. The stride is that of slots, in numbers; scales are addresses of float32 [K], or 0.
# `SINKS` is the address of float32 [H], logits without values, or 0.
KEYS, VALUES, STRIDE, KV_HEADS, HEAD_SIZE, DTYPE, KEY_SCALES, VALUE_SCALES, SINKS, DESCRIPTOR = range(10)

_MIN_WORK = 1 << 16  # multiplications by keys: they take 10 microseconds, waking a thread takes more
_FEW_ROWS = 4  # rows that read a float32 block where it lies: copying it would cost more than it saves
_LN_2 = np.float32(0.6931471805599453)
_NOTHING = np.float32(-np.inf)

_floats, _halves = pointer_to(types.float32), pointer_to(types.uint16)
_ints, _bytes = pointer_to(types.int64), pointer_to(types.uint8)

_gather_float32, _gather_bfloat16, _gather_float16, _gather_e4m3, _gather_int8 = map(gather_rows, range(5))
_score_one, _score_two, _score_three = score_rows(1), score_rows(2), score_rows(3)
_weigh_one, _weigh_one_by_four, _weigh_one_by_eight = (weigh_values(1, vectors) for vectors in (1, 4, 8))
_weigh_two, _weigh_two_by_four = weigh_values(2, 1), weigh_values(2, 4)
_weigh_three, _weigh_three_by_four = weigh_values(3, 1), weigh_values(3, 4)


def kv_descriptor(kv: KvCache, queries: torch.dtype) -> Ints:
    """Return the layer's cache as the loops take it, int64 [DESCRIPTOR]. It holds addresses: the tensors must live as
    long. `queries` is the precision that queries and weights need: with bfloat16, loops may round them."""
    scales = (0 if scale_K is None else scale_K.data_ptr() for scale_K in (kv.k_scale_K, kv.v_scale_K))
    _, K, D = kv.k_SKD.shape
    stride = kv.k_SKD.stride(0)
    assert kv.k_SKD.stride() == kv.v_SKD.stride() == (stride, D, 1)
    dots = HOST.bfloat16_dot and kv.k_SKD.dtype == queries == torch.bfloat16
    dtype = BFLOAT16_DOTS if dots else DTYPES[kv.k_SKD.dtype]
    return np.array([kv.k_SKD.data_ptr(), kv.v_SKD.data_ptr(), stride, K, D, dtype, *scales, 0])


@compiled_in_order("int64(int64[::1], int64[::1])")
def num_tasks(plan: Ints, kv: Ints) -> int:
    """Return the number of independent tasks of a plan: a tile and a key/value head each."""
    return plan[NUM_TILES] * kv[KV_HEADS]  # type: ignore[no-any-return]


@compiled_in_order("int64(int64[::1], int64[::1])")
def scratch_size(plan: Ints, kv: Ints) -> int:
    """Return the float32s of scratch memory that a thread needs for the plan's tasks."""
    rows = plan[MAX_QUERIES] * plan[GROUP]
    size = -(-kv[HEAD_SIZE] // LANES) * LANES
    return rows * (2 * size + BLOCK + 3) + (2 * BLOCK + 1) * size + (4 + ROWS) * BLOCK + LANES  # type: ignore[no-any-return]


@compiled_in_order("void(int64, int64, int64, int64, int64, float32, int64)")
def _read_query(source: int, dtype: int, first: int, D: int, size: int, scale: float, target: int) -> None:
    """Write a query, times `scale`, and zeros up to `size`. It is the numbers from `first` on at the address
    `source`."""
    to = carray(_floats(target), (size,))
    if dtype == FLOAT32:
        wide = carray(_floats(source + 4 * first), (D,))
        for d in range(D):
            to[d] = wide[d] * scale
    else:
        half = carray(_halves(source + 2 * first), (D,))
        for d in range(D):
            to[d] = widen(half[d]) * scale
    for d in range(D, size):
        to[d] = 0


@compiled_in_order("void(int64[::1], int64, int64, int64, int64, int64, int64[::1])")
def _find_addresses(first_L: Ints, num: int, source: int, width: int, D: int, staged: int, addresses_L: Ints) -> None:
    """Write the addresses of a block's keys (or values) of `width` bytes a number. If `staged` is an address and not 0,
    they are copied there, with zeros up to a multiple of LANES numbers."""
    for key in range(num):
        addresses_L[key] = source + width * first_L[key]
    if staged != 0:
        size = -(-D // LANES) * LANES * width
        for key in range(num):
            row = carray(_bytes(addresses_L[key]), (D * width,))
            addresses_L[key] = staged + key * size
            to = carray(_bytes(addresses_L[key]), (size,))
            for byte in range(D * width):
                to[byte] = row[byte]
            for byte in range(D * width, size):
                to[byte] = 0


@compiled_in_order("void(int64, int64, int64, int64, int64, int64[::1])")
def _gather(dtype: int, addresses: int, num: int, size: int, to: int, addresses_L: Ints) -> None:
    """Copy a block's keys (or values) as float32s, and write their new addresses."""
    if dtype == FLOAT32:
        _gather_float32(addresses, num, size, to)
    elif dtype == BFLOAT16:
        _gather_bfloat16(addresses, num, size, to)
    elif dtype == FLOAT16:
        _gather_float16(addresses, num, size, to)
    elif dtype == E4M3_CODES:
        _gather_e4m3(addresses, num, size, to)
    else:
        _gather_int8(addresses, num, size, to)
    for key in range(num):
        addresses_L[key] = to + 4 * size * key


@compiled_in_order("void(int64, int64, int64, int64, int64, int64)")
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


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64)")
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


@compiled_in_order("void(int64, int64, int64, int64, int64)")
def _softmax(scores: int, num_rows: int, factors: int, highest: int, totals: int) -> None:
    """Replace a block's scores by their weights, update the rows' largest score and total weight, and write the factors
    of what was summed before."""
    factor_R, highest_R = carray(_floats(factors), (num_rows,)), carray(_floats(highest), (num_rows,))
    total_R = carray(_floats(totals), (num_rows,))
    for r in range(num_rows):
        before = highest_R[r]
        found = highest_score(scores + 4 * r * BLOCK)
        found = before if found < before else found
        highest_R[r] = found
        factor_R[r] = np.float32(0) if found == before else before - found
    for r in range(num_rows):
        factor_R[r] = exp(factor_R[r] * _LN_2)
    for r in range(num_rows):
        base = highest_R[r] if highest_R[r] != _NOTHING else np.float32(0)
        total_R[r] = total_R[r] * factor_R[r] + weigh_scores(scores + 4 * r * BLOCK, base)


@compiled_in_order("void(int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, float32, float32, int64)")
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
    K, D, G, places = kv[KV_HEADS], kv[HEAD_SIZE], plan[GROUP], address_of(plan)
    tile, head = task // K, task % K
    at = plan[TILES] + tile * TILE_FIELDS
    first_q, end_q, first_segment, end_segment = plan[at], plan[at + 1], plan[at + 2], plan[at + 3]
    R, size = (end_q - first_q) * G, -(-D // LANES) * LANES
    dots = kv[DTYPE] == BFLOAT16_DOTS
    scratch = (scratch + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)  # vectors that lie in one cache line load faster
    addresses = scratch + 8 * BLOCK
    queries = addresses + 8 * BLOCK
    sums = queries + 4 * R * size
    gathered = sums + 4 * R * size
    scores = gathered + 4 * BLOCK * size
    work = scores + 4 * R * BLOCK
    factors = work + 4 * (ROWS * BLOCK + size)
    highest, totals = factors + 4 * R, scores if dots else factors + 8 * R
    staged = factors + 12 * R if size > D else 0
    first_L, addresses_L = carray(_ints(scratch), (BLOCK,)), carray(_ints(addresses), (BLOCK,))
    sums_RD = carray(_floats(sums), (R, size))
    highest_R, total_R = carray(_floats(highest), (R,)), carray(_floats(totals), (R,))
    totals_RL = carray(_floats(totals), (R, LANES))  # of dots
    cached = kv[DTYPE]
    width = 4 if cached == FLOAT32 else 1 if cached in (E4M3_CODES, INT8) else 2

    # Scores are in powers of two, which saves the exponential a product.
    q_scale = scale / cap if cap > 0 else scale * LOG2_E
    out_scale = np.float32(1)
    if kv[KEY_SCALES] != 0:
        q_scale *= carray(_floats(kv[KEY_SCALES]), (K,))[head]
        out_scale = carray(_floats(kv[VALUE_SCALES]), (K,))[head]
    for query in range(first_q, end_q):
        token = plan[plan[TOKENS] + query]
        for g in range(G):
            row, place = (query - first_q) * G + g, token * q_stride + (head * G + g) * D
            sums_RD[row] = 0
            base, total = NO_BASE if dots else _NOTHING, np.float32(0)
            if kv[SINKS] != 0:
                base = max(carray(_floats(kv[SINKS]), (K * G,))[head * G + g] * LOG2_E, NO_BASE)
                total = np.float32(1)
            highest_R[row] = base
            if dots:
                round_query(q, dtype, place, D, size, queries + 2 * row * size)
                totals_RL[row], totals_RL[row, 0] = 0, total
            else:
                _read_query(q, dtype, place, D, size, q_scale, queries + 4 * row * size)
                total_R[row] = total

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
            row, num_rows = (start - first_q) * G, (stop - start) * G
            gather = cached != FLOAT32 or num_rows > _FEW_ROWS
            find_slots(plan, table, unit, base, num_keys, kv[STRIDE], first_L)
            for values in range(2):
                source = (kv[VALUES] if values else kv[KEYS]) + width * head * D
                _find_addresses(first_L, num_keys, source, width, D, staged, addresses_L)
                if dots:
                    pack_block(addresses, num_keys, size, values, gathered + 2 * values * BLOCK * size)
                    continue
                if gather:
                    _gather(cached, addresses, num_keys, size, gathered, addresses_L)
                if values:
                    _weigh(
                        scores + 4 * row * BLOCK,
                        factors + 4 * row,
                        num_rows,
                        size,
                        addresses,
                        num_keys,
                        sums + 4 * row * size,
                    )
                    continue
                for more in range(num_keys, min(-(-num_keys // 8) * 8, BLOCK)):
                    addresses_L[more] = addresses_L[num_keys - 1]
                _score(queries + 4 * row * size, num_rows, size, addresses, num_keys, scores + 4 * row * BLOCK)
                for query in range(start, stop):
                    begin = min(max(plan[plan[BEGINS] + query] - base, 0), BLOCK)
                    end = min(max(plan[plan[ENDS] + query] - base, 0), BLOCK)
                    if begin > 0 or end < BLOCK or cap > 0:
                        for r in range((query - first_q) * G, (query - first_q + 1) * G):
                            mask_scores(scores + 4 * r * BLOCK, begin, end, cap)
                _softmax(scores + 4 * row * BLOCK, num_rows, factors + 4 * row, highest + 4 * row, totals + 4 * row)
            if dots:
                if block + 1 < end_block:
                    num_coming = min(length - base - BLOCK, BLOCK)
                    find_slots(plan, table, unit, base + BLOCK, num_coming, kv[STRIDE], first_L)
                    fetch_block(scratch, num_coming, kv[KEYS] + 2 * head * D, D)
                    fetch_block(scratch, num_coming, kv[VALUES] + 2 * head * D, D)
                attend_block(
                    gathered, gathered + 2 * BLOCK * size, base, num_keys, size,
                    queries + 2 * row * size, sums + 4 * row * size, highest + 4 * row, totals + TOTAL_BYTES * row,
                    places + 8 * (plan[BEGINS] + start), places + 8 * (plan[ENDS] + start), stop - start, G,
                    q_scale, cap, work,
                )  # fmt: skip

    for query in range(first_q, end_q):
        token = plan[plan[TOKENS] + query]
        for g in range(G):
            row, place = (query - first_q) * G + g, token * out_stride + (head * G + g) * D
            factor = out_scale / (total_weight(totals + TOTAL_BYTES * row) if dots else total_R[row])
            if dtype == FLOAT32:
                wide = carray(_floats(out + 4 * place), (D,))
                for d in range(D):
                    wide[d] = sums_RD[row, d] * factor
            else:
                half = carray(_halves(out + 2 * place), (D,))
                for d in range(D):
                    half[d] = narrow(sums_RD[row, d] * factor, half[d])


@compiled_in_order(
    "void(int64, int64, int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, float32, float32)"
)
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


@compiled_in_order("void(int64[::1], float32[:,:,::1], float32[:,:,::1], float32[:,:,::1], float32, float32[:,:,::1])")
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
    forms: dict[Any, Any] = field(default_factory=dict)  # of latent attention, by its sizes
    _plans: dict[int, AttentionPlan] = field(default_factory=dict)

    def plan_of(self, group: int) -> AttentionPlan:
        """Return the plan for a number of query heads for each key/value head."""
        if group not in self._plans:  # a slice of the query heads of one key/value head
            self._plans[group] = self.plan if group == self.plan.group else self.plan.with_group(group)
        return self._plans[group]

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        T, H, D = q_THD.shape
        group = H // kv.k_SKD.shape[1]
        if q_THD.stride()[1:] != (D, 1):
            q_THD = q_THD.contiguous()
        out_THD = torch.empty((T, H, D), dtype=q_THD.dtype)
        array, descriptor = self.plan_of(group).array, kv_descriptor(kv, q_THD.dtype)
        count = num_tasks(array, descriptor)
        threads = num_threads() if array[COST] * kv.k_SKD.shape[1] * D > _MIN_WORK else 1
        # Few rows of one key head, as with latents, are fewer tasks than threads: each gets some of the query heads.
        parts = 1
        if count < threads and kv.k_SKD.shape[1] == 1:
            parts = next(number for number in range(threads, 0, -1) if group % number == 0)
        if parts > 1:
            group //= parts
            array = self.plan_of(group).array
            count = num_tasks(array, descriptor)
        step, part_bytes = max(1, min(threads // parts, count)), group * D * q_THD.element_size()

        def tasks(first: int, part: int) -> None:
            own = descriptor
            if sinks_H is not None:
                own = descriptor.copy()
                own[SINKS] = sinks_H.data_ptr() + part * group * sinks_H.element_size()
            attend_tasks(
                first,
                count,
                step,
                array,
                own,
                q_THD.data_ptr() + part * part_bytes,
                q_THD.stride(0),
                out_THD.data_ptr() + part * part_bytes,
                H * D,
                DTYPES[q_THD.dtype],
                scale,
                self.cap,
            )

        # Tasks come in the order of their costs, so every second one is half of the work.
        work = [partial(tasks, first, part) for part in range(parts) for first in range(step)]
        if len(work) == 1:
            work[0]()
        else:
            run_tasks(work)
        # Of latents the loops weigh whole keys; the values are their first dimensions.
        return out_THD[..., : kv.v_SKD.shape[2]]


def compiled_attention(args: AttentionArgs, cap: float | None = None) -> CompiledAttention | None:
    """Return the compiled attention of a step; None if it rotates keys when it reads them, or has other dtypes."""
    if args.key_rope is not None or args.dtype not in QUERY_DTYPES or args.kv.k_SKD.dtype not in DTYPES:
        return None
    group = args.num_heads // args.kv.k_SKD.shape[1]
    return CompiledAttention(
        AttentionPlan.of(args.rows, page_size=args.page_size, window=args.window, group=group), cap or 0.0
    )
