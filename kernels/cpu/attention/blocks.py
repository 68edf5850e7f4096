"""Blocks of keys and values as compiled attention meets them: a cache's descriptor, and the products of a tile's rows.

Legend: T tokens, S slots, H query heads, K key/value heads, D head size, R rows of a tile (a query of one head).
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray, types

from ...kv_cache import KvCache
from ...reference.quantise import E4M3, E5M2, PACKED_INT4
from ..compiled import Ints, compiled_in_order
from ..instructions import HOST
from ..pointers import pointer_to
from ..products.amx import usable
from .basis import arrays_of
from .inner import (
    BFLOAT16,
    BFLOAT16_DOTS,
    E4M3_CODES,
    E5M2_CODES,
    FLOAT16,
    FLOAT32,
    FOUR_BITS,
    INT8,
    LOG2_E,
    NO_BASE,
    ROW_BYTES,
    score_rows,
    weigh_values,
)

LANES = HOST.lanes

# Codes of dtypes.
DTYPES = {
    torch.float32: FLOAT32,
    torch.bfloat16: BFLOAT16,
    torch.float16: FLOAT16,
    E4M3: E4M3_CODES,
    E5M2: E5M2_CODES,
    torch.int8: INT8,
    PACKED_INT4: FOUR_BITS,
}
QUERY_DTYPES = (torch.float32, torch.bfloat16)
# Numbers of a cache's descriptor. The stride is that of slots, in numbers; scales are addresses of float32 [K], or 0.
# `SINKS` is the address of float32 [H], logits without values, or 0; `BASIS` that of a `BasisArrays.words`, or 0, and
# `HEAD_BYTES` the bytes of a key or value in a cache that has one. `ON_TILES` is 1 if products of BFLOAT16_DOTS go by
# tile registers, else 0.
KEYS, VALUES, STRIDE, KV_HEADS, HEAD_SIZE, DTYPE, KEY_SCALES, VALUE_SCALES, SINKS, BASIS = range(10)
HEAD_BYTES, ON_TILES, DESCRIPTOR = range(10, 13)

ROWS_TOGETHER = 16  # rows that meet the same keys of a block: as far as any of them sees

_floats = pointer_to(types.float32)

_score_1, _score_2 = score_rows(1, in_place=True), score_rows(2, in_place=True)
_score_2_packed, _score_4_packed = score_rows(2, in_place=False), score_rows(4, in_place=False)
_WIDE = HOST.vectors  # vectors of four rows: their sums stay in registers
_weigh_1, _weigh_2 = weigh_values(1, 4, fetches=True), weigh_values(2, 4, fetches=True)
_weigh_4 = weigh_values(4, _WIDE)
_weigh_1_rest, _weigh_2_rest = weigh_values(1, 1, fetches=True), weigh_values(2, 1, fetches=True)
_weigh_4_rest = weigh_values(4, 1)


def kv_descriptor(kv: KvCache, queries: torch.dtype, *, tiles: bool = True) -> Ints:
    """Return the layer's cache as the loops take it, int64 [DESCRIPTOR]. It holds addresses: the tensors must live as
    long. `queries` is the precision that queries and weights need: with bfloat16, loops may round them. `tiles` allows
    tile registers."""
    scales = (0 if scale_K is None else scale_K.data_ptr() for scale_K in (kv.k_scale_K, kv.v_scale_K))
    _, K, size = kv.k_SKD.shape
    stride, D = kv.k_SKD.stride(0), kv.head_dim
    assert kv.k_SKD.stride() == kv.v_SKD.stride() == (stride, size, 1)
    dots = HOST.bfloat16_dot and kv.k_SKD.dtype == queries == torch.bfloat16
    dtype = BFLOAT16_DOTS if dots else DTYPES[kv.k_SKD.dtype]
    basis = 0 if kv.basis is None else arrays_of(kv.basis).words.ctypes.data
    on_tiles = int(dots and tiles and usable())
    return np.array([kv.k_SKD.data_ptr(), kv.v_SKD.data_ptr(), stride, K, D, dtype, *scales, 0, basis, size, on_tiles])


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64)")
def begin_rows(bases: int, totals: int, sums: int, num_rows: int, size: int, sinks: int, group: int) -> None:
    """Set what rows of one key/value head have seen: nothing, or the sinks of `group` heads at an address."""
    base_R, total_RL = carray(_floats(bases), (num_rows,)), carray(_floats(totals), (num_rows, LANES))
    carray(_floats(sums), (num_rows, size))[:] = 0
    total_RL[:] = 0
    for row in range(num_rows):
        base_R[row] = NO_BASE
        if sinks != 0:
            base_R[row] = max(carray(_floats(sinks), (group,))[row % group] * LOG2_E, NO_BASE)
            total_RL[row, 0] = 1


@compiled_in_order("void(int64, int64, int64, int64, int64, boolean, int64, int64, int64, int64)")
def score(
    q: int, num_rows: int, size: int, keys: int, offset: int, packed: bool, num_keys: int, scores: int, coming: int,
    to_values: int,
) -> None:  # fmt: skip
    """Write the scores of all rows with a block's keys, and of up to ROWS - 1 more that do not exist."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        queries, to = q + 4 * row * size, scores + ROW_BYTES * row
        if packed and left > 2:
            _score_4_packed(queries, size, keys, 0, num_keys, to, 0, 0)
            row += 4
        elif packed:
            _score_2_packed(queries, size, keys, 0, num_keys, to, 0, 0)
            row += 2
        elif left == 2:
            _score_2(queries, size, keys, offset, num_keys, to, coming, to_values)
            row += 2
        else:
            _score_1(queries, size, keys, offset, num_keys, to, coming, to_values)
            row += 1


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def weigh(
    weights: int, num_rows: int, size: int, values: int, num: int, offset: int, sums: int, coming: int, to_keys: int
) -> None:
    """Add a block's values to the sums of all rows, by their weights."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        count = 4 if left >= 4 else 2 if left >= 2 else 1
        w, to = weights + ROW_BYTES * row, sums + 4 * row * size
        wide = (_WIDE if count == 4 else 4) * LANES
        d = 0
        while d < size:
            rest = d + wide > size
            v, at = offset + 4 * d, to + 4 * d
            if count == 4 and rest:
                _weigh_4_rest(w, values, num, v, at, 4 * size, coming, to_keys)
            elif count == 4:
                _weigh_4(w, values, num, v, at, 4 * size, coming, to_keys)
            elif count == 2 and rest:
                _weigh_2_rest(w, values, num, v, at, 4 * size, coming, to_keys)
            elif count == 2:
                _weigh_2(w, values, num, v, at, 4 * size, coming, to_keys)
            elif rest:
                _weigh_1_rest(w, values, num, v, at, 4 * size, coming, to_keys)
            else:
                _weigh_1(w, values, num, v, at, 4 * size, coming, to_keys)
            d += LANES if rest else wide
        row += count
