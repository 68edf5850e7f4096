"""A few rows times a matrix: what decoding a small model, and verifying guesses with it, consists of.

torch and oneDNN read a matrix of a megabyte at half of what a core can; these loops read it at memory's speed, and use
what they read for up to eight rows. Numbers that came as bfloat16 are held as their sixteen bits, and widened when
read: the same float32 products from half the memory, which is more than twice as fast.

Legend: T rows, N outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from .compiled import Floats, compiled

Weights = NDArray[np.float32] | NDArray[np.uint16]  # uint16: the upper halves of float32s whose lower halves are zero


def hold(weight: torch.Tensor) -> Weights:
    """A float32 matrix as the products here take it: in half of the memory, where no bit is lost by that."""
    bits = weight.contiguous().numpy().view(np.uint32)
    if np.bitwise_and(bits, 0xFFFF).any():
        return bits.view(np.float32)
    return (bits >> 16).astype(np.uint16)


def alike(weights: Sequence[Weights]) -> list[Weights]:
    """The same matrices, all held in one way."""
    if len({weight.dtype for weight in weights}) == 1:
        return list(weights)
    return [
        (weight.astype(np.uint32) << 16).view(np.float32) if weight.dtype == np.uint16 else weight for weight in weights
    ]


def for_each_kind(signature: str) -> tuple[str, str]:
    """The signature for either kind of weights, whose type it spells {}."""
    return signature.replace("{}", "float32"), signature.replace("{}", "uint16")


def widen(number: Any) -> Any:
    """The float32 that a held number stands for. Within compiled loops."""
    return _widened(number) if isinstance(number, np.uint16) else number


def _widened(number: Any) -> Any:
    return np.uint32(np.uint32(number) << np.uint32(16)).view(np.float32)


def _as_it_is(number: Any) -> Any:
    return number


@overload(widen, inline="always")
def _widen(number: Any) -> Any:
    return _widened if number == types.uint16 else _as_it_is


@compiled(*for_each_kind("void({}[:,::1], float32[:,::1], float32[:,::1], int64)"))
def _one(w_NC: Weights, x_TC: Floats, y_TN: Floats, t: int) -> None:
    x = x_TC[t]
    for n in range(w_NC.shape[0]):
        total = np.float32(0)
        for c in range(w_NC.shape[1]):
            total += widen(w_NC[n, c]) * x[c]
        y_TN[t, n] = total


@compiled(*for_each_kind("void({}[:,::1], float32[:,::1], float32[:,::1], int64)"))
def _two(w_NC: Weights, x_TC: Floats, y_TN: Floats, t: int) -> None:
    x0, x1 = x_TC[t], x_TC[t + 1]
    for n in range(w_NC.shape[0]):
        a0 = a1 = np.float32(0)
        for c in range(w_NC.shape[1]):
            w = widen(w_NC[n, c])
            a0 += w * x0[c]
            a1 += w * x1[c]
        y_TN[t, n], y_TN[t + 1, n] = a0, a1


@compiled(*for_each_kind("void({}[:,::1], float32[:,::1], float32[:,::1], int64)"))
def _four(w_NC: Weights, x_TC: Floats, y_TN: Floats, t: int) -> None:
    """Three or four rows: of three, the last one twice."""
    last = x_TC.shape[0] - 1
    t1, t2, t3 = min(t + 1, last), min(t + 2, last), min(t + 3, last)
    x0, x1, x2, x3 = x_TC[t], x_TC[t1], x_TC[t2], x_TC[t3]
    for n in range(w_NC.shape[0]):
        a0 = a1 = a2 = a3 = np.float32(0)
        for c in range(w_NC.shape[1]):
            w = widen(w_NC[n, c])
            a0 += w * x0[c]
            a1 += w * x1[c]
            a2 += w * x2[c]
            a3 += w * x3[c]
        y_TN[t, n], y_TN[t1, n], y_TN[t2, n], y_TN[t3, n] = a0, a1, a2, a3


@compiled(*for_each_kind("void({}[:,::1], float32[:,::1], float32[:,::1], int64)"))
def _six(w_NC: Weights, x_TC: Floats, y_TN: Floats, t: int) -> None:
    """Five or six."""
    last = x_TC.shape[0] - 1
    t1, t2, t3 = min(t + 1, last), min(t + 2, last), min(t + 3, last)
    t4, t5 = min(t + 4, last), min(t + 5, last)
    x0, x1, x2 = x_TC[t], x_TC[t1], x_TC[t2]
    x3, x4, x5 = x_TC[t3], x_TC[t4], x_TC[t5]
    for n in range(w_NC.shape[0]):
        a0 = a1 = a2 = a3 = a4 = a5 = np.float32(0)
        for c in range(w_NC.shape[1]):
            w = widen(w_NC[n, c])
            a0 += w * x0[c]
            a1 += w * x1[c]
            a2 += w * x2[c]
            a3 += w * x3[c]
            a4 += w * x4[c]
            a5 += w * x5[c]
        y_TN[t, n], y_TN[t1, n], y_TN[t2, n] = a0, a1, a2
        y_TN[t3, n], y_TN[t4, n], y_TN[t5, n] = a3, a4, a5


@compiled(*for_each_kind("void({}[:,::1], float32[:,::1], float32[:,::1], int64)"))
def _eight(w_NC: Weights, x_TC: Floats, y_TN: Floats, t: int) -> None:
    """Seven or eight."""
    last = x_TC.shape[0] - 1
    t1, t2, t3, t4 = min(t + 1, last), min(t + 2, last), min(t + 3, last), min(t + 4, last)
    t5, t6, t7 = min(t + 5, last), min(t + 6, last), min(t + 7, last)
    x0, x1, x2, x3 = x_TC[t], x_TC[t1], x_TC[t2], x_TC[t3]
    x4, x5, x6, x7 = x_TC[t4], x_TC[t5], x_TC[t6], x_TC[t7]
    for n in range(w_NC.shape[0]):
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = np.float32(0)
        for c in range(w_NC.shape[1]):
            w = widen(w_NC[n, c])
            a0 += w * x0[c]
            a1 += w * x1[c]
            a2 += w * x2[c]
            a3 += w * x3[c]
            a4 += w * x4[c]
            a5 += w * x5[c]
            a6 += w * x6[c]
            a7 += w * x7[c]
        y_TN[t, n], y_TN[t1, n], y_TN[t2, n], y_TN[t3, n] = a0, a1, a2, a3
        y_TN[t4, n], y_TN[t5, n], y_TN[t6, n], y_TN[t7, n] = a4, a5, a6, a7


@compiled(*for_each_kind("void({}[:,::1], float32[::1], float32[:,::1], float32[:,::1])"))
def multiply(w_NC: Weights, bias: Floats, x_TC: Floats, y_TN: Floats) -> None:
    """`y = x w^T + bias`; a `bias` without numbers is none."""
    t, T = 0, x_TC.shape[0]
    while t < T:
        rest = T - t
        if rest > 6:
            _eight(w_NC, x_TC, y_TN, t)
            t += 8
        elif rest > 4:
            _six(w_NC, x_TC, y_TN, t)
            t += 6
        elif rest > 2:
            _four(w_NC, x_TC, y_TN, t)
            t += 4
        elif rest == 2:
            _two(w_NC, x_TC, y_TN, t)
            t += 2
        else:
            _one(w_NC, x_TC, y_TN, t)
            t += 1
    if len(bias):
        for t in range(T):
            for n in range(len(bias)):
                y_TN[t, n] += bias[n]


def few_rows_product(x_TC: torch.Tensor, w_NC: Weights, bias: Floats) -> torch.Tensor:
    """`x w^T + bias` as [T, N], float32 on the CPU."""
    y_TN = x_TC.new_empty((len(x_TC), len(w_NC)))
    multiply(w_NC, bias, x_TC.contiguous().numpy(), y_TN.numpy())
    return y_TN
