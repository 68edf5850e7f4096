"""Writes a token's rotated keys, and values, to its slot of a layer's cache, in the format of the cache.

Legend: K key/value heads, D head size.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types

from ..attention.blocks import BASIS, DTYPE, HEAD_SIZE, KEY_SCALES, KEYS, KV_HEADS, STRIDE, VALUE_SCALES, VALUES
from ..attention.inner import BFLOAT16, BFLOAT16_DOTS, E4M3_CODES, E5M2_CODES, FLOAT32, INT8
from ..attention.scaled import LANES, store_scaled
from ..bfloat16 import narrow
from ..codes import nearest_code
from ..compiled import Ints, compiled_in_order
from ..pointers import pointer_to

STORED = (FLOAT32, BFLOAT16, BFLOAT16_DOTS, INT8, E4M3_CODES, E5M2_CODES)  # formats without scales of their own

_floats, _halves, _bytes = pointer_to(types.float32), pointer_to(types.uint16), pointer_to(types.uint8)


@compiled_in_order("int64(int64[::1])")
def scratch_floats(kv: Ints) -> int:
    """Return the float32s of scratch memory that `store_token` needs."""
    return 2 * kv[HEAD_SIZE] + LANES if kv[BASIS] != 0 else 0  # type: ignore[no-any-return]


@compiled_in_order("void(int64, int64, int64[::1], int64, int64, int64)")
def store_token(keys: int, values: int, kv: Ints, position: int, slot: int, scratch: int) -> None:
    """Store a token's keys and values, float32 [K D] at the addresses `keys` and `values`, in a slot of the cache.
    Behind the keys of a cache with a basis lie the values; both may be changed."""
    count, first, dtype = kv[KV_HEADS] * kv[HEAD_SIZE], slot * kv[STRIDE], kv[DTYPE]
    if kv[BASIS] != 0:
        store_scaled(keys, kv, position, slot, scratch)
        return
    k, v = carray(_floats(keys), (count,)), carray(_floats(values), (count,))
    if dtype == FLOAT32:
        stored_k = carray(_floats(kv[KEYS] + 4 * first), (count,))
        stored_v = carray(_floats(kv[VALUES] + 4 * first), (count,))
        for d in range(count):
            stored_k[d], stored_v[d] = k[d], v[d]
    elif dtype in (BFLOAT16, BFLOAT16_DOTS):
        half_k = carray(_halves(kv[KEYS] + 2 * first), (count,))
        half_v = carray(_halves(kv[VALUES] + 2 * first), (count,))
        for d in range(count):
            half_k[d], half_v[d] = narrow(k[d], half_k[d]), narrow(v[d], half_v[d])
    else:
        _store_codes(keys, kv, kv[KEY_SCALES], kv[KEYS] + first)
        _store_codes(values, kv, kv[VALUE_SCALES], kv[VALUES] + first)


@compiled_in_order("void(int64, int64[::1], int64, int64)")
def _store_codes(numbers: int, kv: Ints, scales: int, to: int) -> None:
    """Write the codes of float32 [K, D] over their head's scale. `scales` is the address of float32 [K], or 0."""
    K, D = kv[KV_HEADS], kv[HEAD_SIZE]
    x_KD, codes_KD = carray(_floats(numbers), (K, D)), carray(_bytes(to), (K, D))
    for head in range(K):
        scale = np.float32(1)
        if scales != 0:
            scale = carray(_floats(scales), (K,))[head]
        for d in range(D):
            codes_KD[head, d] = nearest_code(x_KD[head, d] / scale, kv[DTYPE])
