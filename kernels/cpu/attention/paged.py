"""Compiled attention on CPUs for every kind of step: decode rows, chunks, forks, draft trees, in one batch.

A query meets its keys in blocks at fixed places, in ascending order, with an online softmax in float32 (Milakov and
Gimelshein 2018, section 3). So its bits depend on nothing but its own keys: not on chunks, nor on which rows share
pages, nor on the batch. `plan_array` says which queries meet which blocks; a tile of it and a key/value head are a
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

from ...arguments import AttentionArgs
from ...kv_cache import KvCache
from ..compiled import Ints, compiled_in_order
from ..instructions import HOST
from ..pointers import address_of, pointer_to
from ..products.tile import FETCH_BYTES
from ..thread_pool import num_threads, run_tasks
from .blocks import (
    BASIS,
    DTYPE,
    DTYPES,
    HEAD_SIZE,
    KEY_SCALES,
    KEYS,
    KV_HEADS,
    ON_TILES,
    QUERY_DTYPES,
    ROWS_TOGETHER,
    SINKS,
    STRIDE,
    VALUE_SCALES,
    VALUES,
    begin_rows,
    kv_descriptor,
    score,
    weigh,
)
from .dots import SCORE_ROWS, attend_block, pack_block, round_query
from .inner import (
    BFLOAT16_DOTS,
    BLOCK,
    E4M3_CODES,
    E5M2_CODES,
    FLOAT32,
    INT8,
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
from .plan import AttentionPlan, copy_block, find_addresses, queries_of_block, read_block, set_addresses
from .plan_array import (
    BEGINS,
    COST,
    ENDS,
    GROUP,
    HEADS,
    MAX_QUERIES,
    NUM_TILES,
    SEGMENT_FIELDS,
    SEGMENTS,
    TILE_FIELDS,
    TILES,
    TOKENS,
)
from .scaled import attend_scaled, scaled_scratch_size
from .tiles import CHANNELS

LANES = HOST.lanes

_MIN_WORK = 1 << 16  # multiplications by keys: they take 10 microseconds, waking a thread takes more
_FEW_ROWS = 2  # rows that read a float32 block where it lies: packing it would cost more than it saves

_floats = pointer_to(types.float32)
_ints = pointer_to(types.int64)


@compiled_in_order("int64(int64[::1], int64[::1])")
def _heads_of_task(plan: Ints, kv: Ints) -> int:
    """Return the number of key/value heads of a task."""
    return plan[HEADS] if kv[KV_HEADS] % plan[HEADS] == 0 else 1  # type: ignore[no-any-return]


@compiled_in_order("int64(int64[::1], int64[::1])")
def num_tasks(plan: Ints, kv: Ints) -> int:
    """Return the number of independent tasks of a plan: a tile and some key/value heads each."""
    return plan[NUM_TILES] * (kv[KV_HEADS] // _heads_of_task(plan, kv))  # type: ignore[no-any-return]


@compiled_in_order("int64(int64[::1])")
def _padded_size(kv: Ints) -> int:
    """Return the head size, rounded up to what loops multiply at once."""
    step = CHANNELS if kv[ON_TILES] else LANES
    return -(-kv[HEAD_SIZE] // step) * step  # type: ignore[no-any-return]


@compiled_in_order("int64(int64[::1], int64[::1])")
def scratch_size(plan: Ints, kv: Ints) -> int:
    """Return the float32s of scratch memory that a thread needs for the plan's tasks."""
    if kv[BASIS] != 0:
        return scaled_scratch_size(plan, kv)  # type: ignore[no-any-return]
    rows = plan[MAX_QUERIES] * plan[GROUP] * plan[HEADS] + ROWS
    size = _padded_size(kv)
    return rows * (2 * size + BLOCK + LANES + 1) + 5 * BLOCK * size + (6 + SCORE_ROWS) * BLOCK + size + LANES  # type: ignore[no-any-return]


@compiled_in_order(f"void(int64, int64, boolean, {', '.join(['int64'] * 14)}, float32, int64)")
def _attend_floats(
    keys: int,
    key_offset: int,
    packed: bool,
    values: int,
    value_offset: int,
    coming: int,
    base: int,
    num_keys: int,
    size: int,
    queries: int,
    sums: int,
    bases: int,
    totals: int,
    begins: int,
    ends: int,
    num_queries: int,
    group: int,
    cap: float,
    scores: int,
) -> None:
    """Add a block's values, float32s, to the sums of `num_queries` times `group` rows, by the weights of its keys.

    The block has `num_keys` keys from the place `base` on. They lie `key_offset` bytes behind the addresses at `keys`,
    or are `packed` there; the values `value_offset` bytes behind those at `values`. Of few rows the kernels fetch the
    block whose addresses are at `coming`: each line twice, half a block apart, because the processor drops fetches when
    many are under way. Further arguments but numbers are addresses: of the first row's query, sums (`size` float32s a
    row), base and total (LANES float32s), of the places that the queries see (int64s), and of memory for the scores of
    all rows and ROWS more.
    """
    begins_Q, ends_Q = carray(_ints(begins), (num_queries,)), carray(_ints(ends), (num_queries,))
    for first in range(0, num_queries, max(1, ROWS_TOGETHER // group)):
        stop, seen = min(first + max(1, ROWS_TOGETHER // group), num_queries), 1
        for query in range(first, stop):  # a prompt's last block: its first queries see few of the keys
            seen = min(max(seen, ends_Q[query] - base), num_keys)
        num_rows, padded = (stop - first) * group, -(-seen // KEYS_AT_ONCE) * KEYS_AT_ONCE
        q, to = queries + 4 * size * first * group, sums + 4 * size * first * group
        score(q, num_rows, size, keys, key_offset, packed, padded, scores, coming, value_offset - key_offset)
        for query in range(first, stop):
            begin = min(max(begins_Q[query] - base, 0), BLOCK)
            end = min(max(ends_Q[query] - base, 0), BLOCK)
            for row in range(query * group, (query + 1) * group):
                of_row = scores + ROW_BYTES * (row - first * group)
                if begin > 0 or end < BLOCK or cap > 0:
                    mask_scores(of_row, begin, end, cap)
                weigh_scores(of_row, bases + 4 * row, totals + TOTAL_BYTES * row, sums + 4 * size * row, size)
        weigh(scores, num_rows, size, values, seen, value_offset, to, coming, key_offset - value_offset)


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
    """Write `softmax(scale * q k^T) v` of the queries of one tile and one or more key/value heads.

    `task` is below `num_tasks`. `plan` is an `AttentionPlan.array`, `kv` a `kv_descriptor`. `q` and `out` are addresses
    of [T, H, D], whose numbers have the dtype code `dtype` (FLOAT32 or BFLOAT16); a token is `q_stride` or `out_stride`
    numbers after the one before, its heads lie together. `cap` is the soft cap of scores, 0 for none. `scratch` is the
    address of `scratch_size` float32s, aligned to 8 bytes, the thread's own. Nothing is allocated.
    """
    K, D, G, places = kv[KV_HEADS], kv[HEAD_SIZE], plan[GROUP], address_of(plan)
    together = _heads_of_task(plan, kv)
    if kv[BASIS] != 0:
        attend_scaled(task, together, plan, kv, q, q_stride, out, out_stride, dtype, scale, cap, scratch)
        return
    tile, first_head = task // (K // together), task % (K // together) * together
    at = plan[TILES] + tile * TILE_FIELDS
    first_q, end_q, first_segment, end_segment = plan[at], plan[at + 1], plan[at + 2], plan[at + 3]
    R, size = (end_q - first_q) * G, _padded_size(kv)
    cached = kv[DTYPE]
    dots = cached == BFLOAT16_DOTS
    width = 4 if cached == FLOAT32 else 1 if cached in (E4M3_CODES, E5M2_CODES, INT8) else 2
    query_bytes = (2 if dots else 4) * size
    scratch = (scratch + 4 * LANES - 1) // (4 * LANES) * (4 * LANES)  # vectors that lie in one cache line load faster
    addresses, coming, copies = scratch, scratch + 8 * BLOCK, scratch + 16 * BLOCK
    queries = scratch + 24 * BLOCK
    sums = queries + 4 * (together * R + ROWS) * size
    totals = sums + 4 * together * R * size
    packed = totals + TOTAL_BYTES * together * R
    gathered = packed + 4 * BLOCK * size  # keys, then values
    staged = gathered + 8 * BLOCK * size
    scores = staged + 2 * width * BLOCK * size
    bases = scores + max(ROW_BYTES * (R + ROWS), 4 * (SCORE_ROWS * BLOCK + size))

    # Scores are in powers of two, which saves the exponential a product.
    score_scale = scale / cap if cap > 0 else scale * LOG2_E
    for head in range(together):
        q_scale = score_scale
        if kv[KEY_SCALES] != 0:
            q_scale *= carray(_floats(kv[KEY_SCALES]), (K,))[first_head + head]
        sinks = 0 if kv[SINKS] == 0 else kv[SINKS] + 4 * (first_head + head) * G
        begin_rows(bases + 4 * head * R, totals + TOTAL_BYTES * head * R, sums + 4 * head * R * size, R, size, sinks, G)
        for query in range(first_q, end_q):
            for g in range(G):
                place = plan[plan[TOKENS] + query] * q_stride + ((first_head + head) * G + g) * D
                to = queries + query_bytes * (head * R + (query - first_q) * G + g)
                if dots:
                    round_query(q, dtype, place, D, size, to)
                else:
                    read_query(q, dtype, place, D, size, q_scale, to)

    segment, at = first_segment, plan[SEGMENTS] + first_segment * SEGMENT_FIELDS
    source, slot_bytes, value_offset = kv[KEYS] + width * first_head * D, width * kv[STRIDE], kv[VALUES] - kv[KEYS]
    block, num_keys, fetched = plan[at + 2], 0, False
    if segment < end_segment:
        num_keys = find_addresses(plan, at, block, source, slot_bytes, addresses)
    while segment < end_segment:
        low, high, base = plan[at], plan[at + 1], block * BLOCK
        block, num_coming = block + 1, 0
        if block == plan[at + 3]:
            segment, at = segment + 1, at + SEGMENT_FIELDS
            block = plan[at + 2]
        if segment < end_segment:
            num_coming = find_addresses(plan, at, block, source, slot_bytes, coming)
        low, high = queries_of_block(plan, low, high, base)
        few, slot_read = (high - low) * G <= _FEW_ROWS, together * width * D
        fetches = low < high and few and cached == FLOAT32 and size == D and num_coming > 0
        if not fetched and low < high:
            read_block(addresses, num_keys, 0, slot_read, scores)
            read_block(addresses, num_keys, value_offset, slot_read, scores)
        fetched = fetches and num_keys == BLOCK
        begins, ends = places + 8 * (plan[BEGINS] + low), places + 8 * (plan[ENDS] + low)
        for head in range(together if low < high else 0):
            row = head * R + (low - first_q) * G
            own, keys, values = addresses, width * head * D, value_offset + width * head * D
            if size > D:
                copy_block(own, keys, num_keys, width * D, width * size, staged)
                copy_block(own, values, num_keys, width * D, width * size, staged + width * BLOCK * size)
                own, keys, values = copies, 0, width * BLOCK * size
                set_addresses(staged, width * size, num_keys, own)
            q_rows, sums_rows = queries + query_bytes * row, sums + 4 * size * row
            bases_rows, totals_rows = bases + 4 * row, totals + TOTAL_BYTES * row
            if dots:
                pack_block(own, keys, num_keys, size, False, gathered)
                pack_block(own, values, num_keys, size, True, gathered + 2 * BLOCK * size)
                attend_block(
                    gathered, gathered + 2 * BLOCK * size, base, num_keys, size, q_rows, sums_rows, bases_rows,
                    totals_rows, begins, ends, high - low, G, score_scale, cap, scores,
                    coming if num_coming > 0 and (high - low) * G <= BLOCK else 0, width * head * D, value_offset,
                    kv[ON_TILES],
                )  # fmt: skip
                continue
            if cached != FLOAT32:
                gather(cached, own, keys, num_keys, size, gathered)
                gather(cached, own, values, num_keys, size, gathered + 4 * BLOCK * size)
                own, keys, values = copies, 0, 4 * BLOCK * size
                set_addresses(gathered, 4 * size, num_keys, own)
            keys_at = own
            if not few:
                pack_keys(own, keys, size, -(-num_keys // KEYS_AT_ONCE) * KEYS_AT_ONCE, packed)
                keys_at = packed
            _attend_floats(
                keys_at, keys, not few, own, values, coming if fetches else own, base, num_keys, size, q_rows,
                sums_rows, bases_rows, totals_rows, begins, ends, high - low, G, cap, scores,
            )  # fmt: skip
        num_keys, addresses, coming = num_coming, coming, addresses

    for head in range(together):
        out_scale = np.float32(1)
        if kv[VALUE_SCALES] != 0:
            out_scale = carray(_floats(kv[VALUE_SCALES]), (K,))[first_head + head]
        for query in range(first_q, end_q):
            for g in range(G):
                row = head * R + (query - first_q) * G + g
                place = plan[plan[TOKENS] + query] * out_stride + ((first_head + head) * G + g) * D
                factor = out_scale / total_weight(totals + TOTAL_BYTES * row)
                write_output(sums + 4 * size * row, D, factor, out, dtype, place)


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


@dataclass(frozen=True)
class CompiledAttention:
    """Attention of a step by compiled tasks, which threads share. `cap` is the soft cap of scores, 0 for none; `tiles`
    allows tile registers."""

    plan: AttentionPlan
    cap: float = 0.0
    tiles: bool = True
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
        array, descriptor = self.plan_of(group).array, kv_descriptor(kv, q_THD.dtype, tiles=self.tiles)
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
        return out_THD[..., : kv.value_dim]


def heads_together(kv: KvCache) -> int:
    """Return the number of key/value heads of a task, if there are enough tasks."""
    _, K, D = kv.k_SKD.shape
    heads = max(1, min(K, FETCH_BYTES // (D * kv.k_SKD.element_size())))
    return heads if K % heads == 0 else 1


def compiled_attention(
    args: AttentionArgs, cap: float | None = None, *, tiles: bool = True
) -> CompiledAttention | None:
    """Return the compiled attention of a step; None if it has other dtypes, or queries that see later ones."""
    if args.dtype not in QUERY_DTYPES or args.kv.k_SKD.dtype not in DTYPES or any(row.blocks for row in args.rows):
        return None
    plan = AttentionPlan.of(
        args.rows,
        page_size=args.page_size,
        window=args.window,
        group=args.num_heads // args.kv.k_SKD.shape[1],
        heads=heads_together(args.kv),
        threads=num_threads(),
    )
    return CompiledAttention(plan, cap or 0.0, tiles)
