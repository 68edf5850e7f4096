"""Products of bfloat16 and int8 rows with panels on a processor's tile registers (AMX).

A tile has up to 16 rows of 64 bytes. Packed bfloat16 weights are a tile of 1 KiB behind the other, which load faster
than rows apart: for 32 outputs, one half of a panel, 16 steps of 16 outputs, those of the others, and the next steps.
So weights are held once for all ways to multiply. An instruction adds the products of 32 inputs: those of even and of
odd inputs are summed apart, in their order, and their sum is added to the total (TDPBF16PS in Intel's manual). So a
row's numbers do not depend on the rows beside it; but dot products round otherwise.

Sums of int8 codes are exact, so products with weights of one scale an output have the same bits without tiles. They
leave the tiles after each group of inputs, to be scaled by the rows' scales. `byte_tiles` has other weights of codes.

With `RAMIFORM_CPU=amx-emulated` loops write out what each instruction does, on tiles in memory. They keep subnormal
numbers, which are 0 to the processor.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from .... import loops
from ..compiled import compiled, compiled_in_order
from ..instructions import HOST
from ..pointers import pointer_to, put
from .tile import I8, I64, Tile

logger = logging.getLogger("ramiform.kernels")

# Rows of a product from which on tiles are used: of int8 fewer are bound by reading, and dot products read as fast.
MIN_ROWS, MIN_ROWS_OF_BYTES = 1, 8
MOST_ROWS = 512  # packed in tiles, that meet a panel together
# Inputs of so many rows, or in blocks of steps of half of them, stay in the second cache while panels pass.
_INPUTS_OF_MOST_ROWS = 1280
TILE_HEIGHT, _STEPS = 16, 16  # rows of a tile; a step of bfloat16 pairs is a row of weights
_CACHED_STEPS = 256  # whose weights, of 32 outputs, stay in the first cache while all blocks of rows meet them
_AHEAD = 1024  # bytes of weights that come from memory, ahead of those that few rows meet
HALF_STEP_BYTES = 128  # of a step of half a panel
STEP_BYTES = _ROW_BYTES = 64  # of a tile's row: 32 bfloat16 or 64 int8 inputs
TILE_BYTES = TILE_HEIGHT * _ROW_BYTES
_WIDTH, PANEL_BYTES = HOST.width, 4 * HOST.width  # of a panel: outputs, and bytes of a step
SUMS_BYTES = MOST_ROWS * PANEL_BYTES if HOST.tiles else 64  # of sums on the stack
# A configuration has a palette, the bytes of a row of each tile from byte 16 on, and its rows from byte 48 on.
_CONFIG_BYTES, _WIDTHS, _HEIGHTS = 64, 16, 48
# Places in a state: of integer sums, of emulated tiles, and of what `_configure_block` notes.
SUMS, _TILES = _CONFIG_BYTES, _CONFIG_BYTES + 4 * TILE_BYTES
_CONFIGURED = _TILES + (8 * TILE_BYTES if HOST.emulated else 0)  # rows of the configuration that holds; 0: none does
_STATE_BYTES = _CONFIGURED + 64
_PALETTE = 1
_ARCH_PRCTL, _ASK_FOR_STATE, _TILE_DATA = 158, 0x1023, 18  # Linux's system call, its request, and the state's number

_bytes, _words, _floats = pointer_to(types.uint8), pointer_to(types.int32), pointer_to(types.float32)
_numbers = pointer_to(types.int64)


@intrinsic  # type: ignore[untyped-decorator]
def local_state(_: Any) -> Any:
    """Return the address of memory on the stack for a configuration and, behind it, integer sums and emulated tiles."""

    def generate(_context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
        place = cgutils.alloca_once(builder, ir.ArrayType(I8, _STATE_BYTES))
        place.align = _CONFIG_BYTES
        return builder.ptrtoint(place, I64)

    return types.int64(), generate


def _call(context: Any, builder: Any, name: str, *values: Any) -> Any:
    """Emit an instruction, by LLVM's name of it."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)
    return context.get_dummy_value()


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, I8.as_pointer())


if HOST.emulated:

    @loops.compiled_once("void(int64)", error_model="numpy")
    def _configure(state: int) -> None:
        """Take the configuration that lies at the state's address. Tiles are zero then."""
        carray(_bytes(state + _TILES), (8 * TILE_BYTES,))[:] = np.uint8(0)

    @loops.compiled_once("void(int64)", error_model="numpy")
    def release(state: int) -> None:
        """Give the tiles back: nothing may read them before the next configuration."""
        carray(_bytes(state), (_CONFIG_BYTES,))[:] = np.uint8(0)

    @loops.compiled_once("void(int64, int64, int64, int64, boolean)", error_model="numpy")
    def _move(state: int, tile: int, address: int, stride: int, is_load: bool) -> None:
        """Copy a tile's rows from memory, or to it."""
        for row in range(carray(_bytes(state + _HEIGHTS), (8,))[tile]):
            own = carray(_words(state + _TILES + (tile * TILE_HEIGHT + row) * _ROW_BYTES), (_ROW_BYTES // 4,))
            other = carray(_words(address + row * stride), (_ROW_BYTES // 4,))
            for word in range(_ROW_BYTES // 4):
                if is_load:
                    own[word] = other[word]
                else:
                    other[word] = own[word]

    @loops.compiled_once("void(int64, int64, int64, int64)", error_model="numpy")
    def _load(state: int, tile: int, address: int, stride: int) -> None:
        _move(state, tile, address, stride, True)

    @loops.compiled_once("void(int64, int64, int64, int64)", error_model="numpy")
    def _store(state: int, tile: int, address: int, stride: int) -> None:
        _move(state, tile, address, stride, False)

    @loops.compiled_once("void(int64, int64, int64, int64)", error_model="numpy")
    def _dot(state: int, total: int, left: int, right: int) -> None:
        """Add the products of a tile of rows and a tile of weights to a tile of sums."""
        tiles, size = state + _TILES, TILE_BYTES
        heights = carray(_bytes(state + _HEIGHTS), (8,))
        sums = carray(_floats(tiles + total * size), (TILE_HEIGHT, _ROW_BYTES // 4))
        pairs = carray(_words(tiles + left * size), (TILE_HEIGHT, _ROW_BYTES // 4))
        weights = carray(_words(tiles + right * size), (TILE_HEIGHT, _ROW_BYTES // 4))
        # Columns are the inner loops, which compilers make vectors of.
        even = carray(_floats(state + SUMS), (_ROW_BYTES // 4,))
        odd = carray(_floats(state + SUMS + _ROW_BYTES), (_ROW_BYTES // 4,))
        for row in range(heights[total]):
            for column in range(_ROW_BYTES // 4):
                even[column], odd[column] = np.float32(0), np.float32(0)
            for k in range(heights[right]):
                x = pairs[row, k]
                first, second = np.int32(x << 16).view(np.float32), np.int32(x & -65536).view(np.float32)
                for column in range(_ROW_BYTES // 4):
                    w = weights[k, column]
                    even[column] += first * np.int32(w << 16).view(np.float32)
                    odd[column] += second * np.int32(w & -65536).view(np.float32)
            for column in range(_ROW_BYTES // 4):
                sums[row, column] += even[column] + odd[column]

    @loops.compiled_once("void(int64, int64)", error_model="numpy")
    def _zero(state: int, tile: int) -> None:
        carray(_words(state + _TILES + tile * TILE_BYTES), (TILE_BYTES // 4,))[:] = np.int32(0)

    @loops.compiled_once("void(int64, int64, int64, int64)", error_model="numpy")
    def _dot_bytes(state: int, total: int, left: int, right: int) -> None:
        """Add the products of a tile of int8 rows and a tile of uint8 weights to a tile of int32 sums."""
        tiles, size = state + _TILES, TILE_BYTES
        heights = carray(_bytes(state + _HEIGHTS), (8,))
        sums = carray(_words(tiles + total * size), (TILE_HEIGHT, _ROW_BYTES // 4))
        rows = carray(_bytes(tiles + left * size), (TILE_HEIGHT, _ROW_BYTES))
        weights = carray(_bytes(tiles + right * size), (TILE_HEIGHT, _ROW_BYTES))
        for row in range(heights[total]):
            for column in range(_ROW_BYTES // 4):
                for k in range(4 * heights[right]):
                    x, w = np.int8(rows[row, k]), weights[k // 4, 4 * column + k % 4]
                    sums[row, column] = np.int32(sums[row, column] + np.int32(x) * np.int32(w))

else:

    @intrinsic  # type: ignore[untyped-decorator]
    def _configure(_: Any, state: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
            return _call(context, builder, "ldtilecfg", _pointer(builder, arguments[0]))

        return types.void(types.int64), generate

    @intrinsic  # type: ignore[untyped-decorator]
    def release(_: Any, state: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
            return _call(context, builder, "tilerelease")

        return types.void(types.int64), generate

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def _load(_: Any, state: Any, tile: Any, address: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
            number, place = I8(tile.literal_value), _pointer(builder, arguments[2])
            return _call(context, builder, "tileloadd64", number, place, arguments[3])

        return types.void(types.int64, tile, types.int64, types.int64), generate

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def _store(_: Any, state: Any, tile: Any, address: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
            number, place = I8(tile.literal_value), _pointer(builder, arguments[2])
            return _call(context, builder, "tilestored64", number, place, arguments[3])

        return types.void(types.int64, tile, types.int64, types.int64), generate

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def _dot(_: Any, state: Any, total: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
            numbers = [I8(own.literal_value) for own in (total, left, right)]
            return _call(context, builder, "tdpbf16ps", *numbers)

        return types.void(types.int64, total, left, right), generate

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def _zero(_: Any, state: Any, tile: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
            return _call(context, builder, "tilezero", I8(tile.literal_value))

        return types.void(types.int64, tile), generate

    @intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
    def _dot_bytes(_: Any, state: Any, total: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _arguments: Sequence[Any]) -> Any:
            numbers = [I8(own.literal_value) for own in (total, left, right)]
            return _call(context, builder, "tdpbsud", *numbers)

        return types.void(types.int64, total, left, right), generate


@intrinsic  # type: ignore[untyped-decorator]
def _fetch_tiles(_: Any, address: Any) -> Any:
    """Ask for all lines of two tiles of weights, for the first cache: the processor fetches too late by itself."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        Tile(builder, HOST, 1, 1).fetch(_pointer(builder, arguments[0]), 2 * TILE_BYTES // 64, to_first=True)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@register_jitable  # type: ignore[untyped-decorator]
def rows_of_block(inputs: int) -> int:
    """Return how many rows packed in tiles meet all panels together."""
    return MOST_ROWS if inputs <= _INPUTS_OF_MOST_ROWS else MOST_ROWS // 2


@register_jitable  # type: ignore[untyped-decorator]
def configure_rows(state: int, first: int, second: int) -> None:
    """Configure tiles for blocks of `first` rows and, if `second` is not 0, of as many more below them.

    Tiles 0 to 3 are sums, 4 and 5 rows, 5 to 7 weights: 5 has rows where there are two blocks.
    """
    config = carray(_bytes(state), (_CONFIG_BYTES,))
    config[:] = np.uint8(0)
    config[0] = np.uint8(_PALETTE)
    for tile in range(8):
        rows = TILE_HEIGHT
        if tile < 5:
            rows = second if second > 0 and tile in (2, 3) else first
        elif tile == 5 and second > 0:
            rows = second
        config[_WIDTHS + 2 * tile] = np.uint8(_ROW_BYTES)
        config[_HEIGHTS + tile] = np.uint8(rows)
    _configure(state)


@register_jitable  # type: ignore[untyped-decorator]
def configure_bytes(state: int, rows: int, inputs: int) -> None:
    """Configure tiles for a block of rows and some inputs of a byte each, 64 or fewer. Tiles 0 to 3 are sums, 4 and 5
    rows, 6 and 7 weights."""
    config = carray(_bytes(state), (_CONFIG_BYTES,))
    config[:] = np.uint8(0)
    config[0] = np.uint8(_PALETTE)
    for tile in range(8):
        config[_WIDTHS + 2 * tile] = np.uint8(inputs if tile in (4, 5) else _ROW_BYTES)
        config[_HEIGHTS + tile] = np.uint8(rows if tile < 6 else inputs // 4)
    _configure(state)


@register_jitable  # type: ignore[untyped-decorator]
def _begin(state: int) -> None:
    """Note that no configuration holds, before `add_panel`; `end_panels` follows the last one."""
    put(state + _CONFIGURED, np.int64(0))


@register_jitable  # type: ignore[untyped-decorator]
def _end(state: int) -> None:
    """Give the tiles back if panels were added."""
    if carray(_numbers(state + _CONFIGURED), (1,))[0] > 0:
        release(state)


@register_jitable  # type: ignore[untyped-decorator]
def _configure_block(state: int, rows: int) -> None:
    """Configure tiles for a block of up to 32 rows, unless they are."""
    if carray(_numbers(state + _CONFIGURED), (1,))[0] != rows:
        configure_rows(state, min(rows, TILE_HEIGHT), max(rows - TILE_HEIGHT, 0))
        put(state + _CONFIGURED, np.int64(rows))


@register_jitable  # type: ignore[untyped-decorator]
def _load_two_blocks(state: int, y: int, y_bytes: int) -> None:
    """Begin the sums of two blocks of rows and 32 outputs with what y has; rows that are 0 bytes apart are the same."""
    below = y + TILE_HEIGHT * y_bytes
    _load(state, 0, y, y_bytes)
    _load(state, 1, y + _ROW_BYTES, y_bytes)
    _load(state, 2, below, y_bytes)
    _load(state, 3, below + _ROW_BYTES, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def _dot_two_blocks(
    state: int, steps: int, x: int, x_bytes: int, tile_bytes: int, below: int, weights: int, ahead: int
) -> None:
    """Add the products of two blocks of rows, `below` bytes apart, and 32 outputs to their sums.

    A tile of rows is `tile_bytes` from that of the steps before. Weights are fetched `ahead` bytes ahead; 0: they are
    in a cache.
    """
    for step in range(0, steps, _STEPS):
        at, own = weights + step * HALF_STEP_BYTES, x + step // _STEPS * tile_bytes
        if ahead > 0:
            _fetch_tiles(at + ahead)
        _load(state, 4, own, x_bytes)
        _load(state, 6, at, _ROW_BYTES)
        _load(state, 7, at + TILE_BYTES, _ROW_BYTES)
        _dot(state, 0, 4, 6)
        _dot(state, 1, 4, 7)
        _load(state, 5, own + below, x_bytes)
        _dot(state, 2, 5, 6)
        _dot(state, 3, 5, 7)


@register_jitable  # type: ignore[untyped-decorator]
def _multiply_block(
    state: int,
    steps: int,
    x: int,
    x_bytes: int,
    tile_bytes: int,
    weights: int,
    half_bytes: int,
    before: int,
    before_bytes: int,
    y: int,
    y_bytes: int,
    ahead: int,
) -> None:
    """Write the products of a block of rows and a panel, added to what `before` has, to y.

    Both halves of the panel are read at once. Other arguments are as in `_dot_two_blocks`.
    """
    _load(state, 0, before, before_bytes)
    _load(state, 1, before + _ROW_BYTES, before_bytes)
    _load(state, 2, before + 2 * _ROW_BYTES, before_bytes)
    _load(state, 3, before + 3 * _ROW_BYTES, before_bytes)
    for step in range(0, steps, _STEPS):
        at = weights + step * HALF_STEP_BYTES
        if ahead > 0:
            _fetch_tiles(at + ahead)
        _load(state, 4, x + step // _STEPS * tile_bytes, x_bytes)
        _load(state, 6, at, _ROW_BYTES)
        _load(state, 7, at + TILE_BYTES, _ROW_BYTES)
        _dot(state, 0, 4, 6)
        _dot(state, 1, 4, 7)
        if ahead > 0:
            _fetch_tiles(at + half_bytes + ahead)
        _load(state, 5, at + half_bytes, _ROW_BYTES)
        _load(state, 6, at + half_bytes + TILE_BYTES, _ROW_BYTES)
        _dot(state, 2, 4, 5)
        _dot(state, 3, 4, 6)
    store_sums(state, y, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def _store_two_blocks(state: int, y: int, y_bytes: int) -> None:
    """Write the sums of two blocks of rows and 32 outputs."""
    below = y + TILE_HEIGHT * y_bytes
    _store(state, 0, y, y_bytes)
    _store(state, 1, y + _ROW_BYTES, y_bytes)
    _store(state, 2, below, y_bytes)
    _store(state, 3, below + _ROW_BYTES, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def zero_sums(state: int) -> None:
    """Begin the sums of 64 outputs, or of two blocks of rows and 32 outputs."""
    _zero(state, 0)
    _zero(state, 1)
    _zero(state, 2)
    _zero(state, 3)


@register_jitable  # type: ignore[untyped-decorator]
def store_sums(state: int, y: int, y_bytes: int) -> None:
    """Write the sums of a block of rows and 64 outputs."""
    _store(state, 0, y, y_bytes)
    _store(state, 1, y + _ROW_BYTES, y_bytes)
    _store(state, 2, y + 2 * _ROW_BYTES, y_bytes)
    _store(state, 3, y + 3 * _ROW_BYTES, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def dot_block(state: int, steps: int, x: int, x_bytes: int, weights: int, step_bytes: int) -> None:
    """Add the products of a block of rows and 64 outputs to their sums. `step_bytes` are from a step's weights to the
    next one's."""
    for step in range(0, steps, _STEPS):
        at = weights + step * step_bytes
        _load(state, 4, x + 4 * step, x_bytes)
        _load(state, 5, at, step_bytes)
        _load(state, 6, at + _ROW_BYTES, step_bytes)
        _load(state, 7, at + 2 * _ROW_BYTES, step_bytes)
        _dot(state, 0, 4, 5)
        _load(state, 5, at + 3 * _ROW_BYTES, step_bytes)
        _dot(state, 1, 4, 6)
        _dot(state, 2, 4, 7)
        _dot(state, 3, 4, 5)


@register_jitable  # type: ignore[untyped-decorator]
def add_block(
    state: int, steps: int, x: int, x_bytes: int, weights: int, step_bytes: int, y: int, y_bytes: int
) -> None:
    """Add the products of a block of rows and 64 outputs to y."""
    _load(state, 0, y, y_bytes)
    _load(state, 1, y + _ROW_BYTES, y_bytes)
    _load(state, 2, y + 2 * _ROW_BYTES, y_bytes)
    _load(state, 3, y + 3 * _ROW_BYTES, y_bytes)
    dot_block(state, steps, x, x_bytes, weights, step_bytes)
    store_sums(state, y, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def add_tile(state: int, steps: int, x: int, x_bytes: int, weights: int, step_bytes: int, y: int, y_bytes: int) -> None:
    """Add the products of a block of rows and 16 outputs to y."""
    _load(state, 0, y, y_bytes)
    for step in range(0, steps, _STEPS):
        _load(state, 4, x + 4 * step, x_bytes)
        _load(state, 5, weights + step * step_bytes, step_bytes)
        _dot(state, 0, 4, 5)
    _store(state, 0, y, y_bytes)


@register_jitable  # type: ignore[untyped-decorator]
def _add_panel(
    state: int,
    rows: int,
    begin: int,
    end: int,
    steps: int,
    codes: int,
    half_bytes: int,
    bias: int,
    x: int,
    x_bytes: int,
    y: int,
    y_bytes: int,
) -> int:
    """Add the products of rows and a whole panel to y, for the steps [begin, end) as far as they fill tiles.

    The second half of the panel is `half_bytes` behind `codes`. At step 0 y becomes the bias first. Returns the first
    step that is left, `begin` if no step fills a tile. `state` has begun (`begin_panels`).
    """
    end = min(end, steps // _STEPS * _STEPS)
    if end <= begin:
        return begin
    codes += begin * HALF_STEP_BYTES
    for row in range(0, rows, 2 * TILE_HEIGHT):
        number, ahead = min(rows - row, 2 * TILE_HEIGHT), _AHEAD if row == 0 else 0
        _configure_block(state, number)
        at, below = x + row * x_bytes + 4 * begin, TILE_HEIGHT * x_bytes
        for half in range(2 if number > TILE_HEIGHT else 1):  # one block reads both at once
            weights, to = codes + half * half_bytes, y + row * y_bytes + 2 * half * _ROW_BYTES
            before, before_bytes = to, y_bytes
            if begin == 0:  # rows that are 0 bytes apart are the same
                before, before_bytes = bias + 2 * half * _ROW_BYTES, 0
            if number > TILE_HEIGHT:
                _load_two_blocks(state, before, before_bytes)
                _dot_two_blocks(state, end - begin, at, x_bytes, _ROW_BYTES, below, weights, ahead)
                _store_two_blocks(state, to, y_bytes)
                continue
            _multiply_block(
                state, end - begin, at, x_bytes, _ROW_BYTES, weights, half_bytes, before, before_bytes, to, y_bytes,
                ahead,
            )  # fmt: skip
    return end


def _multiply_many(
    rows: int, begin: int, end: int, steps: int, codes: int, half_bytes: int, bias: int, x: int, sums: int
) -> None:
    """Add the products of the steps [begin, end) of rows packed in tiles (`packed_place`) and a whole panel to their
    sums, PANEL_BYTES a row, which are the bias at step 0.

    The second half of the panel is `half_bytes` behind `codes`. A part of the weights stays in the first cache while
    all rows meet it.
    """
    state, row_bytes = local_state(), 4 * steps
    whole, last = rows // (2 * TILE_HEIGHT) * 2 * TILE_HEIGHT, 0
    while last < rows:  # all that fill two blocks, then those that are left
        first, last = last, whole if last < whole else rows
        number = min(last - first, 2 * TILE_HEIGHT)
        configure_rows(state, min(number, TILE_HEIGHT), max(number - TILE_HEIGHT, 0))
        for half in range(2 if number > TILE_HEIGHT else 1):  # one block reads both at once
            for step in range(begin, end, _CACHED_STEPS):
                count = min(_CACHED_STEPS, end - step)
                weights = codes + half * half_bytes + step * HALF_STEP_BYTES
                for row in range(first, last, 2 * TILE_HEIGHT):
                    to = sums + row * PANEL_BYTES + 2 * half * _ROW_BYTES
                    own, below = x + row * row_bytes + step * _ROW_BYTES, TILE_HEIGHT * row_bytes
                    before, before_bytes = to, PANEL_BYTES
                    if step == 0:
                        before, before_bytes = bias + 2 * half * _ROW_BYTES, 0
                    if number > TILE_HEIGHT:
                        _load_two_blocks(state, before, before_bytes)
                        _dot_two_blocks(state, count, own, _ROW_BYTES, TILE_BYTES, below, weights, 0)
                        _store_two_blocks(state, to, PANEL_BYTES)
                        continue
                    _multiply_block(
                        state, count, own, _ROW_BYTES, TILE_BYTES, weights, half_bytes, before, before_bytes, to,
                        PANEL_BYTES, 0,
                    )  # fmt: skip
    release(state)


@register_jitable  # type: ignore[untyped-decorator]
def packed_place(row: int, step: int, steps: int) -> int:
    """Return where the pairs of 16 steps of a row lie, from the first of `step` on, in rows packed in tiles."""
    return row // TILE_HEIGHT * TILE_HEIGHT * 4 * steps + step * _ROW_BYTES + row % TILE_HEIGHT * _ROW_BYTES


@register_jitable  # type: ignore[untyped-decorator]
def copy_floats(source: int, to: int, size: int) -> None:
    """Copy some floats."""
    source_N, to_N = carray(_floats(source), (size,)), carray(_floats(to), (size,))
    for n in range(size):
        to_N[n] = source_N[n]


@register_jitable  # type: ignore[untyped-decorator]
def multiply_packed(
    rows: int,
    begin: int,
    end: int,
    steps: int,
    codes: int,
    half_bytes: int,
    bias: int,
    x: int,
    sums: int,
    y: int,
    y_bytes: int,
    width: int,
    total: int = 0,
    factor: float = 0.0,
) -> None:
    """Add the products of `multiply_many` to `width` outputs in y, by way of `sums`, where they lie together.

    With `total`, an address of rows that lie as y's do, they are added there after the last step, times `factor`, and
    y is not written then.
    """
    for row in range(rows if begin > 0 else 0):
        copy_floats(y + row * y_bytes, sums + row * PANEL_BYTES, width)
    multiply_many(rows, begin, end, steps, codes, half_bytes, bias, x, sums)
    for row in range(rows):
        found = sums + row * PANEL_BYTES
        if total == 0 or end < steps:
            copy_floats(found, y + row * y_bytes, width)
            continue
        found_N, total_N = carray(_floats(found), (width,)), carray(_floats(total + row * y_bytes), (width,))
        for n in range(width):
            total_N[n] += np.float32(factor) * found_N[n]


@register_jitable  # type: ignore[untyped-decorator]
def _sum_two_blocks_of_bytes(state: int, group: int, x: int, x_bytes: int, weights: int) -> None:
    """Write the sums of a group of inputs, of two blocks of rows and 32 outputs."""
    x_below, sums, stride = x + TILE_HEIGHT * x_bytes, state + SUMS, 2 * _ROW_BYTES
    zero_sums(state)
    for first in range(0, group, _ROW_BYTES):
        at = weights + first // 4 * PANEL_BYTES
        _load(state, 4, x + first, x_bytes)
        _load(state, 6, at, PANEL_BYTES)
        _load(state, 7, at + _ROW_BYTES, PANEL_BYTES)
        _dot_bytes(state, 0, 4, 6)
        _dot_bytes(state, 1, 4, 7)
        _load(state, 5, x_below + first, x_bytes)
        _dot_bytes(state, 2, 5, 6)
        _dot_bytes(state, 3, 5, 7)
    _store(state, 0, sums, stride)
    _store(state, 1, sums + _ROW_BYTES, stride)
    _store(state, 2, sums + TILE_HEIGHT * stride, stride)
    _store(state, 3, sums + TILE_HEIGHT * stride + _ROW_BYTES, stride)


@register_jitable  # type: ignore[untyped-decorator]
def _sum_block_of_bytes(state: int, group: int, x: int, x_bytes: int, weights: int) -> None:
    """Write the sums of a group of inputs, of a block of rows and 64 outputs."""
    zero_sums(state)
    for first in range(0, group, _ROW_BYTES):
        at = weights + first // 4 * PANEL_BYTES
        _load(state, 4, x + first, x_bytes)
        _load(state, 5, at, PANEL_BYTES)
        _load(state, 6, at + _ROW_BYTES, PANEL_BYTES)
        _load(state, 7, at + 2 * _ROW_BYTES, PANEL_BYTES)
        _dot_bytes(state, 0, 4, 5)
        _load(state, 5, at + 3 * _ROW_BYTES, PANEL_BYTES)
        _dot_bytes(state, 1, 4, 6)
        _dot_bytes(state, 2, 4, 7)
        _dot_bytes(state, 3, 4, 5)
    store_sums(state, state + SUMS, 4 * _ROW_BYTES)


@compiled_in_order(f"void({', '.join(['int64'] * 9)})")
def _add_scaled(
    rows: int, outputs: int, sums: int, scales: int, totals: int, x_bytes: int, y: int, y_bytes: int, is_first: int
) -> None:
    """Add integer sums, scaled by rows, to y, or begin it; weights are stored as code + 128. No operation is fused.

    `scales` and `totals` are the addresses of the first row's scale and sum of codes.
    """
    for row in range(rows):
        x_scale = carray(_floats(scales + row * x_bytes), (1,))[0]
        excess = np.int32(carray(_words(totals + row * x_bytes), (1,))[0] * np.int32(128))
        found, y_N = (
            carray(_words(sums + 4 * row * outputs), (outputs,)),
            carray(_floats(y + row * y_bytes), (outputs,)),
        )
        for n in range(outputs):
            before = np.float32(0) if is_first else y_N[n]
            y_N[n] = before + np.float32(np.int32(found[n] - excess)) * x_scale


@compiled_in_order(f"void({', '.join(['int64'] * 5)})")
def _scale_outputs(rows: int, scales: int, bias: int, y: int, y_bytes: int) -> None:
    """Multiply sums by their outputs' scales, and add the bias. No operation is fused."""
    scale_W, bias_W = carray(_floats(scales), (_WIDTH,)), carray(_floats(bias), (_WIDTH,))
    for row in range(rows):
        y_W = carray(_floats(y + row * y_bytes), (_WIDTH,))
        for n in range(_WIDTH):
            y_W[n] = y_W[n] * scale_W[n] + bias_W[n]


@register_jitable  # type: ignore[untyped-decorator]
def _add_panel_of_bytes(
    rows: int,
    begin: int,
    end: int,
    groups: int,
    group: int,
    codes: int,
    scales: int,
    bias: int,
    x: int,
    x_bytes: int,
    y: int,
    y_bytes: int,
) -> int:
    """Add the products of int8 rows and a whole panel to y, for the groups [begin, end) of inputs. Returns `end`."""
    state, configured = local_state(), 0
    for row in range(0, rows, 2 * TILE_HEIGHT):
        number = min(rows - row, 2 * TILE_HEIGHT)
        if number != configured:
            configure_rows(state, min(number, TILE_HEIGHT), max(number - TILE_HEIGHT, 0))
            configured = number
        own, to = x + row * x_bytes, y + row * y_bytes
        for index in range(begin, end):
            first = index * group
            at, weights = own + first, codes + first // 4 * PANEL_BYTES
            row_scales = own + groups * group + 4 * index
            row_sums, is_first, sums = row_scales + 4 * groups, 1 if index == 0 else 0, state + SUMS
            if number > TILE_HEIGHT:
                for half in range(2):
                    _sum_two_blocks_of_bytes(state, group, at, x_bytes, weights + 2 * _ROW_BYTES * half)
                    place = to + 2 * _ROW_BYTES * half
                    _add_scaled(number, 32, sums, row_scales, row_sums, x_bytes, place, y_bytes, is_first)
            else:
                _sum_block_of_bytes(state, group, at, x_bytes, weights)
                _add_scaled(number, 64, sums, row_scales, row_sums, x_bytes, to, y_bytes, is_first)
    release(state)
    if end == groups:
        _scale_outputs(rows, scales, bias, y, y_bytes)
    return end


@register_jitable  # type: ignore[untyped-decorator]
def compute_nothing(*_arguments: Any) -> int:
    return 0


# For compiled loops, of a process that has `usable` tiles.
add_panel = _add_panel if HOST.tiles else compute_nothing
begin_panels, end_panels = (_begin, _end) if HOST.tiles else (compute_nothing, compute_nothing)
add_panel_of_bytes = _add_panel_of_bytes if HOST.tiles else compute_nothing
_once = loops.compiled_once(f"void({', '.join(['int64'] * 9)})", error_model="numpy")
multiply_many = _once(_multiply_many) if HOST.tiles else compute_nothing


@cache
def usable() -> bool:
    """Return True if this process computes by tiles.

    The system is asked for the registers' memory, which threads that run already get too, and a product is checked.
    """
    if not HOST.tiles:
        return False
    if not (HOST.emulated or _may_use_tiles()):
        logger.warning("the system gives this process no tile registers: dot instructions serve")
        return False
    if not _is_right():
        logger.warning("a product by tile registers is wrong on this processor: dot instructions serve")
        return False
    return True


def _may_use_tiles() -> bool:
    """Ask Linux for the memory in which it keeps a thread's tiles."""
    if platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASK_FOR_STATE, _TILE_DATA) == 0)


def _is_right() -> bool:
    """Return True if a product of 19 rows and a panel is what numpy computes of its bfloat16 numbers."""
    rows, steps, width = 19, 2 * _STEPS, _WIDTH
    draw = np.random.default_rng(0)
    # The upper halves of float32s are bfloat16s.
    x_TC, w_SW2 = (
        draw.standard_normal(shape).astype(np.float32).view(np.int32) & -65536
        for shape in ((rows, 2 * steps), (steps, width, 2))
    )
    x, codes = ((own >> 16).astype(np.int16) for own in (x_TC, w_SW2))
    codes = np.ascontiguousarray(codes.reshape(2, _STEPS, 2, 2, 16, 2).transpose(2, 0, 3, 1, 4, 5))  # as tiles
    y_TW, bias_W = np.zeros((rows, width), np.float32), draw.standard_normal(width).astype(np.float32)
    places = (
        codes.ctypes.data,
        steps * HALF_STEP_BYTES,
        bias_W.ctypes.data,
        x.ctypes.data,
        4 * steps,
        y_TW.ctypes.data,
        4 * width,
    )

    @compiled(f"void({', '.join(['int64'] * 9)})")
    def multiply(
        rows: int, steps: int, codes: int, half_bytes: int, bias: int, x: int, x_bytes: int, y: int, y_bytes: int
    ) -> None:
        state = local_state()
        _begin(state)
        _add_panel(state, rows, 0, steps, steps, codes, half_bytes, bias, x, x_bytes, y, y_bytes)
        _end(state)

    multiply(rows, steps, *places)
    w_CW = w_SW2.view(np.float32).transpose(0, 2, 1).reshape(2 * steps, width)
    return np.allclose(y_TW, x_TC.view(np.float32) @ w_CW + bias_W, rtol=1e-4, atol=1e-4)
