"""Plan of a step's compiled attention, and the addresses of the keys of its blocks. `plan_array` says how it is made.

Legend: T tokens, R rows, P pages of all rows, N nodes of all draft trees, O wanted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numba import carray, types

from ...arguments import Chunk, RowSpan
from ..compiled import Ints, compiled
from ..pointers import pointer_to
from .inner import BLOCK
from .plan_array import BEGINS, ENDS, TILE_ROWS, make_plan, make_wanted_plan

_STREAMS = 8  # runs of a block's keys, 4 kB each if a slot has 512 bytes

_ints, _bytes = pointer_to(types.int64), pointer_to(types.uint8)


@dataclass(frozen=True)
class AttentionPlan:
    """Rows of a step as flat arrays, and the plan of all their tokens."""

    array: Ints  # as `plan_array` describes it
    first_R: Ints
    num_R: Ints
    pages_P: Ints
    page_starts_R: Ints
    parents_N: Ints
    num_nodes_R: Ints
    page_size: int
    window: int  # 0: none; -c: chunks of c
    group: int
    heads: int
    threads: int

    @classmethod
    def of(
        cls,
        rows: Sequence[RowSpan],
        *,
        page_size: int,
        window: int | None,
        group: int,
        heads: int = 1,
        threads: int = 1,
    ) -> AttentionPlan:
        """Plan causal attention over `rows`, as `Ops.attention` defines it, with `group` query heads for each key/value
        head. A task takes `heads` of the latter, unless `threads` have less to do then than one of them."""
        R = len(rows)
        tree_R = [row.tree for row in rows]
        flat = (
            np.fromiter((row.first_position for row in rows), np.int64, R),
            np.fromiter((row.num_tokens for row in rows), np.int64, R),
            np.concatenate([row.pages for row in rows]),
            np.cumsum([0, *(len(row.pages) for row in rows)]),
            np.fromiter(chain.from_iterable(tree_R), np.int64),
            np.fromiter(map(len, tree_R), np.int64, R),
        )
        settings = page_size, window_number(window), group, heads, threads
        return cls(make_plan(*flat, *settings, TILE_ROWS), *flat, *settings)

    def with_group(self, group: int) -> AttentionPlan:
        """Return the plan of the same rows for another number of query heads for each key/value head."""
        flat = (
            self.first_R,
            self.num_R,
            self.pages_P,
            self.page_starts_R,
            self.parents_N,
            self.num_nodes_R,
        )
        settings = self.page_size, self.window, group, self.heads, self.threads
        return AttentionPlan(make_plan(*flat, *settings, TILE_ROWS), *flat, *settings)

    def array_of(self, wanted_O: Ints) -> Ints:
        """Return the plan's array for a layer of which only some tokens' attention is read: rows begin to attend at
        their first wanted token, and those without one do not attend."""
        flat = self.first_R, self.num_R, self.pages_P, self.page_starts_R, self.parents_N, self.num_nodes_R
        settings = self.page_size, self.window, self.group, self.heads, self.threads
        return make_wanted_plan(*flat, *settings, TILE_ROWS, wanted_O)


def window_number(window: int | None) -> int:
    """Return a window as loops take it: 0 for none, -c for chunks of c."""
    return -window if isinstance(window, Chunk) else window or 0


@compiled("int64(int64[::1], int64, int64, int64, int64, int64)")
def find_addresses(plan: Ints, segment: int, block: int, source: int, slot_bytes: int, addresses: int) -> int:
    """Write the addresses of a block's keys, then that of the last key for those that are missing; return the number of
    keys.

    `segment` is the place of a segment in the plan, `source` the address of the cache's first key, `addresses` that
    of BLOCK int64s.
    """
    addresses_L = carray(_ints(addresses), (BLOCK,))
    unit, table = plan[segment + 4], plan[segment + 5]
    num = min(plan[segment + 6] - block * BLOCK, BLOCK)
    page, within, key = table + block * BLOCK // unit, block * BLOCK % unit, 0
    while key < num:
        count = min(unit - within, num - key)
        first = source + (plan[page] * unit + within) * slot_bytes
        for slot in range(count):
            addresses_L[key + slot] = first + slot * slot_bytes
        page, within, key = page + 1, 0, key + count
    for missing in range(num, BLOCK):
        addresses_L[missing] = addresses_L[num - 1]
    return num  # type: ignore[no-any-return]


@compiled("UniTuple(int64, 2)(int64[::1], int64, int64, int64)")
def queries_of_block(plan: Ints, low: int, high: int, base: int) -> tuple[int, int]:
    """Return the queries [low, high) without the first and the last that see no place of the block from `base` on."""
    while low < high and (plan[plan[ENDS] + low] <= base or plan[plan[BEGINS] + low] >= base + BLOCK):
        low += 1
    while low < high and (plan[plan[ENDS] + high - 1] <= base or plan[plan[BEGINS] + high - 1] >= base + BLOCK):
        high -= 1
    return low, high


@compiled("void(int64, int64, int64, int64, int64)")
def read_block(addresses: int, num: int, offset: int, num_bytes: int, to: int) -> None:
    """Read the bytes of keys, or of what lies `offset` bytes behind them, into the caches. A byte is written to `to`.

    Loads, because the processor drops fetches when many are under way. The lines of `_STREAMS` runs of keys take turns:
    the processor's own prefetching follows so many at once.
    """
    addresses_L = carray(_ints(addresses), (BLOCK,))
    run, found = -(-num // _STREAMS), 0
    for key in range(run):
        for byte in range(offset, offset + num_bytes, 64):
            for stream in range(_STREAMS):
                found |= carray(_bytes(addresses_L[min(stream * run + key, num - 1)] + byte), (1,))[0]
    carray(_bytes(to), (1,))[0] = found


@compiled("void(int64, int64, int64, int64, int64, int64)")
def copy_block(addresses: int, offset: int, num: int, num_bytes: int, to_bytes: int, to: int) -> None:
    """Copy the bytes of keys, or of what lies `offset` bytes behind them, with zeros up to `to_bytes` for each."""
    addresses_L = carray(_ints(addresses), (BLOCK,))
    for key in range(num):
        row = carray(_bytes(addresses_L[key] + offset), (num_bytes,))
        copy = carray(_bytes(to + key * to_bytes), (to_bytes,))
        for byte in range(num_bytes):
            copy[byte] = row[byte]
        for byte in range(num_bytes, to_bytes):
            copy[byte] = 0


@compiled("void(int64, int64, int64, int64)")
def set_addresses(first: int, step: int, num: int, addresses: int) -> None:
    """Write the addresses of a block's `num` copies, then that of the last one for those behind."""
    addresses_L = carray(_ints(addresses), (BLOCK,))
    for key in range(BLOCK):
        addresses_L[key] = first + step * min(key, num - 1)
