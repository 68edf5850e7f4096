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
from .amx import PANEL_BYTES, add_panel
from .block_formats import GROUP
from .tile import I8, I64, Tile, load_half

# Rows of a product from which on weights are widened: a guess, until a processor that has tiles measures it.
MIN_ROWS = 32
BLOCK_INPUTS = 2048  # a block of 64 outputs takes 256 KiB, an eighth of the second cache
_WIDTH = HOST.width


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def stack_memory(_: Any, num_bytes: Any) -> Any:
    """Reserve memory on the stack, a constant number of bytes; return its address."""
    if not isinstance(num_bytes, types.IntegerLiteral):
        return None

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(I8, num_bytes.literal_value))
        memory.align = 64
        return builder.ptrtoint(memory, I64)

    return types.int64(num_bytes), generate


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


def widen_group(
    tile: Tile,
    codes: Callable[[int, int], Any],
    offset: int,
    scales: Sequence[Sequence[Any]],
    bases: Sequence[Sequence[Any]],
    to: Any,
) -> None:
    """Emit code that writes a group's weights, (code - offset) * scale + base, as bfloat16s at `to`.

    `codes(step, vector)` are those of four inputs. Scales and bases, if there are any, are by scale and vector. No
    operation is fused.
    """
    b, width, steps = tile.b, tile.instructions.width, GROUP // 4
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
                tile.store(word, to, I64(4 * ((2 * step + pair) * width + vector * tile.lanes)))


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
        place = b.mul(b.sub(index, b.sdiv(begin, I64(GROUP))), I64(GROUP // 2 * 4 * width))
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
) -> None:
    """Write the products of T bfloat16 rows and whole panels of 4-bit or 8-bit codes, whose addresses are those of the
    first one's."""
    memory = stack_memory(_MEMORY_BYTES)
    for panel in range(panels):
        own, factors, offsets = codes + panel * panel_bytes, scales + panel * scale_bytes, bases + panel * base_bytes
        for begin in range(0, C, BLOCK_INPUTS):
            end, first = min(begin + BLOCK_INPUTS, C), begin // 2
            if is_int4:
                _widen(4, own, factors, offsets, group, begin, end, memory)
            else:
                _widen(8, own, factors, offsets, group, begin, end, memory)
            weights, to = memory - first * PANEL_BYTES, y + panel * _WIDTH * 4
            add_panel(T, first, end // 2, C // 2, weights, bias + panel * _WIDTH * 4, x, x_bytes, to, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def _multiply_nothing(*_arguments: int) -> None:
    return


_MEMORY_BYTES = BLOCK_INPUTS // 2 * PANEL_BYTES
multiply_widened = _multiply_widened if HOST.tiles else _multiply_nothing  # for compiled loops
