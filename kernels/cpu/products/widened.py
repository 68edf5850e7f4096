"""Weights of codes with scales by group, widened to bfloat16 a block of a panel at a time, as tiles take them (`amx`).

Many rows share what widening takes, and stay bfloat16s themselves: their products are faster than sums of codes that
are scaled by group, and rounded less than those of rows of int8. A weight is computed in float32 as its file's format
defines it, then rounded to the nearest bfloat16. A block stays in the second cache until all rows have met it.

This module emits code and multiplies by 4-bit and 8-bit codes; `block_matmul` has the block formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from ..instructions import HOST
from ..pointers import stack_memory
from .amx import (
    HALF_STEP_BYTES,
    MOST_ROWS,
    PANEL_BYTES,
    TILE_BYTES,
    TILE_HEIGHT,
    add_panel,
    begin_panels,
    end_panels,
    local_state,
    multiply_packed,
)
from .block_formats import GROUP
from .tile import I64, Tile, load_half

# Rows of a product from which on weights are widened: a guess, until a processor that has tiles measures it.
MIN_ROWS = 32
BLOCK_INPUTS = 2048  # a block of 64 outputs takes 256 KiB, an eighth of the second cache
HALF_BYTES = BLOCK_INPUTS // 2 * HALF_STEP_BYTES
MEMORY_BYTES = 2 * HALF_BYTES
SUMS_BYTES = MOST_ROWS * PANEL_BYTES if HOST.tiles else 64  # on the stack
_WIDTH = HOST.width


def group_codes(tile: Tile, planes: Sequence[int], words: Any, step: int, vector: int) -> Any:
    """Put the codes of four inputs of a group together from their planes of bits at `words`, a byte each."""
    b, width = tile.b, tile.instructions.width
    result, shift, at = None, 0, 0
    for bits in planes:
        index, place = divmod(step * bits, 8)
        value = tile.load(words, I64(4 * ((at + index) * width + vector * tile.lanes)), tile.ints, 4)
        if place > shift:
            value = b.lshr(value, tile.constant(place - shift))
        elif place < shift:
            value = b.shl(value, tile.constant(shift - place))
        mask = ((1 << bits) - 1 << shift) * 0x01010101
        value = b.and_(value, tile.constant(mask - (1 << 32) if mask >> 31 else mask))
        result = value if result is None else b.or_(result, value)
        shift, at = shift + bits, at + bits
    return result


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


def widen_integers(
    tile: Tile, bits: int, codes: Any, scales: Any, bases: Any, group: Any, begin: Any, end: Any, to: Any
) -> None:
    """Emit code that writes a panel's weights of the inputs [begin, end), whole GROUPs, as bfloat16s at `to`.

    Codes have 4 or 8 bits, those of 4 bases too; `packed_matrix` has the layouts. Arrays are given by their addresses.
    """
    b, width, form_offset = tile.b, tile.instructions.width, 1 << (bits - 1)
    vectors = range(tile.num_vectors)
    scales, bases = tile.pointer(scales), tile.pointer(bases)
    factors = [tile.load(scales, I64(4 * tile.lanes * vector), tile.floats, 4) for vector in vectors]

    def piece(index: Any, _: list[Any]) -> list[Any]:
        first_half = b.mul(b.sdiv(b.mul(index, I64(GROUP)), group), I64(2 * width))

        def numbers(halves: Any) -> list[Any]:  # factors are powers of two
            places = [b.add(first_half, I64(2 * tile.lanes * vector)) for vector in vectors]
            return [b.fmul(load_half(tile, halves, place), by) for place, by in zip(places, factors, strict=True)]

        words = tile.pointer(b.add(codes, b.mul(index, I64(GROUP * width * bits // 8))))
        place = b.mul(b.sub(index, b.sdiv(begin, I64(GROUP))), I64(GROUP // 2 * HALF_STEP_BYTES))
        widen_group(
            tile,
            partial(group_codes, tile, (bits,), words),
            form_offset,
            [numbers(b.gep(scales, [I64(4 * width)]))],
            [numbers(bases)] if bits == 4 else [],
            tile.pointer(b.add(to, place)),
        )
        return []

    tile.loop(b.sdiv(begin, I64(GROUP)), b.sdiv(end, I64(GROUP)), [], piece)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _widen(_: Any, bits: Any, codes: Any, scales: Any, bases: Any, group: Any, begin: Any, end: Any, to: Any) -> Any:
    """Run the code of `widen_integers`, of a constant number of bits."""
    if not isinstance(bits, types.IntegerLiteral):
        return None

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        widen_integers(Tile(builder, HOST, 1, 1), bits.literal_value, *arguments[1:])
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 7), generate


@register_jitable  # type: ignore[untyped-decorator]
def _multiply_widened(
    is_int4: bool,
    panels: int,
    C: int,
    group: int,
    codes: int,
    panel_bytes: int,
    scales: int,
    scale_bytes: int,
    bases: int,
    base_bytes: int,
    bias: int,
    x: int,
    x_bytes: int,
    T: int,
    y: int,
    y_bytes: int,
    outputs: int,
    is_packed: int,
) -> None:
    """Write the products of T bfloat16 rows and panels of 4-bit or 8-bit codes, whose addresses are those of the first
    one's. Panels are whole, or rows are packed in tiles, MOST_ROWS or fewer."""
    memory = stack_memory(MEMORY_BYTES)
    sums = stack_memory(SUMS_BYTES)
    for begin in range(0, C if is_packed else 0, BLOCK_INPUTS):
        end = min(begin + BLOCK_INPUTS, C)
        for panel in range(panels):
            own, factors, offsets = (
                codes + panel * panel_bytes,
                scales + panel * scale_bytes,
                bases + panel * base_bytes,
            )
            if is_int4:
                _widen(4, own, factors, offsets, group, begin, end, memory)
            else:
                _widen(8, own, factors, offsets, group, begin, end, memory)
            multiply_packed(
                T, begin // 2, end // 2, C // 2, memory - begin // 2 * HALF_STEP_BYTES, HALF_BYTES,
                bias + panel * _WIDTH * 4, x, sums, y + panel * _WIDTH * 4, y_bytes,
                min(_WIDTH, outputs - panel * _WIDTH),
            )  # fmt: skip
    state = local_state()
    begin_panels(state)
    for panel in range(0 if is_packed else panels):
        own, factors, offsets = codes + panel * panel_bytes, scales + panel * scale_bytes, bases + panel * base_bytes
        for begin in range(0, C, BLOCK_INPUTS):
            end, first = min(begin + BLOCK_INPUTS, C), begin // 2
            if is_int4:
                _widen(4, own, factors, offsets, group, begin, end, memory)
            else:
                _widen(8, own, factors, offsets, group, begin, end, memory)
            weights, to = memory - first * HALF_STEP_BYTES, y + panel * _WIDTH * 4
            add_panel(
                state, T, first, end // 2, C // 2, weights, HALF_BYTES, bias + panel * _WIDTH * 4, x, x_bytes, to,
                y_bytes,
            )  # fmt: skip
    end_panels(state)


@register_jitable  # type: ignore[untyped-decorator]
def _multiply_nothing(*_arguments: int) -> None:
    return


multiply_widened = _multiply_widened if HOST.tiles else _multiply_nothing  # for compiled loops
