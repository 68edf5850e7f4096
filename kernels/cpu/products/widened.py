"""Weights of block formats widened to bfloat16, a block of a panel at a time, as tiles take them (`amx`).

The many rows of a prompt share what widening takes, and are bfloat16s themselves: their products are faster than sums
of codes that are scaled by group, and rounded less than those of rows of int8. A weight is computed in float32 as its
file's format defines it, then rounded to the nearest bfloat16. A block stays in the second cache until all rows have
met it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from .amx import HALF_STEP_BYTES, TILE_BYTES, TILE_HEIGHT
from .block_formats import GROUP
from .tile import I64, Tile

# Rows of a product from which on weights are widened: more than the decode rows, drafts and forced text of a step,
# whose answers would depend on how many they are.
MIN_ROWS = 256
BLOCK_INPUTS = 2048  # a block of 64 outputs takes 256 KiB, an eighth of the second cache
HALF_BYTES = BLOCK_INPUTS // 2 * HALF_STEP_BYTES
MEMORY_BYTES = 2 * HALF_BYTES


def _place(step: int, output: int) -> int:
    """Return where the pair of a step of a group and an output lies in a panel of tiles (`amx`)."""
    half, column = divmod(output, 32)
    tile, column = divmod(column, TILE_HEIGHT)
    return half * HALF_BYTES + tile * TILE_BYTES + 64 * step + 4 * column


def widen_group(
    tile: Tile,
    codes: Callable[[int, int], Any],
    offset: int,
    scales: Sequence[Sequence[Any]],
    bases: Sequence[Sequence[Any]],
    to: Any,
) -> None:
    """Emit code that writes a group's weights, (code - offset) * scale + base, as tiles of bfloat16s at `to`.

    `codes(step, vector)` are those of four inputs. Scales and bases, if there are any, are by scale and vector. No
    operation is fused.
    """
    b, steps = tile.b, GROUP // 4
    middle = ir.Constant(tile.bytes, [offset] * tile.bytes.count)
    for step in range(steps):
        part = step * len(scales) // steps
        for vector in range(tile.num_vectors):
            numbers, four = [], b.bitcast(codes(step, vector), tile.bytes)
            less = b.bitcast(b.sub(four, middle) if offset else four, tile.ints)
            for place in range(4):
                moved = b.shl(less, tile.constant(24 - 8 * place)) if place < 3 else less
                number = b.sitofp(b.ashr(moved, tile.constant(24)), tile.floats)
                number = b.fmul(number, scales[part][vector])
                numbers.append(b.fadd(number, bases[part][vector]) if bases else number)
            for pair in range(2):
                word = tile.paired(*numbers[2 * pair : 2 * pair + 2])
                tile.store(word, to, I64(_place(2 * step + pair, vector * tile.lanes)))
