"""Weights of codes with scales by group widened to bfloat16, a block of a panel at a time, as tiles take them (`amx`).

The many rows of a prompt share what widening takes, and are bfloat16s themselves: their products are faster than sums
of codes that are scaled by group, and rounded less than those of rows of int8. A weight is computed in float32 as its
file's format defines it, then rounded to the nearest bfloat16. A block stays in the second cache until all rows have
met it.

Blocks are unpacked first, as for `byte_tiles`, so this module knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.extending import intrinsic

from .... import loops
from ..instructions import HOST
from .amx import HALF_STEP_BYTES, PANEL_BYTES, TILE_BYTES, TILE_HEIGHT, compute_nothing, multiply_packed
from .block_formats import GROUP
from .tile import I64, Tile, emit_choice
from .unpacked import BLOCK_INPUTS, KINDS

HALF_BYTES = BLOCK_INPUTS // 2 * HALF_STEP_BYTES
MEMORY_BYTES = 2 * HALF_BYTES  # an eighth of the second cache


def _place(step: int, output: int) -> int:
    """Return where the pair of a step of a group and an output lies in a panel of tiles (`amx`)."""
    half, column = divmod(output, 32)
    tile, column = divmod(column, TILE_HEIGHT)
    return half * HALF_BYTES + tile * TILE_BYTES + 64 * step + 4 * column


def _widen_group(
    tile: Tile,
    codes: Callable[[int, int], Any],
    scales: Sequence[Sequence[Any]],
    bases: Sequence[Sequence[Any]],
    to: Any,
) -> None:
    """Emit code that writes a group's weights, code * scale + base, as tiles of bfloat16s at `to`.

    `codes(step, vector)` are those of four inputs. Scales and bases, if there are any, are by scale and vector. No
    operation is fused.
    """
    b, steps = tile.b, GROUP // 4
    for step in range(steps):
        part = step * len(scales) // steps
        for vector in range(tile.num_vectors):
            numbers, four = [], codes(step, vector)
            for place in range(4):
                moved = b.shl(four, tile.constant(24 - 8 * place)) if place < 3 else four
                number = b.sitofp(b.ashr(moved, tile.constant(24)), tile.floats)
                number = b.fmul(number, scales[part][vector])
                numbers.append(b.fadd(number, bases[part][vector]) if bases else number)
            for pair in range(2):
                word = tile.paired(*numbers[2 * pair : 2 * pair + 2])
                tile.store(word, to, I64(_place(2 * step + pair, vector * tile.lanes)))


def widen_groups(tile: Tile, num_scales: int, num_bases: int, unpacked: Any, groups: Any, group: Any, to: Any) -> None:
    """Emit code that writes the weights of unpacked groups as bfloat16s, one group behind the other at `to`."""
    b = tile.b
    codes_bytes = b.mul(group, I64(HOST.width))
    record_bytes = b.add(codes_bytes, I64(PANEL_BYTES * (num_scales + num_bases)))
    offsets = [I64(4 * tile.lanes * vector) for vector in range(tile.num_vectors)]

    def one(index: Any, _: list[Any]) -> list[Any]:
        record = b.add(unpacked, b.mul(index, record_bytes))
        sets = [b.add(record, b.add(codes_bytes, I64(PANEL_BYTES * place))) for place in range(num_scales + num_bases)]
        numbers = [[tile.load(tile.pointer(at), offset, tile.floats, 4) for offset in offsets] for at in sets]
        first = b.add(to, b.mul(index, b.mul(group, I64(HALF_STEP_BYTES // 2))))

        def piece(number: Any, _: list[Any]) -> list[Any]:
            codes = tile.pointer(b.add(record, b.mul(number, I64(GROUP * HOST.width))))

            def four(step: int, vector: int) -> Any:
                return tile.load(codes, I64(PANEL_BYTES * step + 4 * tile.lanes * vector), tile.ints, 4)

            target = tile.pointer(b.add(first, b.mul(number, I64(GROUP // 2 * HALF_STEP_BYTES))))
            _widen_group(tile, four, numbers[:num_scales], numbers[num_scales:], target)
            return []

        return tile.loop(I64(0), b.sdiv(group, I64(GROUP)), [], piece)

    tile.loop(I64(0), groups, [], one)


@intrinsic  # type: ignore[untyped-decorator]
def _widen(_: Any, kind: Any, unpacked: Any, groups: Any, group: Any, to: Any) -> Any:
    """Run the code of `widen_groups` for groups of one of KINDS."""

    def emit(builder: Any, place: int, arguments: Sequence[Any]) -> None:
        widen_groups(Tile(builder, HOST, 1, 1), *KINDS[place], *arguments)

    return types.void(*[types.int64] * 5), emit_choice(len(KINDS), emit)


def _multiply_widened(
    T: int,
    kind: int,
    group: int,
    begin: int,
    end: int,
    C: int,
    unpacked: int,
    memory: int,
    bias: int,
    x: int,
    sums: int,
    y: int,
    y_bytes: int,
    width: int,
) -> None:
    """Add the products of T rows packed in tiles and the unpacked inputs [begin, end) of a panel to `width` outputs in
    y, which begin with the bias. Weights are widened in `memory`; sums lie together in `sums`."""
    _widen(kind, unpacked, (end - begin) // group, group, memory)
    weights = memory - begin // 2 * HALF_STEP_BYTES
    multiply_packed(T, begin // 2, end // 2, C // 2, weights, HALF_BYTES, bias, x, sums, y, y_bytes, width)


_once = loops.compiled_once(f"void({', '.join(['int64'] * 14)})", error_model="numpy")
multiply_widened = _once(_multiply_widened) if HOST.tiles else compute_nothing
