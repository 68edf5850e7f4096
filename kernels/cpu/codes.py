"""Rounds numbers to the codes of int8, e4m3 and e5m2, as `reference.quantise` does: to nearest, ties to even, numbers
out of range to the largest code."""

from __future__ import annotations

from typing import Any

import numpy as np

from .attention.inner import E4M3_CODES, INT8
from .compiled import compiled_in_order

LARGEST_INT8, LARGEST_E4M3, LARGEST_E5M2 = np.float32(127), np.float32(448), np.float32(57344)
_NOT_A_NUMBER = np.uint8(127)  # e4m3 and e5m2 without their sign


@compiled_in_order("uint8(float32, int64)")
def nearest_code(y: np.float32, dtype: int) -> np.uint8:
    """Return the code of the nearest number of int8, e4m3 or e5m2; NaN of a number that is none, but 0 in int8."""
    y = np.float32(y)
    if dtype == INT8:
        return np.uint8(np.int8(np.rint(min(max(y, -LARGEST_INT8), LARGEST_INT8)))) if y == y else np.uint8(0)
    if y != y:
        return _NOT_A_NUMBER
    mantissa, bias, largest = (3, 7, LARGEST_E4M3) if dtype == E4M3_CODES else (2, 15, LARGEST_E5M2)
    size = min(abs(y), largest)
    if size < np.float32(2.0) ** np.float32(1 - bias):  # a subnormal number
        code = np.int64(np.rint(size * np.float32(2.0) ** np.float32(bias - 1 + mantissa)))
    else:
        bits: Any = np.int64(np.float32(size).view(np.uint32))
        bits += (1 << (22 - mantissa)) - 1 + ((bits >> (23 - mantissa)) & 1)
        code = (bits >> (23 - mantissa)) - ((127 - bias) << mantissa)
    return np.uint8(code | 128 if np.signbit(y) else code)
