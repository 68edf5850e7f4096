"""bfloat16 in compiled loops: numba lacks the type, so loops widen its sixteen bits on reading and round on writing.

A loop that reads with `widen` and writes with `narrow` takes float32 arrays too: both leave a float32 unchanged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from .compiled import compiled

FloatArray = NDArray[np.float32] | NDArray[np.uint16]  # uint16: the bits of bfloat16


def for_float32_and_bfloat16(signature: str) -> tuple[str, str]:
    """Return a loop's signatures for float32 and for bfloat16 arrays; `signature` spells the element type {}."""
    return signature.replace("{}", "float32"), signature.replace("{}", "uint16")


def as_float_array(x: torch.Tensor) -> FloatArray:
    """Return a float32 or bfloat16 CPU tensor as an array that shares its memory."""
    array: FloatArray = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


def widen(number: Any) -> Any:
    """Return a number read from a FloatArray as float32. For compiled loops."""
    return _bfloat16_to_float32(number) if isinstance(number, np.uint16) else number


def narrow(value: Any, kind: Any) -> Any:
    """Round a float32 to the type of `kind`, to the nearest, ties to even. For compiled loops."""
    return float32_to_bfloat16(value) if isinstance(kind, np.uint16) else value


@compiled("float32(uint16)")
def _bfloat16_to_float32(number: np.uint16) -> np.float32:
    return np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)  # type: ignore[no-any-return]


@compiled("uint16(float32)")
def float32_to_bfloat16(value: np.float32) -> np.uint16:
    """Round to the bits of the nearest bfloat16, ties to even."""
    bits = np.float32(value).view(np.uint32)
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # NaN stays NaN
        return np.uint16((bits | np.uint32(0x400000)) >> np.uint32(16))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def _widen_bfloat16(number: Any) -> Any:
    return _bfloat16_to_float32(number)


def _narrow_to_bfloat16(value: Any, kind: Any) -> Any:
    return float32_to_bfloat16(value)


def _keep(number: Any) -> Any:
    return number


def _keep_value(value: Any, kind: Any) -> Any:
    return value


@overload(widen)
def _overload_widen(number: Any) -> Any:
    return _widen_bfloat16 if number == types.uint16 else _keep


@overload(narrow)
def _overload_narrow(value: Any, kind: Any) -> Any:
    return _narrow_to_bfloat16 if kind == types.uint16 else _keep_value
