"""bfloat16 in compiled loops, which have no such type: its sixteen bits, widened when read and rounded when written.

A loop that reads with `widen` and writes with `narrow` serves float32 too, which passes through both as it is.
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
    """The signature for float32 and for bfloat16, which it spells {}."""
    return signature.replace("{}", "float32"), signature.replace("{}", "uint16")


def as_float_array(x: torch.Tensor) -> FloatArray:
    """A float32 or bfloat16 tensor on the CPU as loops take it, in its own memory."""
    array: FloatArray = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


def widen(number: Any) -> Any:
    """The float32 that a number is. Within compiled loops."""
    return _wide(number) if isinstance(number, np.uint16) else number


def narrow(value: Any, kind: Any) -> Any:
    """A float32 as a number of the kind of `kind`, rounded to the nearest, ties to even. Within compiled loops."""
    return _rounded(value) if isinstance(kind, np.uint16) else value


@compiled("float32(uint16)")
def _wide(number: np.uint16) -> np.float32:
    return np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)  # type: ignore[no-any-return]


@compiled("uint16(float32)")
def _rounded(value: np.float32) -> np.uint16:
    bits = np.float32(value).view(np.uint32)
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):  # not a number, and stays none
        return np.uint16((bits | np.uint32(0x400000)) >> np.uint32(16))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def _widened(number: Any) -> Any:
    return _wide(number)


def _narrowed(value: Any, kind: Any) -> Any:
    return _rounded(value)


def _as_it_is(number: Any) -> Any:
    return number


def _as_it_comes(value: Any, kind: Any) -> Any:
    return value


@overload(widen)
def _widen(number: Any) -> Any:
    return _widened if number == types.uint16 else _as_it_is


@overload(narrow)
def _narrow(value: Any, kind: Any) -> Any:
    return _narrowed if kind == types.uint16 else _as_it_comes
