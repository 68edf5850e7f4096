"""Products of float32 rows with panels of block formats: rows are rounded to int8, then multiplied by each format's
loop (`block_matmul`), which is called by its address.

These loops and those of a file's formats are all that a GGUF model needs to answer while plain torch computes the
rest, so they are few and small, and the process that compiles them imports no torch.

Legend: T rows, C inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from .... import loops
from ..instructions import HOST
from ..pointers import get, put
from .amx import packed_place
from .block_formats import GROUP
from .tile import F32, I8, I32, I64, Tile

GROUP_BYTES = GROUP + 12  # of a rounded row: int8 codes, a float32 scale, int32 sums of codes and of their first half
SECTION_BYTES = 40
_GROUP_INTS = ir.VectorType(I32, GROUP)
_WIDTH = HOST.width


@loops.compiled("float32(int64)", error_model="numpy")
def scale_of(largest: int) -> np.float32:
    """Return the scale of numbers whose largest magnitude has these bits; NaN if that is not finite."""
    if largest >= np.int64(0x7F800000):
        return np.float32(np.nan)
    return np.int32(largest).view(np.float32) / np.float32(127)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def _largest_magnitude(_: Any, x: Any) -> Any:
    """Return the bits of the largest magnitude of the GROUP floats at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        bits = builder.load(builder.inttoptr(arguments[0], _GROUP_INTS.as_pointer()))
        bits.align = 4
        magnitudes = builder.and_(bits, ir.Constant(_GROUP_INTS, [0x7FFFFFFF] * GROUP))
        kind = ir.FunctionType(I32, [_GROUP_INTS])
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.smax.v{GROUP}i32")
        return builder.zext(builder.call(function, [magnitudes]), I64)

    return types.int64(x), generate


@intrinsic  # type: ignore[untyped-decorator]
def _write_codes(_: Any, x: Any, inverse: Any, codes: Any, total: Any, half: Any) -> Any:
    """Write the int8 codes of a group, the floats at `x` times `inverse`, their sum and that of the first half."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        b, (x, inverse, codes, total, half) = builder, arguments
        floats, numbers = ir.VectorType(F32, GROUP), list(range(GROUP))
        values = b.load(b.inttoptr(x, floats.as_pointer()))
        values.align = 4
        nothing = ir.Constant(floats, ir.Undefined)
        same = ir.Constant(_GROUP_INTS, [0] * GROUP)
        factor = b.shuffle_vector(b.insert_element(nothing, inverse, I32(0)), nothing, same)
        # Added to 1.5 * 2^23, a number is rounded to an integer, ties to even, in the lowest bits.
        moved = b.fadd(b.fmul(values, factor), ir.Constant(floats, [12582912.0] * GROUP))
        found = b.sub(b.bitcast(moved, _GROUP_INTS), ir.Constant(_GROUP_INTS, [0x4B400000] * GROUP))
        kind = ir.VectorType(I8, GROUP)
        b.store(b.trunc(found, kind), b.inttoptr(codes, kind.as_pointer())).align = 1
        for size, to in ((GROUP, total), (GROUP // 2, half)):
            some = ir.VectorType(I32, size)
            part = b.shuffle_vector(found, found, ir.Constant(some, numbers[:size]))
            function = cgutils.get_or_insert_function(
                b.module, ir.FunctionType(I32, [some]), f"llvm.vector.reduce.add.v{size}i32"
            )
            b.store(b.call(function, [part]), b.inttoptr(to, I32.as_pointer())).align = 4
        return _context.get_dummy_value()

    return types.void(x, inverse, codes, total, half), generate


@intrinsic  # type: ignore[untyped-decorator]
def _write_wide(_: Any, x: Any, to: Any) -> Any:
    """Write a GROUP of floats as bfloat16s. For a processor with tiles, whose vectors have 16 lanes."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        tile = Tile(builder, HOST, 1, 1)
        source, target = map(tile.pointer, arguments)
        for first in range(0, GROUP, 2 * tile.lanes):
            low, high = (tile.load(source, I64(4 * place), tile.floats, 4) for place in (first, first + tile.lanes))
            tile.store(tile.round_to_pairs(low, high), target, I64(2 * first))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@register_jitable  # type: ignore[untyped-decorator]
def _round_to_bfloat16(x: int, C: int, to: int) -> None:
    for first in range(0, C, GROUP):
        _write_wide(x + 4 * first, to + 2 * first)


@register_jitable  # type: ignore[untyped-decorator]
def _round_nothing(_x: int, _C: int, _to: int) -> None:
    return


# Writes a row of floats as bfloat16s, of whole GROUPs.
round_to_bfloat16 = _round_to_bfloat16 if HOST.tiles else _round_nothing


@loops.compiled("void(int64, int64, int64, int64, int64)", error_model="numpy")
def pack_in_tiles(x: int, C: int, first_row: int, last_row: int, prepared: int) -> None:
    """Write the rows [first_row, last_row) as bfloat16s to their places in tiles (`amx.packed_place`).

    `x` is the address of the first of them, of whole GROUPs of float32s.
    """
    for t in range(first_row, last_row):
        for c in range(0, C, GROUP):
            place = prepared + packed_place(t, c // 2, C // 2)
            round_to_bfloat16(x + 4 * (C * (t - first_row) + c), GROUP, place)


@loops.compiled("void(int64, int64, int64, int64, int64)", error_model="numpy")  # without fused operations
def round_rows(x: int, C: int, first_row: int, last_row: int, prepared: int) -> None:
    """Round some rows of the float32 ones at address `x` to int8 by groups of GROUP inputs, to their places of
    `prepared`: codes, then each group's scale, sum of codes and sum of its first half's; some scales of `block_formats`
    have half a group. A group's scale is NaN if one of its numbers is not finite."""
    groups = C // GROUP
    for t in range(first_row, last_row):
        row, out = x + 4 * C * t, prepared + groups * GROUP_BYTES * t
        scales, sums, half_sums = out + groups * GROUP, out + groups * (GROUP + 4), out + groups * (GROUP + 8)
        for g in range(groups):
            scale = scale_of(_largest_magnitude(row + 4 * GROUP * g))
            inverse = np.float32(1) / scale if scale >= np.float32(1e-30) else np.float32(0)
            put(scales + 4 * g, scale)
            _write_codes(row + 4 * GROUP * g, inverse, out + GROUP * g, sums + 4 * g, half_sums + 4 * g)


@intrinsic  # type: ignore[untyped-decorator]
def _call_block_loop(
    _: Any,
    address: Any,
    codes: Any,
    panel_bytes: Any,
    units: Any,
    bias: Any,
    x: Any,
    x_bytes: Any,
    T: Any,
    y: Any,
    y_bytes: Any,
    outputs: Any,
    panels: Any,
    tiles: Any,
) -> Any:
    """Call a loop of `block_matmul`, which is compiled when a format is first used."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        place, *rest = arguments
        kind = ir.FunctionType(ir.VoidType(), [number.type for number in rest])
        builder.call(builder.inttoptr(place, kind.as_pointer()), rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 13), generate


@loops.compiled(f"void({', '.join(['int64'] * 12)})", error_model="numpy")
def multiply_sections(
    N: int,
    table: int,
    sections: int,
    bias: int,
    x: int,
    x_bytes: int,
    T: int,
    tiles: int,
    y: int,
    y_bytes: int,
    first_panel: int,
    last_panel: int,
) -> None:
    """Multiply T prepared rows by some panels of a matrix, whose sections of panels `packed_matrix` describes.

    `tiles` is NO_TILES or BYTE_TILES for rows that `round_rows` has written, or WIDENED_ROWS (`unpacked`).
    """
    begin = 0
    for section in range(sections):
        here = table + SECTION_BYTES * section
        end = get(here)
        first, last = max(first_panel, begin), min(last_panel, end)
        if first < last:
            panel_bytes = get(here + 16)
            _call_block_loop(
                get(here + 32),
                get(here + 8) + (first - begin) * panel_bytes,
                panel_bytes,
                get(here + 24),
                bias + first * _WIDTH * 4,
                x,
                x_bytes,
                T,
                y + first * _WIDTH * 4,
                y_bytes,
                N - first * _WIDTH,
                last - first,
                tiles,
            )
        begin = end


def load_block_products(formats: Iterable[str]) -> None:
    """Compile or load what products with matrices of these block formats call."""
    from .block_matmul import loop_address  # here, because its loops call these

    for loop in (round_rows, pack_in_tiles, multiply_sections):
        cast(loops.Loop, loop).load()
    for name in formats:
        loop_address(name)
