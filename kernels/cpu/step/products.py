"""The products of a compiled decoder step, which threads share: rows are prepared, panels multiplied, adapters added.

Threads meet after each phase (`shared_phases`). Adapters are as in `lora`: `adapters_AW` are their records, empty for a
step without any.

Legend: T tokens, E hidden size, C inputs, N outputs, I intermediate size, J = 2 I, W words; of adapters A adapters, N
tokens, S sections, R inner numbers.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from ..compiled import Floats, Ints, compiled
from ..layers import activate, activate_gated, activate_row, normalise
from ..pointers import address_of, pointer_to, stack_memory
from ..products.amx import (
    MOST_ROWS,
    PANEL_BYTES,
    SUMS_BYTES,
    TILE_HEIGHT,
    begin_panels,
    end_panels,
    local_state,
    packed_place,
)
from ..products.block_panels import round_to_bfloat16
from ..products.matmul import (
    FEW_ROWS,
    TILE_INPUTS,
    add_products,
    in_tiles,
    is_summed_near,
    multiply_panels,
    multiply_to_sums,
    num_panels,
    prepare_rows,
    prepared_row,
    prepared_size,
    tile_rows_of_block,
)
from ..products.packed_matrix import BFLOAT16_ROWS, FLOAT32, INT8, WIDTH
from .lora import add_outer, multiply_inner, num_inner_rows
from .phases import claim, claim_near, complete, complete_tasks, wait

Bytes = NDArray[np.uint8]
_floats = pointer_to(types.float32)

_TASKS_PER_THREAD = 8
# Tasks of many rows divide the rows, not the panels, where a matrix of floats has at most so many bytes: each block of
# rows reads it from a cache, and a thread's rows are mostly those that it has written in the phase before, while its
# panels would read all rows. Matrices of integers are not divided so: a panel is unpacked once for many rows.
_BYTES_OF_ROW_TASKS, _ROWS_OF_TASK = 4 << 20, 64
_ROWS_TOGETHER = 2 * TILE_HEIGHT  # are in one task
_ROWS_OF_NORM = 4
_SUMS_BYTES = 2 * SUMS_BYTES  # of a panel of gates and one of ups
_SMALL_TASKS_PER_THREAD = 64  # of a product of few rows, which read a panel once


@compiled("int64(int64, int64)")
def num_parts(size: int, num_threads: int) -> int:
    """Return the number of tasks that `size` rows or panels are divided into."""
    return 1 if num_threads == 1 else min(size, _TASKS_PER_THREAD * num_threads)


@compiled("int64(int64, int64, int64)")
def num_panel_parts(panels: int, num_rows: int, num_threads: int) -> int:
    """Return the number of tasks that a product's panels are divided into."""
    per_thread = _SMALL_TASKS_PER_THREAD if num_rows <= FEW_ROWS else _TASKS_PER_THREAD
    return 1 if num_threads == 1 else min(panels, per_thread * num_threads)


@compiled("int64(int64[::1], int64, int64, int64)")
def _num_row_parts(matrix_W: Ints, num_rows: int, num_adapters: int, num_threads: int) -> int:
    """Return the number of tasks that a product's rows are divided into; 0 if its panels are instead."""
    num_bytes = matrix_W[1] * matrix_W[2] * (4 if matrix_W[0] == FLOAT32 else 2)
    if num_threads == 1 or num_adapters > 0 or num_bytes > _BYTES_OF_ROW_TASKS or matrix_W[0] >= INT8:
        return 0
    per_thread = num_rows // (num_threads * _ROWS_OF_TASK)
    return num_threads * per_thread if per_thread > 1 else 0  # type: ignore[no-any-return]


@compiled("UniTuple(int64, 2)(int64[::1], int64, int64, int64, int64)")
def _num_tasks(matrix_W: Ints, panels: int, num_rows: int, num_adapters: int, num_threads: int) -> tuple[int, int]:
    """Return into how many parts a product's rows are divided for its tasks, and its panels."""
    if num_threads == 1 and not in_tiles(matrix_W, num_rows):
        return 1, 1
    if num_adapters == 0 and in_tiles(matrix_W, num_rows):
        blocks = -(-num_rows // tile_rows_of_block(matrix_W))
        return blocks, min(panels, -(-_TASKS_PER_THREAD * num_threads // blocks))
    row_parts = _num_row_parts(matrix_W, num_rows, num_adapters, num_threads)
    return (row_parts, 1) if row_parts > 0 else (1, num_panel_parts(panels, num_rows, num_threads))


@compiled("UniTuple(int64, 4)(int64, int64, int64, int64, int64)")
def _task_range(part: int, row_parts: int, panel_parts: int, num_rows: int, panels: int) -> tuple[int, int, int, int]:
    """Return the rows and the panels of a task, [first, end) each. Tasks of the same rows follow each other."""
    row_part, panel_part = part // panel_parts, part % panel_parts
    blocks = -(-num_rows // _ROWS_TOGETHER)
    begin = blocks * row_part // row_parts * _ROWS_TOGETHER
    stop = min(num_rows, blocks * (row_part + 1) // row_parts * _ROWS_TOGETHER)
    return begin, stop, panels * panel_part // panel_parts, panels * (panel_part + 1) // panel_parts


@compiled(
    "void(int64[::1], int64, int64, boolean, int64[::1], float32[:,::1], int64, float32, boolean, float32[:,::1],"
    " uint8[::1], boolean)"
)
def prepare(
    phases: Ints,
    phase: int,
    num_threads: int,
    alone: bool,
    matrix_W: Ints,
    x_TC: Floats,
    norm: int,
    eps: float,
    is_layer_norm: bool,
    normed_TC: Floats,
    prepared: Bytes,
    keeps: bool,
) -> None:
    """Prepare all rows for the product with a matrix, after a norm if `norm`, the address of its weights, is not 0.

    Each thread prepares all rows in memory of its own if `alone`, else the threads share the rows. Rows after the norm
    are written to `normed_TC` if the format multiplies them as they are, or with `keeps`.
    """
    T, as_they_are = len(x_TC), prepared_size(matrix_W, 1, False) == 0
    if norm == 0 and as_they_are:
        return
    keeps = keeps or as_they_are
    some_RC = np.empty((0 if keeps or norm == 0 else _ROWS_OF_NORM, x_TC.shape[1]), np.float32)
    parts, packs_tiles = 1 if alone else num_parts(T, num_threads), in_tiles(matrix_W, T)
    while True:
        part = 0 if alone else claim(phases, phase, parts)
        if part < 0:
            break
        first, end = T * part // parts, T * (part + 1) // parts
        for row in range(first, end if norm != 0 else first, _ROWS_OF_NORM):  # which stay in the first cache
            last = min(row + _ROWS_OF_NORM, end)
            normed_RC = normed_TC[row:last] if keeps else some_RC[: last - row]
            normalise(x_TC[row:last], norm, eps, is_layer_norm, normed_RC)
            prepare_rows(matrix_W, normed_RC, row, prepared, packs_tiles)
        if norm == 0:
            prepare_rows(matrix_W, x_TC[first:end], first, prepared, packs_tiles)
        if alone:
            return
        complete(phases, phase, parts)
    wait(phases, phase, parts)


@compiled("void(int64[::1], int64, int64, float32[:,::1], int64[:,::1], int64[::1], int64[::1], int64, float32[:,::1])")
def multiply_adapters(
    phases: Ints,
    phase: int,
    num_threads: int,
    x_TC: Floats,
    adapters_AW: Ints,
    tokens_N: Ints,
    ends_A: Ints,
    num_sections: int,
    inner_NR: Floats,
) -> None:
    """Write the inner products of the adapters' tokens, if there are any, for `add_outer`."""
    rows = num_inner_rows(adapters_AW, num_sections)
    if rows == 0:
        return
    parts = num_parts(rows, num_threads)
    while True:
        part = claim(phases, phase, parts)
        if part < 0:
            break
        first, end = rows * part // parts, rows * (part + 1) // parts
        multiply_inner(first, end, x_TC, adapters_AW, tokens_N, ends_A, num_sections, inner_NR)
        complete(phases, phase, parts)
    wait(phases, phase, parts)


@compiled(
    "void(int64[::1], int64, int64, int64, int64[::1], float32[:,::1], uint8[::1], float32[:,::1], float32[:,::1],"
    " float32, float32[:,::1], int64[:,::1], int64[::1], int64[::1], int64[::1])"
)
def multiply(
    phases: Ints,
    phase: int,
    thread: int,
    num_threads: int,
    matrix_W: Ints,
    x_TC: Floats,
    prepared: Bytes,
    y_TN: Floats,
    sum_TN: Floats,
    factor: float,
    inner_NR: Floats,
    adapters_AW: Ints,
    tokens_N: Ints,
    ends_A: Ints,
    sizes_S: Ints,
) -> None:
    """Write `y = x w^T + bias`, adapters included, or if `factor` is not 0 add `factor` times that to `sum_TN`.

    What y has then is not defined.
    """
    T, N = y_TN.shape
    panels, count, packs_tiles = num_panels(matrix_W), 0, in_tiles(matrix_W, T)
    row_parts, panel_parts = _num_tasks(matrix_W, panels, T, len(adapters_AW), num_threads)
    parts, row_bytes = row_parts * panel_parts, prepared_row(matrix_W, packs_tiles)
    while True:
        part = claim_near(phases, phase, parts, thread, num_threads)
        if part < 0:
            break
        begin, stop, first, end = _task_range(part, row_parts, panel_parts, T, panels)
        own = prepared[begin * row_bytes :]
        count += 1
        if packs_tiles and matrix_W[0] == BFLOAT16_ROWS and factor != 0 and len(adapters_AW) == 0:
            add_products(matrix_W, own, y_TN[begin:stop], first, end, sum_TN[begin:stop], factor)
            continue
        multiply_panels(matrix_W, x_TC[begin:stop], own, y_TN[begin:stop], first, end, packs_tiles)
        if len(adapters_AW) > 0:
            add_outer(first * WIDTH, end * WIDTH, inner_NR, adapters_AW, tokens_N, ends_A, sizes_S, y_TN)
        if factor != 0:
            for t in range(begin, stop):
                for n in range(first * WIDTH, min(end * WIDTH, N)):
                    sum_TN[t, n] += factor * y_TN[t, n]
    complete_tasks(phases, phase, count, parts)
    wait(phases, phase, parts)


@compiled(
    "void(int64[::1], int64, int64, int64, int64[::1], float32[:,::1], uint8[::1], float32[:,::1], int64,"
    " float32[:,::1], int64[:,::1], int64[::1], int64[::1], int64[::1])"
)
def multiply_up(
    phases: Ints,
    phase: int,
    thread: int,
    num_threads: int,
    matrix_W: Ints,
    x_TE: Floats,
    prepared: Bytes,
    up_TI: Floats,
    activation: int,
    inner_NR: Floats,
    adapters_AW: Ints,
    tokens_N: Ints,
    ends_A: Ints,
    sizes_S: Ints,
) -> None:
    """Write the activated product of `x_TE` and the matrix, of an MLP without a gate."""
    size = up_TI.shape[1]
    panels = num_panels(matrix_W)
    parts, packs_tiles = num_panel_parts(panels, len(x_TE), num_threads), in_tiles(matrix_W, len(x_TE))
    count = 0
    while True:
        part = claim_near(phases, phase, parts, thread, num_threads)
        if part < 0:
            break
        first, end = panels * part // parts, panels * (part + 1) // parts
        multiply_panels(matrix_W, x_TE, prepared, up_TI, first, end, packs_tiles)
        if len(adapters_AW) > 0:
            add_outer(first * WIDTH, end * WIDTH, inner_NR, adapters_AW, tokens_N, ends_A, sizes_S, up_TI)
        activate(up_TI, first * WIDTH, min(end * WIDTH, size), activation)
        count += 1
    complete_tasks(phases, phase, count, parts)
    wait(phases, phase, parts)


@compiled("boolean(int64[::1], int64[::1], int64, int64, int64)")
def packs_gated(matrix_W: Ints, down_W: Ints, num_rows: int, size: int, num_adapters: int) -> bool:
    """Return True if `multiply_gate_up` may write its result as the product with `down_W` takes it."""
    alike = in_tiles(matrix_W, num_rows) == in_tiles(down_W, num_rows)
    near = is_summed_near(matrix_W, num_rows) and is_summed_near(down_W, num_rows)
    return size % WIDTH == 0 and num_adapters == 0 and near and alike


@compiled("void(int64[::1], uint8[::1], float32[:,::1], int64, int64, int64, int64, boolean, float32[:,:,::1], int64)")
def _multiply_near(
    matrix_W: Ints,
    prepared: Bytes,
    gated_TI: Floats,
    begin: int,
    stop: int,
    first: int,
    end: int,
    is_gelu: bool,
    sums_2RW: Floats,
    packed_bytes: int,
) -> None:
    """Write act(gate) * up of the rows [begin, stop) and the panels [first, end) of gates (`is_summed_near`).

    Sums are activated where they are. `packed_bytes` is as in `multiply_gate_up`.
    """
    panels, packs_tiles, state = gated_TI.shape[1] // WIDTH, in_tiles(matrix_W, len(gated_TI)), local_state()
    x, packed = address_of(prepared) + begin * prepared_row(matrix_W, packs_tiles), address_of(gated_TI)
    gated_W = carray(_floats(stack_memory(PANEL_BYTES)), (WIDTH,))
    begin_panels(state)
    for panel in range(first, end):
        for half in range(2):
            sums = address_of(sums_2RW[half])
            multiply_to_sums(state, matrix_W, panel + half * panels, x, stop - begin, packs_tiles, sums)
        for row in range(stop - begin):
            gate_W, up_W = sums_2RW[0, row], sums_2RW[1, row]
            if packed_bytes == 0:
                activate_row(gate_W, up_W, gated_TI[begin + row, panel * WIDTH : (panel + 1) * WIDTH], is_gelu)
                continue
            activate_row(gate_W, up_W, gated_W, is_gelu)
            for place in range(0, WIDTH, TILE_INPUTS):
                step = (panel * WIDTH + place) // 2
                to = packed + (begin + row) * packed_bytes + 4 * step
                if packs_tiles:
                    to = packed + packed_place(begin + row, step, packed_bytes // 4)
                round_to_bfloat16(address_of(gated_W) + 4 * place, TILE_INPUTS, to)
    end_panels(state)


@compiled(
    "void(int64[::1], int64, int64, int64, int64, int64[::1], float32[:,::1], uint8[::1], float32[:,::1],"
    " float32[:,::1], boolean, float32[:,::1], int64[:,::1], int64[::1], int64[::1], int64[::1], int64)"
)
def multiply_gate_up(
    phases: Ints,
    phase: int,
    activation_phase: int,
    thread: int,
    num_threads: int,
    matrix_W: Ints,
    x_TE: Floats,
    prepared: Bytes,
    gate_up_TJ: Floats,
    gated_TI: Floats,
    is_gelu: bool,
    inner_NR: Floats,
    adapters_AW: Ints,
    tokens_N: Ints,
    ends_A: Ints,
    sizes_S: Ints,
    packed_bytes: int,
) -> None:
    """Write act(gate) * up, where gate and up are the halves of the product of `x_TE` and the matrix.

    With `packed_bytes` they are written as prepared rows of so many bytes each, which `packs_gated` allows.
    """
    T, size = gated_TI.shape
    if size % WIDTH == 0:  # a panel of gates and one of ups are activated while they are in the cache
        panels, count, packs_tiles = size // WIDTH, 0, in_tiles(matrix_W, T)
        row_parts, panel_parts = _num_tasks(matrix_W, panels, T, len(adapters_AW), num_threads)
        parts, row_bytes = row_parts * panel_parts, prepared_row(matrix_W, packs_tiles)
        is_near = is_summed_near(matrix_W, T) and len(adapters_AW) == 0  # sums are activated where they are
        sums_2RW = carray(_floats(stack_memory(_SUMS_BYTES)), (2, MOST_ROWS, WIDTH))
        while True:
            part = claim_near(phases, phase, parts, thread, num_threads)
            if part < 0:
                break
            begin, stop, first, end = _task_range(part, row_parts, panel_parts, T, panels)
            if is_near:
                _multiply_near(matrix_W, prepared, gated_TI, begin, stop, first, end, is_gelu, sums_2RW, packed_bytes)
                count += 1
                continue
            x_RE, own, y_RJ = x_TE[begin:stop], prepared[begin * row_bytes :], gate_up_TJ[begin:stop]
            multiply_panels(matrix_W, x_RE, own, y_RJ, first, end, packs_tiles)
            multiply_panels(matrix_W, x_RE, own, y_RJ, panels + first, panels + end, packs_tiles)
            if len(adapters_AW) > 0:
                for start in (0, size):
                    low, high = start + first * WIDTH, start + end * WIDTH
                    add_outer(low, high, inner_NR, adapters_AW, tokens_N, ends_A, sizes_S, gate_up_TJ)
            activate_gated(gate_up_TJ, gated_TI, begin, stop, first * WIDTH, end * WIDTH, is_gelu)
            count += 1
        complete_tasks(phases, phase, count, parts)
        wait(phases, phase, parts)
        return
    multiply(
        phases, phase, thread, num_threads, matrix_W, x_TE, prepared, gate_up_TJ, gate_up_TJ, np.float32(0),
        inner_NR, adapters_AW, tokens_N, ends_A, sizes_S,
    )  # fmt: skip
    parts = num_parts(T, num_threads)
    while True:
        part = claim(phases, activation_phase, parts)
        if part < 0:
            break
        activate_gated(gate_up_TJ, gated_TI, T * part // parts, T * (part + 1) // parts, 0, size, is_gelu)
        complete(phases, activation_phase, parts)
    wait(phases, activation_phase, parts)
