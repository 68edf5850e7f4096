"""Settings of the compiled loops of this folder and those below (`compiled`), array types, and a vectorisable `exp`."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ... import loops

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

# Sums may be taken in any order, so that they are vectorised. NaNs and infinities propagate.
_FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
_LOG2_E = np.float32(1.4426950408889634)
_LN_2 = np.float32(0.6931471805599453)

compiled = partial(loops.compiled, fastmath=_FASTMATH, error_model="numpy")
compiled_once = partial(loops.compiled_once, fastmath=_FASTMATH, error_model="numpy")
compiled_in_order = partial(loops.compiled, error_model="numpy")  # sums are taken in the order that is written


@compiled("float32(float32)")
def exp(x: np.float32) -> np.float32:
    """Return e^x for x <= 0 with a relative error of 2e-7; e^-87 for all x below -87.

    The power of two is set in the exponent's bits, the rest is a Taylor series (Cephes' expf reduces the range alike).
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
