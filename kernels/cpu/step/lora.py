"""Low-rank products of adapters as dot loops, for the compiled decoder step.

Legend: as in `kernels.lora`; W words of an adapter's record: the addresses of A and B, the rank, and 1 if both are
bfloat16, 0 if they are float32.
"""

from __future__ import annotations

import numpy as np
from numba import carray, types

from ..bfloat16 import widen
from ..compiled import Floats, Ints, compiled
from ..pointers import pointer_to

A_ADDRESS, B_ADDRESS, RANK, IS_HALF, NUM_WORDS = range(5)
MAX_SECTIONS = 3

_floats, _halves = pointer_to(types.float32), pointer_to(types.uint16)


@compiled("int64(int64[:,::1], int64)")
def num_inner_rows(adapters_AW: Ints, num_sections: int) -> int:
    """Return the number of rows of A of all adapters together."""
    total = 0
    for adapter in range(len(adapters_AW)):
        total += num_sections * adapters_AW[adapter, RANK]
    return total


@compiled(
    "void(int64, int64, float32[:,::1], int64[:,::1], int64[::1], int64[::1], int64, float32[:,::1])"
)  # fmt: skip
def multiply_inner(
    first: int,
    end: int,
    x_TC: Floats,
    adapters_AW: Ints,
    tokens_N: Ints,
    ends_A: Ints,
    num_sections: int,
    inner_NR: Floats,
) -> None:
    """Write A x of the rows [first, end) of A, counted through all adapters, for their adapter's tokens."""
    C, before, start = x_TC.shape[1], 0, 0
    for adapter in range(len(adapters_AW)):
        rows, stop = num_sections * adapters_AW[adapter, RANK], ends_A[adapter]
        for row in range(max(first - before, 0), min(end - before, rows)):
            address = adapters_AW[adapter, A_ADDRESS]
            for n in range(start, stop):
                x_C = x_TC[tokens_N[n]]
                total = np.float32(0)
                if adapters_AW[adapter, IS_HALF]:
                    half_C = carray(_halves(address + 2 * row * C), (C,))
                    for c in range(C):
                        total += widen(half_C[c]) * x_C[c]
                else:
                    a_C = carray(_floats(address + 4 * row * C), (C,))
                    for c in range(C):
                        total += a_C[c] * x_C[c]
                inner_NR[n, row] = total
        before += rows
        start = stop


@compiled(
    "void(int64, int64, float32[:,::1], int64[:,::1], int64[::1], int64[::1], int64[::1], float32[:,::1])"
)  # fmt: skip
def add_outer(
    first: int,
    end: int,
    inner_NR: Floats,
    adapters_AW: Ints,
    tokens_N: Ints,
    ends_A: Ints,
    sizes_S: Ints,
    y_TO: Floats,
) -> None:
    """Add B (A x) to the outputs [first, end) of the adapters' tokens."""
    O, start = y_TO.shape[1], 0  # noqa: E741
    for adapter in range(len(adapters_AW)):
        rank, stop, section_start = adapters_AW[adapter, RANK], ends_A[adapter], 0
        if rank == 0:
            start = stop
            continue
        for section in range(len(sizes_S)):
            low, high = max(first, section_start), min(end, section_start + sizes_S[section], O)
            section_start += sizes_S[section]
            if low >= high:
                continue
            half_RO = carray(_halves(adapters_AW[adapter, B_ADDRESS]), (rank, O))
            b_RO = carray(_floats(adapters_AW[adapter, B_ADDRESS]), (rank, O))
            for n in range(start, stop):
                y_O = y_TO[tokens_N[n], low:high]
                inner_R = inner_NR[n, section * rank : (section + 1) * rank]
                for r in range(0, rank, 4):  # ranks are multiples of four
                    h0, h1, h2, h3 = inner_R[r], inner_R[r + 1], inner_R[r + 2], inner_R[r + 3]
                    if adapters_AW[adapter, IS_HALF]:
                        g0, g1 = half_RO[r, low:high], half_RO[r + 1, low:high]
                        g2, g3 = half_RO[r + 2, low:high], half_RO[r + 3, low:high]
                        for o in range(high - low):
                            y_O[o] += h0 * widen(g0[o]) + h1 * widen(g1[o]) + h2 * widen(g2[o]) + h3 * widen(g3[o])
                        continue
                    b0, b1 = b_RO[r, low:high], b_RO[r + 1, low:high]
                    b2, b3 = b_RO[r + 2, low:high], b_RO[r + 3, low:high]
                    for o in range(high - low):
                        y_O[o] += (h0 * b0[o] + h1 * b1[o]) + (h2 * b2[o] + h3 * b3[o])
        start = stop
