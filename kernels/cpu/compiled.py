"""How loops are compiled here, and what numba has no vectorised form of."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ... import loops

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

# Sums may be taken in any order: that is what lets them be vectorised. What is not a number stays none.
_FREEDOMS = {"reassoc", "contract", "arcp", "nsz"}
_LOG2_E = np.float32(1.4426950408889634)
_LN_2 = np.float32(0.6931471805599453)

compiled = partial(loops.compiled, fastmath=_FREEDOMS, error_model="numpy")


@compiled("float32(float32)")
def exp(x: np.float32) -> np.float32:
    """e^x for x <= 0, to 2e-7 of itself down to e^-87, which is what all below it get.

    Halves and doubles by the exponent's bits, the rest by the series (Cephes' expf has the same range reduction).
    """
    x = max(x, np.float32(-87))
    n = np.floor(x * _LOG2_E + np.float32(0.5))
    r = x - n * _LN_2
    series = np.float32(1 / 5040) * r + np.float32(1 / 720)
    series = series * r + np.float32(1 / 120)
    series = series * r + np.float32(1 / 24)
    series = series * r + np.float32(1 / 6)
    series = series * r + np.float32(0.5)
    series = series * r + np.float32(1)
    series = series * r + np.float32(1)
    exponent = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))
    return series * exponent.view(np.float32)  # type: ignore[no-any-return]
