"""Inputs of rows that stay floats where rows are rounded to int8, because they are much larger than their neighbours.

A group of inputs has one scale, so one large input would cost the others their precision. Models have such channels.
Large inputs have code 0, and their products are added as floats, behind the integers' sums and in the inputs' order, so
results do not depend on the batch either. They are listed behind a rounded row: their number as int32, four bytes that
are not used, and pairs of an int32 input and its float32 value.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types
from numpy.typing import NDArray

from .attention_inner import pointer_to
from .compiled import compiled_in_order
from .packed_matrix import INT4, INT8, WIDTH

LARGE_RATIO = 16  # of a large input's code to the mean of its group's magnitudes
_EXTRA_PLACES = 3  # of a row's list, beyond one for each group

_floats, _words, _halves = pointer_to(types.float32), pointer_to(types.int32), pointer_to(types.uint16)


@compiled_in_order("int64(int64)")
def list_bytes(groups: int) -> int:
    """Return the bytes of a row's list."""
    return 8 * (groups + _EXTRA_PLACES + 1)


@compiled_in_order("int64(float32[::1], uint8[::1], int64, int64, int64, int64)")
def set_apart(
    x_G: NDArray[np.float32], codes_G: NDArray[np.uint8], total: int, first: int, groups: int, to: int
) -> int:
    """List a group's large inputs at address `to` and return the bits of the largest magnitude of the others.

    `codes_G` are the group's codes, `total` is the sum of their magnitudes, `first` the number of its first input.
    Large inputs get code -128, which no other has. Returns -1 if there are none, or more than there is room for.
    """
    n, most = len(x_G), LARGE_RATIO * total
    count = np.int32(0)
    for i in range(n):
        count += np.int32(abs(np.int32(np.int8(codes_G[i]))) * n > most)
    length = carray(_words(to), (1,))
    if count == 0 or length[0] + count > groups + _EXTRA_PLACES:
        return -1
    largest = np.int32(0)
    for i in range(n):
        if abs(np.int32(np.int8(codes_G[i]))) * n > most:
            place = to + 8 * (length[0] + 1)
            carray(_words(place), (1,))[0] = first + i
            carray(_floats(place + 4), (1,))[0] = x_G[i]
            length[0] += 1
            codes_G[i] = np.uint8(128)
        else:
            magnitude = np.int32(np.float32(x_G[i]).view(np.int32) & np.int32(0x7FFFFFFF))
            largest = np.int32(max(largest, magnitude))
    return np.int64(largest)


@compiled_in_order("float32(uint16)")
def _half(bits: np.uint16) -> np.float32:
    """Convert a finite float16."""
    sign = np.uint32(np.uint32(bits & np.uint16(0x8000)) << np.uint32(16))
    magnitude = np.uint32(np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13)).view(np.float32) * np.float32(2.0**112)
    return np.uint32(np.float32(magnitude).view(np.uint32) | sign).view(np.float32)  # type: ignore[no-any-return]


@compiled_in_order(f"void({', '.join(['int64'] * 13)})")
def add_large_inputs(
    kind: int,
    outputs: int,
    groups: int,
    group: int,
    codes: int,
    scales: int,
    bases: int,
    rows: int,
    row_bytes: int,
    num_rows: int,
    y: int,
    first_panel: int,
    last_panel: int,
) -> None:
    """Add the products of all rows' large inputs and some panels. Arrays are given by their addresses."""
    per_word, bits = (8, 4) if kind == INT4 else (4, 8)
    mask, middle = np.int32((1 << bits) - 1), np.int32(1 << (bits - 1))
    panel_bytes = groups * group * WIDTH * bits // 8
    scale_bytes = WIDTH * (4 if kind == INT8 else 4 + 2 * groups)
    for t in range(num_rows):
        to = rows + t * row_bytes + groups * (group + 8)
        for entry in range(1, carray(_words(to), (1,))[0] + 1):
            c, value = carray(_words(to + 8 * entry), (1,))[0], carray(_floats(to + 8 * entry + 4), (1,))[0]
            # Four bits: a byte of a step has the codes of its inputs j and 4 + j.
            shift = np.int32(8 * (c % 4) + (4 * (c % 8 // 4) if kind == INT4 else 0))
            half_place = 2 * WIDTH * (c // group)
            for panel in range(first_panel, last_panel):
                width = min(WIDTH, outputs - panel * WIDTH)
                words = carray(_words(codes + panel * panel_bytes + 4 * WIDTH * (c // per_word)), (width,))
                factors = carray(_floats(scales + panel * scale_bytes), (width,))
                y_W = carray(_floats(y + (t * outputs + panel * WIDTH) * 4), (width,))
                if kind == INT8:
                    for w in range(width):
                        code = np.float32(np.int32(np.int32(np.int32(words[w] >> shift) & mask) - middle))
                        y_W[w] += value * (code * factors[w])
                    continue
                halves = carray(_halves(scales + panel * scale_bytes + 4 * WIDTH + half_place), (width,))
                if kind == INT4:
                    base = carray(_halves(bases + panel * 2 * WIDTH * groups + half_place), (width,))
                    for w in range(width):
                        code = np.float32(np.int32(np.int32(np.int32(words[w] >> shift) & mask) - middle))
                        y_W[w] += value * ((code * _half(halves[w]) + _half(base[w])) * factors[w])
                else:
                    for w in range(width):
                        code = np.float32(np.int32(np.int32(np.int32(words[w] >> shift) & mask) - middle))
                        y_W[w] += value * (code * _half(halves[w]) * factors[w])
