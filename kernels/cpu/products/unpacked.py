"""Groups of weights of codes as they are for many rows: unpacked to bytes once for all, a block of a panel at a time.

An unpacked group has signed codes, step by step of 4 inputs, 4 bytes for each output of the panel. Behind them are the
float32 scales of all outputs, a second set where half the inputs have one of their own, and the bases likewise.
`byte_tiles` multiplies these bytes; `widened` makes bfloat16s of them.

This module unpacks 4-bit and 8-bit codes; `block_matmul` has the block formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..instructions import HOST
from .amx import PANEL_BYTES
from .block_formats import GROUP
from .tile import I64, Tile, load_half

KINDS = ((1, 0), (1, 1), (2, 0), (2, 2))  # of groups: the numbers of their scales and of their bases
BLOCK_INPUTS = 2048  # of an unpacked block, 128 KiB of codes in the second cache
UNPACKED_BYTES = BLOCK_INPUTS * HOST.width + BLOCK_INPUTS // GROUP * 2 * PANEL_BYTES  # of one scale and one base
# How products may go by tiles: not at all, of bytes, or of rows packed in tiles with widened weights.
NO_TILES, BYTE_TILES, WIDENED_ROWS = range(3)
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


def write_codes(tile: Tile, codes: Callable[[int, int], Any], offset: int, to: Any) -> None:
    """Emit code that writes the codes of a GROUP less their offset; `codes(step, vector)` are those of four inputs."""
    middle = ir.Constant(tile.bytes, [offset % 256] * tile.bytes.count)
    for step in range(GROUP // 4):
        for vector in range(tile.num_vectors):
            value = codes(step, vector)
            if offset:
                value = tile.b.bitcast(tile.b.sub(tile.b.bitcast(value, tile.bytes), middle), tile.ints)
            tile.store(value, to, I64(4 * (step * tile.instructions.width + vector * tile.lanes)))


def write_numbers(tile: Tile, numbers: Sequence[Sequence[Any]], to: Any) -> None:
    """Emit code that writes scales and bases, by vector, one of each output at a time."""
    for index, values in enumerate(numbers):
        for vector, value in enumerate(values):
            tile.store(value, to, I64(4 * (index * tile.instructions.width + vector * tile.lanes)))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def unpack_codes(
    _: Any, bits: Any, codes: Any, scales: Any, bases: Any, group: Any, begin: Any, end: Any, scaled: Any, to: Any
) -> Any:
    """Unpack the groups [begin, end) of a panel of 4-bit or 8-bit codes (`packed_matrix`), given by addresses.

    With `scaled`, a literal 0 or 1, scales and bases are multiplied by their outputs' powers of two.
    """
    if not (isinstance(bits, types.IntegerLiteral) and isinstance(scaled, types.IntegerLiteral)):
        return None
    size, is_scaled = bits.literal_value, bool(scaled.literal_value)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        _, codes, scales, bases, group, begin, end, _, to = arguments
        tile, b = Tile(builder, HOST, 1, 1), builder
        offsets = [tile.lanes * vector for vector in range(tile.num_vectors)]
        pieces = b.sdiv(group, I64(GROUP))
        places = [b.add(scales, I64(4 * _WIDTH)), *([bases] if size == 4 else [])]
        group_bytes = b.add(b.mul(group, I64(_WIDTH)), I64(PANEL_BYTES * len(places)))
        factors = [tile.load(tile.pointer(scales), I64(4 * offset), tile.floats, 4) for offset in offsets]

        def halves(address: Any, index: Any) -> list[Any]:
            first = b.mul(index, I64(2 * _WIDTH))
            found = [load_half(tile, tile.pointer(address), b.add(first, I64(2 * offset))) for offset in offsets]
            return [b.fmul(*pair) for pair in zip(found, factors, strict=True)] if is_scaled else found

        def unpacked(index: Any, _: list[Any]) -> list[Any]:
            own = b.add(to, b.mul(b.sub(index, begin), group_bytes))

            def piece(number: Any, _: list[Any]) -> list[Any]:
                place = b.mul(b.add(b.mul(index, pieces), number), I64(GROUP * _WIDTH * size // 8))
                read = partial(group_codes, tile, (size,), tile.pointer(b.add(codes, place)))
                target = tile.pointer(b.add(own, b.mul(number, I64(GROUP * _WIDTH))))
                write_codes(tile, read, 1 << (size - 1), target)
                return []

            tile.loop(I64(0), pieces, [], piece)
            numbers = [halves(place, index) for place in places]
            write_numbers(tile, numbers, tile.pointer(b.add(own, b.mul(group, I64(_WIDTH)))))
            return []

        tile.loop(begin, end, [], unpacked)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 6, scaled, types.int64), generate
