"""Products of attention on a processor's tile registers (AMX): queries with a block's keys, weights with its values.

A block that is packed for dot products (`dots`) consists of tiles as it lies: 16 pairs of channels of 16 keys, and 16
pairs of keys of 16 channels. Rows go by tiles however few they are. So a row's bits depend on its own keys only, not on
chunks nor on who shares its prefix, as with dot products; but those round otherwise (`products.amx`).

Legend: R rows of a call (a query of one head, up to ROWS), BLOCK keys of a block, D head size (a multiple of CHANNELS).
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.extending import register_jitable

from ..instructions import HOST
from ..pointers import pointer_to
from ..products.amx import (
    TILE_HEIGHT,
    add_block,
    add_tile,
    compute_nothing,
    configure_rows,
    dot_block,
    release,
    store_sums,
    zero_sums,
)
from .inner import BLOCK, ROW_BYTES

ROWS = TILE_HEIGHT
CHANNELS = 32  # of a tile of queries: pairs of its channels, or of keys, are the rows of a tile of keys, or of values
_floats = pointer_to(types.float32)


@register_jitable  # type: ignore[untyped-decorator]
def _begin(state: int, num_rows: int) -> int:
    """Configure tiles for products of `num_rows` rows."""
    configure_rows(state, num_rows, 0)
    return 0


@register_jitable  # type: ignore[untyped-decorator]
def _end(state: int) -> int:
    """Give the tiles back."""
    release(state)
    return 0


@register_jitable  # type: ignore[untyped-decorator]
def _score(state: int, num_rows: int, queries: int, size: int, keys: int, scale: float, scores: int) -> int:
    """Write the scores of rows, ROW_BYTES each, with the packed keys of a block, times `scale`."""
    zero_sums(state)
    dot_block(state, size // 2, queries, 2 * size, keys, ROW_BYTES)
    store_sums(state, scores, ROW_BYTES)
    scores_RL = carray(_floats(scores), (num_rows * BLOCK,))
    for place in range(num_rows * BLOCK):
        scores_RL[place] *= scale
    return 0


@register_jitable  # type: ignore[untyped-decorator]
def _clear_values(values: int, size: int, num_keys: int) -> int:
    """Make packed values zero that are behind the last of `num_keys`, in tiles that have some before."""
    for pair in range((num_keys + 1) // 2, -(-num_keys // CHANNELS) * CHANNELS // 2):
        values_D = carray(_floats(values + 4 * size * pair), (size,))
        for d in range(size):
            values_D[d] = np.float32(0)
    return 0


@register_jitable  # type: ignore[untyped-decorator]
def _weigh(state: int, num_keys: int, weights: int, values: int, size: int, sums: int) -> int:
    """Add the first `num_keys` values of a packed block to rows of sums, by bfloat16 weights, ROW_BYTES a row."""
    pairs, d = -(-num_keys // CHANNELS) * CHANNELS // 2, 0
    while d + BLOCK <= size:
        add_block(state, pairs, weights, ROW_BYTES, values + 4 * d, 4 * size, sums + 4 * d, 4 * size)
        d += BLOCK
    while d < size:
        add_tile(state, pairs, weights, ROW_BYTES, values + 4 * d, 4 * size, sums + 4 * d, 4 * size)
        d += TILE_HEIGHT
    return 0


# For compiled loops, of a process that has `usable` tiles. `local_state` gives the address of a state.
begin = _begin if HOST.tiles else compute_nothing
end = _end if HOST.tiles else compute_nothing
score = _score if HOST.tiles else compute_nothing
clear_values = _clear_values if HOST.tiles else compute_nothing
weigh = _weigh if HOST.tiles else compute_nothing
