"""Compiled products of float32 rows with packed weights, from one row to thousands.

Several threads may multiply different panels at once: rows are prepared once for all, in parts by any thread, and each
thread then writes the outputs of its panels. Nothing is allocated.

Many rows go in blocks whose inputs stay in the second cache, by blocks of steps whose weights stay in the first; sums
wait in `y` between them. Sums run over the inputs in their order, so a row's numbers do not depend on the other rows.
Tiles (`amx`) sum rows of bfloat16 otherwise: all these go by them. Rows that are packed in tiles (`in_tiles`) have
their last panel by tiles too. Sums of codes are exact, so rows of int8 go by tiles where that is faster (`byte_tiles`).
Rows of long prompts are bfloat16s for weights with scales by group, which are widened (`widened`): they differ.

Legend: T rows, C inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numba import carray, types
from numba.extending import register_jitable
from numpy.typing import NDArray

from .... import loops
from ..bfloat16 import float32_to_bfloat16
from ..compiled import Floats, Ints, compiled
from ..instructions import HOST
from ..pointers import pointer_to, put, stack_memory
from ..thread_pool import num_threads, run_tasks, share_range
from .amx import (
    PANEL_BYTES,
    SUMS_BYTES,
    TILE_HEIGHT,
    add_panel,
    add_panel_of_bytes,
    begin_panels,
    end_panels,
    local_state,
    multiply_many,
    multiply_packed,
    rows_of_block,
)
from .block_panels import (
    GROUP_BYTES,
    multiply_sections,
    pack_in_tiles,
    round_rows,
    scale_of,
)
from .byte_tiles import MIN_ROWS as BYTE_ROWS
from .byte_tiles import MOST_ROWS as MOST_BYTE_ROWS
from .byte_tiles import add_unpacked, gather_numbers, numbers_bytes
from .packed_matrix import (
    BFLOAT16,
    BFLOAT16_ROWS,
    BLOCKS,
    FLOAT32,
    INT4,
    INT8,
    LARGE_RATIO,
    TILES_FROM,
    WIDTH,
    PackedMatrix,
    add_large_inputs,
    list_bytes,
    set_apart,
    stored_steps,
)
from .tile import PREFETCH_BYTES
from .tile_kernels import SUM_STEPS, tile_kernels
from .unpacked import BLOCK_INPUTS, BYTE_TILES, NO_TILES, UNPACKED_BYTES, WIDENED_ROWS, unpack_codes
from .widened import MEMORY_BYTES, multiply_widened

_WIDE_ROWS = 2  # up to here kernels take several panels at once: sums of one would wait for each other
_PANELS_1, _PANELS_2 = (3, 2) if HOST.registers == 16 else (2, 1)
_MOST_ROWS = 6  # of a kernel for floats
# Integer kernels hold sums, weights and their halves or signs in registers.
_MOST_INT8_ROWS, _MOST_INT4_ROWS = (4, 4) if HOST.registers == 16 else (6, 5)
_FLOAT_SIZES = [*((rows, 1) for rows in range(1, _MOST_ROWS + 1)), (1, _PANELS_1), (2, _PANELS_2)]
_INT8_SIZES = [(rows, 1) for rows in range(1, _MOST_INT8_ROWS + 1)]
_INT4_SIZES = [(rows, 1) for rows in range(1, _MOST_INT4_ROWS + 1)]
_multiply_tile = tile_kernels(
    HOST,
    {
        "float32": _FLOAT_SIZES,
        "bfloat16": _FLOAT_SIZES,
        "bfloat16_dot": _FLOAT_SIZES if HOST.bfloat16_dot else [],
        "int8": _INT8_SIZES,
        "int8_groups": _INT8_SIZES,
        "int4": _INT4_SIZES,
    },
)

FEW_ROWS = 64  # up to here a panel is read once
_FEW_ROWS_BYTES = 128 << 10  # of a block of weights: twice as much stays in the second cache
_BLOCK_ROWS, _BLOCK_INPUTS, _BLOCK_BFLOAT16_INPUTS = (192, 1024, 2048) if HOST.lanes == 16 else (96, 512, 2048)
_INTEGER_BLOCK_ROWS, _INTEGER_BLOCK_INPUTS = 192, 1024

# Least work of a thread: it takes 0.1 ms, twice what waking the thread takes.
_MIN_BYTES, _MIN_PRODUCTS = 2_000_000, 4_000_000
_TILES = HOST.tiles
TILE_INPUTS = 32  # of a row in a tile
_TILE_BLOCK_STEPS = 1280  # of rows packed in tiles: the inputs of `rows_of_block` rows stay in the second cache
_AHEAD_LINES = HOST.ahead_lines
_SCRATCH_BYTES = max(MEMORY_BYTES, numbers_bytes(1)) if HOST.tiles else 64  # for widened weights, or for rows' numbers
_PARTS = 4  # per thread, so that one that started late takes fewer

Bytes = NDArray[np.uint8]
Part = Callable[[int, int], object]
_halves, _floats = pointer_to(types.uint16), pointer_to(types.float32)


@compiled("int64(int64[::1])")
def num_panels(descriptor: Ints) -> int:
    """Return how many panels a matrix has."""
    return (descriptor[1] + WIDTH - 1) // WIDTH  # type: ignore[no-any-return]


@compiled("int64(int64, int64, int64)")
def _rounded_bytes(kind: int, inputs: int, group: int) -> int:
    """Return the bytes of a row rounded to int8."""
    groups = (inputs + group - 1) // group
    if kind == BLOCKS:
        return groups * GROUP_BYTES
    return groups * (group + 8) + list_bytes(groups)  # type: ignore[no-any-return]


@compiled("int64(int64[::1])")
def _row_bytes(descriptor: Ints) -> int:
    """Return the bytes of a prepared row; 0 where rows are used as they are."""
    kind, inputs = descriptor[0], descriptor[2]
    if kind == BFLOAT16_ROWS:
        return (inputs + 1) // 2 * 4  # type: ignore[no-any-return]
    if kind == BFLOAT16 and inputs % 2:  # weights are in pairs
        return (inputs + 1) * 4  # type: ignore[no-any-return]
    if kind >= INT8:
        return _rounded_bytes(kind, inputs, descriptor[3])  # type: ignore[no-any-return]
    return 0


@compiled("int64(int64[::1])")
def tile_rows_of_block(descriptor: Ints) -> int:
    """Return how many rows packed in tiles meet all panels together."""
    return rows_of_block(descriptor[2])  # type: ignore[no-any-return]


@compiled("boolean(int64[::1], int64)")
def in_tiles(descriptor: Ints, num_rows: int) -> bool:
    """Return True if the rows of a product may be packed in tiles (`amx.packed_place`)."""
    is_wide = descriptor[0] > INT8 or (descriptor[0] == BFLOAT16_ROWS and num_rows > FEW_ROWS)
    return is_wide and descriptor[2] % TILE_INPUTS == 0 and 0 < descriptor[TILES_FROM] <= num_rows


@compiled("boolean(int64[::1], int64)")
def is_summed_near(descriptor: Ints, num_rows: int) -> bool:
    """Return True if `multiply_to_sums` multiplies so many rows."""
    few = descriptor[0] == BFLOAT16_ROWS and descriptor[2] % TILE_INPUTS == 0 and 0 < descriptor[TILES_FROM] <= num_rows
    return few or in_tiles(descriptor, num_rows)


@compiled("int64(int64[::1], int64, boolean)")
def prepared_size(descriptor: Ints, num_rows: int, packs_tiles: bool) -> int:
    """Return the bytes that prepared rows take."""
    if not packs_tiles:
        return _row_bytes(descriptor) * num_rows  # type: ignore[no-any-return]
    return 2 * descriptor[2] * (-(-num_rows // TILE_HEIGHT) * TILE_HEIGHT)  # type: ignore[no-any-return]


@compiled("int64(int64[::1], int64)")
def most_prepared(descriptor: Ints, num_rows: int) -> int:
    """Return the bytes that so many prepared rows or fewer take at most."""
    return max(prepared_size(descriptor, num_rows, False), prepared_size(descriptor, num_rows, True))


@compiled("int64(int64[::1], boolean)")
def prepared_row(descriptor: Ints, packs_tiles: bool) -> int:
    """Return the bytes from a block of prepared rows to the next one, for each of their rows."""
    return 2 * descriptor[2] if packs_tiles else _row_bytes(descriptor)  # type: ignore[no-any-return]


@loops.compiled("void(float32[::1], int64, uint8[::1])", error_model="numpy")  # without fused operations
def _round_row(x_C: Floats, group: int, out: Bytes) -> None:
    """Write a row's int8 codes, a float32 scale and an int32 sum of codes of each group, and the list of large inputs.

    A group's scale is NaN if one of its numbers is not finite.
    """
    groups = (len(x_C) + group - 1) // group
    large = out.ctypes.data + groups * (group + 8)
    put(large, np.int64(0))
    for g in range(groups):
        x_G, codes_G = x_C[g * group : (g + 1) * group], out[g * group : (g + 1) * group]
        largest = np.int32(0)  # the bits of a float's magnitude are ordered as it is
        for i in range(len(x_G)):
            magnitude = np.int32(np.float32(x_G[i]).view(np.int32) & np.int32(0x7FFFFFFF))
            largest = np.int32(max(largest, magnitude))
        scale = scale_of(largest)
        inverse = np.float32(1) / scale if scale >= np.float32(1e-30) else np.float32(0)
        total, magnitudes = np.int32(0), np.int32(0)
        for i in range(len(x_G)):
            # Added to 1.5 * 2^23, a number is rounded to an integer, ties to even, in the lowest bits.
            code = np.int32(np.float32(x_G[i] * inverse + np.float32(12582912)).view(np.int32) - np.int32(0x4B400000))
            codes_G[i] = np.uint8(code)
            total = np.int32(total + code)
            magnitudes = np.int32(magnitudes + abs(code))
        if inverse > np.float32(0) and 127 * len(x_G) > LARGE_RATIO * magnitudes:
            others = set_apart(x_G, codes_G, magnitudes, g * group, groups, large)
            if others >= 0:
                scale = scale_of(others)
                inverse = np.float32(1) / scale if scale >= np.float32(1e-30) else np.float32(0)
                total = np.int32(0)
                for i in range(len(x_G)):
                    kept = np.float32(0) if codes_G[i] == np.uint8(128) else x_G[i]
                    moved = np.float32(kept * inverse + np.float32(12582912))
                    code = np.int32(moved.view(np.int32) - np.int32(0x4B400000))
                    codes_G[i] = np.uint8(code)
                    total = np.int32(total + code)
        for i in range(len(x_G), group):
            codes_G[i] = np.uint8(0)
        put(out.ctypes.data + groups * group + 4 * g, scale)
        put(out.ctypes.data + groups * (group + 4) + 4 * g, total)


@compiled("void(int64[::1], float32[:,::1], int64, uint8[::1], boolean)")
def prepare_rows(descriptor: Ints, x_RC: Floats, first_row: int, prepared: Bytes, packs_tiles: bool) -> None:
    """Convert rows to what the matrix's format multiplies, in their places of `prepared`, from `first_row` on.

    With `packs_tiles`, for rows that may be `in_tiles`, they are packed as tiles take them.
    """
    kind, C, size = descriptor[0], descriptor[2], _row_bytes(descriptor)
    if packs_tiles:
        pack_in_tiles(x_RC.ctypes.data, C, first_row, first_row + len(x_RC), prepared.ctypes.data)
        return
    if kind == BLOCKS:
        round_rows(x_RC.ctypes.data, C, 0, len(x_RC), prepared.ctypes.data + first_row * size)
        return
    if size == 0:
        return
    for r in range(len(x_RC)):
        row = prepared.ctypes.data + (first_row + r) * size
        if kind >= INT8:
            _round_row(x_RC[r], descriptor[3], prepared[(first_row + r) * size : (first_row + r + 1) * size])
        elif kind == BFLOAT16_ROWS:
            x_C, out_C = x_RC[r], carray(_halves(row), (C,))
            for c in range(C):
                out_C[c] = float32_to_bfloat16(x_C[c])
            if C % 2:
                put(row + 2 * C, np.uint16(0))
        else:
            for c in range(C):
                put(row + 4 * c, x_RC[r, c])
            put(row + 4 * C, np.float32(0))


@register_jitable  # type: ignore[untyped-decorator]
def _multiply_tile_rows(
    T: int,
    N: int,
    steps: int,
    codes: int,
    bias: int,
    x: int,
    y: int,
    y_bytes: int,
    first_panel: int,
    last_panel: int,
    total: int,
    factor: float,
) -> None:
    """Write the products of T rows packed in tiles and some panels of bfloat16s, or with `total` add them there."""
    sums, panel_bytes, block_rows = stack_memory(SUMS_BYTES), steps * PANEL_BYTES, rows_of_block(2 * steps)
    for row in range(0, T, block_rows):
        rows, rows_at = min(block_rows, T - row), x + row * 4 * steps
        for begin in range(0, steps, _TILE_BLOCK_STEPS):
            end = min(begin + _TILE_BLOCK_STEPS, steps)
            for panel in range(first_panel, last_panel):
                own, width = codes + panel * panel_bytes, min(WIDTH, N - panel * WIDTH)
                place, offset = bias + panel * PANEL_BYTES, row * y_bytes + 4 * panel * WIDTH
                multiply_packed(
                    rows, begin, end, steps, own, panel_bytes // 2, place, rows_at, sums, y + offset, y_bytes, width,
                    total + offset if total != 0 else 0, factor,
                )  # fmt: skip


@register_jitable  # type: ignore[untyped-decorator]
def _multiply_codes(
    is_widened: int,
    is_int4: int,
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
) -> None:
    """Write the products of T prepared rows and panels of codes with scales by group, by tiles.

    The panels' addresses are those of the first one's. Rows are packed in tiles if weights are widened.
    """
    unpacked, scratch, sums = stack_memory(UNPACKED_BYTES), stack_memory(_SCRATCH_BYTES), stack_memory(SUMS_BYTES)
    groups, count, most_rows = C // group, BLOCK_INPUTS // group, rows_of_block(C) if is_widened else MOST_BYTE_ROWS
    for first_row in range(0, T, most_rows):
        rows, own_x, own_y = min(most_rows, T - first_row), x + first_row * x_bytes, y + first_row * y_bytes
        for begin in range(0, groups, count):
            end = min(begin + count, groups)
            if not is_widened:
                gather_numbers(rows, is_int4, own_x, x_bytes, group, groups, begin, end, scratch)
            for panel in range(panels):
                weights, factors = codes + panel * panel_bytes, scales + panel * scale_bytes
                offsets, own_bias = bases + panel * base_bytes, bias + panel * PANEL_BYTES
                width = min(WIDTH, outputs - panel * WIDTH)
                if is_widened and is_int4:
                    unpack_codes(4, weights, factors, offsets, group, begin, end, 1, unpacked)
                elif is_widened:
                    unpack_codes(8, weights, factors, offsets, group, begin, end, 1, unpacked)
                elif is_int4:
                    unpack_codes(4, weights, factors, offsets, group, begin, end, 0, unpacked)
                else:
                    unpack_codes(8, weights, factors, offsets, group, begin, end, 0, unpacked)
                if is_widened:
                    multiply_widened(
                        rows, is_int4, group, begin * group, end * group, C, unpacked, scratch, own_bias, own_x, sums,
                        own_y + panel * PANEL_BYTES, y_bytes, width,
                    )  # fmt: skip
                else:
                    add_unpacked(
                        rows, is_int4, group, groups, begin, end, unpacked, scratch, factors, own_bias, own_x, x_bytes,
                        own_y + panel * PANEL_BYTES, y_bytes, width,
                    )  # fmt: skip


@loops.compiled_once(f"void({', '.join(['int64'] * 17)})", error_model="numpy")
def _multiply_panels(
    kind: int,
    N: int,
    C: int,
    group: int,
    codes: int,
    scales: int,
    bases: int,
    bias: int,
    x: int,
    x_bytes: int,
    T: int,
    y: int,
    y_bytes: int,
    first_panel: int,
    last_panel: int,
    tile_rows: int,
    packs_tiles: int,
) -> None:
    """Multiply by the panels of a descriptor; x is the address of the rows as they are read."""
    by_tiles = 0 < tile_rows <= T
    if kind == BLOCKS:
        tiles = WIDENED_ROWS if packs_tiles else BYTE_TILES if tile_rows > 0 else NO_TILES
        multiply_sections(N, codes, scales, bias, x, x_bytes, T, tiles, y, y_bytes, first_panel, last_panel)
        return
    scale_bytes, base_bytes, lanes = 0, 0, 1  # 32-bit lanes of an output in a step
    if kind < INT8:
        most_rows, block_rows, per_step = _MOST_ROWS, _BLOCK_ROWS, 1 if kind == FLOAT32 else 2
        steps = (C + per_step - 1) // per_step
        block_steps = _BLOCK_INPUTS if kind == FLOAT32 else _BLOCK_BFLOAT16_INPUTS // per_step
    else:
        most_rows, block_rows = _MOST_INT4_ROWS if kind == INT4 else _MOST_INT8_ROWS, _INTEGER_BLOCK_ROWS
        steps, block_steps = (C + group - 1) // group, max(1, _INTEGER_BLOCK_INPUTS // group)
        lanes = group // (8 if kind == INT4 else 4)
        scale_bytes = WIDTH * (4 if kind == INT8 else 4 + 2 * steps)
        base_bytes = WIDTH * 2 * steps
    lane_bytes, several = WIDTH * 4, 1
    panel_bytes = (stored_steps(kind, C) if kind < INT8 else steps) * lanes * lane_bytes
    if packs_tiles and kind == BFLOAT16_ROWS:
        _multiply_tile_rows(T, N, steps, codes, bias, x, y, y_bytes, first_panel, last_panel, 0, 0.0)
        return
    if kind > INT8 and (packs_tiles or (tile_rows > 0 and T >= BYTE_ROWS)):
        _multiply_codes(
            packs_tiles, kind == INT4, last_panel - first_panel, C, group,
            codes + first_panel * panel_bytes, panel_bytes, scales + first_panel * scale_bytes, scale_bytes,
            bases + first_panel * base_bytes, base_bytes, bias + first_panel * WIDTH * 4, x, x_bytes, T,
            y + first_panel * WIDTH * 4, y_bytes, N - first_panel * WIDTH,
        )  # fmt: skip
        return
    if kind < INT8 and T <= _WIDE_ROWS and not by_tiles:
        several = _PANELS_1 if T == 1 else _PANELS_2
    together, next_bytes = max(1, last_panel - first_panel), panel_bytes
    if T <= FEW_ROWS:
        block_rows, block_steps, together = FEW_ROWS, steps, several
        if most_rows < T:  # each block's weights are fetched while the one before is multiplied
            block_steps = -(-steps // -(-panel_bytes // _FEW_ROWS_BYTES))
            if kind < INT8:
                block_steps = -(-block_steps // SUM_STEPS) * SUM_STEPS
            next_bytes = block_steps * lanes * lane_bytes
    state = local_state()
    begin_panels(state)
    for first_row in range(0, T, block_rows):
        last_row = min(first_row + block_rows, T)
        for group_panel in range(first_panel, last_panel, together):
            for begin in range(0, steps, block_steps):
                end = min(begin + block_steps, steps)
                panel = group_panel
                while panel < min(group_panel + together, last_panel):
                    count = several if panel + several <= last_panel else 1
                    first_step = begin
                    if by_tiles and kind == INT8 and (panel + 1) * WIDTH <= N:
                        first_step = add_panel_of_bytes(
                            last_row - first_row,
                            begin,
                            end,
                            steps,
                            group,
                            codes + panel * panel_bytes,
                            scales + panel * scale_bytes,
                            bias + panel * WIDTH * 4,
                            x + first_row * x_bytes,
                            x_bytes,
                            y + first_row * y_bytes + panel * WIDTH * 4,
                            y_bytes,
                        )
                    elif by_tiles and kind == BFLOAT16_ROWS and (panel + 1) * WIDTH <= N:
                        first_step = add_panel(
                            state,
                            last_row - first_row,
                            begin,
                            end,
                            steps,
                            codes + panel * panel_bytes,
                            panel_bytes // 2,
                            bias + panel * WIDTH * 4,
                            x + first_row * x_bytes,
                            x_bytes,
                            y + first_row * y_bytes + panel * WIDTH * 4,
                            y_bytes,
                        )
                    if first_step == end:
                        panel += 1
                        continue
                    row, num_tiles = first_row, -(-(last_row - first_row) // most_rows)
                    ahead = codes + panel * panel_bytes + begin * lanes * lane_bytes
                    ahead_bytes, piece = lane_bytes, 0
                    if num_tiles == 1 and not (_TILES and kind == BFLOAT16_ROWS):
                        ahead += PREFETCH_BYTES
                    else:  # the tiles share the weights that come after theirs
                        ahead += next_bytes
                        ahead_bytes = min(_AHEAD_LINES * 64, -(-lane_bytes // num_tiles))
                        piece = (end - begin) * lanes * ahead_bytes
                    pieces = -(-lane_bytes // ahead_bytes)  # of the weights that come next
                    for blocks in range(num_tiles, 0, -1):
                        rows = -(-(last_row - row) // blocks)  # blocks of nearly one size
                        _multiply_tile(
                            kind,
                            rows - 1 + (0 if count == 1 else _MOST_ROWS),
                            codes + panel * panel_bytes,
                            panel_bytes,
                            scales + panel * scale_bytes,
                            bases + panel * base_bytes,
                            bias + panel * WIDTH * 4,
                            x + row * x_bytes,
                            x_bytes,
                            y + row * y_bytes + panel * WIDTH * 4,
                            y_bytes,
                            first_step,
                            end,
                            steps,
                            group,
                            N - panel * WIDTH,
                            ahead - first_step * lanes * ahead_bytes,
                            ahead_bytes,
                        )
                        row += rows
                        ahead += piece
                        pieces -= 1
                        if pieces <= 0:  # all is fetched: the others ask for what is there
                            ahead, ahead_bytes, piece = codes + panel * panel_bytes, 0, 0
                    panel += count
    end_panels(state)


@compiled("void(int64[::1], float32[:,::1], uint8[::1], float32[:,::1], int64, int64, boolean)")
def multiply_panels(
    descriptor: Ints,
    x_TC: Floats,
    prepared: Bytes,
    y_TN: Floats,
    first_panel: int,
    last_panel: int,
    packs_tiles: bool,
) -> None:
    """Write `y = x w^T + bias` for all rows and the outputs of some panels; `prepared` comes from `prepare_rows`."""
    x, x_bytes = x_TC.ctypes.data, descriptor[2] * 4
    if _row_bytes(descriptor) > 0:
        x, x_bytes = prepared.ctypes.data, prepared_row(descriptor, packs_tiles)
    _multiply_panels(
        descriptor[0],
        descriptor[1],
        descriptor[2],
        descriptor[3],
        descriptor[4],
        descriptor[5],
        descriptor[6],
        descriptor[7],
        x,
        x_bytes,
        x_TC.shape[0],
        y_TN.ctypes.data,
        4 * descriptor[1],
        first_panel,
        last_panel,
        descriptor[TILES_FROM],
        packs_tiles,
    )
    if INT8 <= descriptor[0] < BLOCKS and not packs_tiles:
        add_large_inputs(
            descriptor[0],
            descriptor[1],
            (descriptor[2] + descriptor[3] - 1) // descriptor[3],
            descriptor[3],
            descriptor[4],
            descriptor[5],
            descriptor[6],
            x,
            x_bytes,
            x_TC.shape[0],
            y_TN.ctypes.data,
            first_panel,
            last_panel,
        )


@compiled("void(int64[::1], uint8[::1], float32[:,::1], int64, int64, float32[:,::1], float32)")
def add_products(
    descriptor: Ints,
    prepared: Bytes,
    y_TN: Floats,
    first_panel: int,
    last_panel: int,
    total_TN: Floats,
    factor: float,
) -> None:
    """Add `factor` times the products of bfloat16 rows packed in tiles and some panels to `total_TN`.

    `y_TN` is scratch memory, for the sums of rows that are multiplied in parts.
    """
    N, steps, x, y = descriptor[1], descriptor[2] // 2, prepared.ctypes.data, y_TN.ctypes.data
    codes, bias, total = descriptor[4], descriptor[7], total_TN.ctypes.data
    _multiply_tile_rows(len(y_TN), N, steps, codes, bias, x, y, 4 * N, first_panel, last_panel, total, factor)


@compiled("void(int64[::1], int64, int64, int64, int64, int64, int64, int64)")
def multiply_some(
    descriptor: Ints, first_panel: int, end_panel: int, x: int, x_bytes: int, T: int, y: int, stride: int
) -> None:
    """Write the products of T rows with some panels of floats. `x` is the address of the rows, prepared as the format
    wants them, `x_bytes` from one to the next; `y` is that of the products, `stride` numbers from row to row, of which
    the panels may fill all."""
    steps = stored_steps(descriptor[0], descriptor[2])
    codes, bias = descriptor[4] + first_panel * steps * WIDTH * 4, descriptor[7] + first_panel * WIDTH * 4
    _multiply_panels(
        descriptor[0],
        stride,
        descriptor[2],
        0,
        codes,
        0,
        0,
        bias,
        x,
        x_bytes,
        T,
        y,
        4 * stride,
        0,
        end_panel - first_panel,
        descriptor[TILES_FROM],
        0,
    )


@compiled("void(int64, int64[::1], int64, int64, int64, boolean, int64)")
def multiply_to_sums(state: int, descriptor: Ints, panel: int, x: int, T: int, packs_tiles: bool, sums: int) -> None:
    """Write the products of T prepared rows (`is_summed_near`) and a panel, PANEL_BYTES a row.

    Rows packed in tiles are at most MOST_ROWS; `state` is for others, as `add_panel` takes it.
    """
    C, bias = descriptor[2], descriptor[7]
    if descriptor[0] == BFLOAT16_ROWS:
        codes, half_bytes, steps = descriptor[4] + panel * C // 2 * PANEL_BYTES, C // 4 * PANEL_BYTES, C // 2
        bias += panel * PANEL_BYTES
        if packs_tiles:
            multiply_many(T, 0, steps, steps, codes, half_bytes, bias, x, sums)
        else:
            add_panel(state, T, 0, steps, steps, codes, half_bytes, bias, x, 2 * C, sums, PANEL_BYTES)
        return
    _multiply_panels(
        descriptor[0],
        descriptor[1],
        C,
        descriptor[3],
        descriptor[4],
        descriptor[5],
        descriptor[6],
        bias,
        x,
        2 * C,
        T,
        sums - panel * PANEL_BYTES,
        PANEL_BYTES,
        panel,
        panel + 1,
        descriptor[TILES_FROM],
        1,
    )


@compiled("void(int64[::1], float32[:,::1], float32[:,::1])")
def multiply(descriptor: Ints, x_TC: Floats, y_TN: Floats) -> None:
    """Write `y = x w^T + bias` by one thread, with memory of its own for prepared rows."""
    packs_tiles = in_tiles(descriptor, x_TC.shape[0])
    prepared = np.empty(prepared_size(descriptor, x_TC.shape[0], packs_tiles), np.uint8)
    prepare_rows(descriptor, x_TC, 0, prepared, packs_tiles)
    multiply_panels(descriptor, x_TC, prepared, y_TN, 0, num_panels(descriptor), packs_tiles)


def packed_matmul(x_TC: torch.Tensor, matrix: PackedMatrix) -> torch.Tensor:
    """Return `x w^T + bias` as [T, N] in the dtype of x, float32 or bfloat16, by all threads of the pool."""
    T, x_TC32 = x_TC.shape[0], x_TC.float().contiguous()
    y_TN = torch.empty((T, matrix.outputs), dtype=torch.float32)
    parts = _block_parts if matrix.descriptor[0] == BLOCKS else _parts
    prepare, multiply_range = parts(matrix.descriptor, x_TC32, y_TN)
    if (count := _num_parts(matrix, T)) == 1:
        prepare(0, T)
        multiply_range(0, matrix.num_panels)
    else:
        share_range(prepare, T, T * matrix.inputs)
        panels = [matrix.num_panels * part // (_PARTS * count) for part in range(_PARTS * count + 1)]
        run_tasks([partial(multiply_range, *part) for part in pairwise(panels)])
    return y_TN.to(x_TC.dtype)


def _parts(descriptor: Ints, x_TC: torch.Tensor, y_TN: torch.Tensor) -> tuple[Part, Part]:
    """Return the two parts of a product, each for a range: the preparation of rows and the products with panels."""
    x, y = x_TC.numpy(), y_TN.numpy()
    packs_tiles = in_tiles(descriptor, len(x))
    prepared = np.empty(prepared_size(descriptor, len(x), packs_tiles), np.uint8)

    def prepare(first: int, last: int) -> None:
        if len(prepared):
            prepare_rows(descriptor, x[first:last], first, prepared, packs_tiles)

    def multiply_range(first: int, last: int) -> None:
        multiply_panels(descriptor, x, prepared, y, first, last, packs_tiles)

    return prepare, multiply_range


def _block_parts(descriptor: Ints, x_TC: torch.Tensor, y_TN: torch.Tensor) -> tuple[Part, Part]:
    """Return the parts of a product with block formats, by the few loops of `block_panels`."""
    _, N, C, group, table, sections, _, bias, tile_rows = descriptor.tolist()
    T = x_TC.shape[0]
    tiles = WIDENED_ROWS if 0 < tile_rows <= T else BYTE_TILES if tile_rows > 0 else NO_TILES
    size = 2 * C if tiles == WIDENED_ROWS else C // group * GROUP_BYTES
    prepared = torch.empty(-(-T // TILE_HEIGHT) * TILE_HEIGHT * size, dtype=torch.uint8)  # kept by the first part

    def prepare(first: int, last: int) -> None:
        if tiles == WIDENED_ROWS:
            pack_in_tiles(x_TC.data_ptr() + 4 * C * first, C, first, last, prepared.data_ptr())
        else:
            round_rows(x_TC.data_ptr(), C, first, last, prepared.data_ptr())

    rest = bias, prepared.data_ptr(), size, T, tiles, y_TN.data_ptr(), 4 * N
    return prepare, partial(multiply_sections, N, table, sections, *rest)


def load_products() -> None:
    """Compile or load what `packed_matmul` calls for other weights than those of block formats."""
    for loop in (num_panels, in_tiles, prepared_size, prepare_rows, multiply_panels):
        cast(loops.Loop, loop).load()


def _num_parts(matrix: PackedMatrix, num_rows: int) -> int:
    """Return how many threads share a product: so many that each has enough to read and compute."""
    work = max(matrix.nbytes // _MIN_BYTES, num_rows * matrix.outputs * matrix.inputs // _MIN_PRODUCTS)
    return max(1, min(num_threads(), matrix.num_panels, work))
