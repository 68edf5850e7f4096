"""Corrections of bfloat16 and float8 in Triton's interpreter: sums, products and conversions go through torch.

The interpreter keeps such numbers as integers, computes with those, and rounds without a carry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

TORCH = {
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.float16: torch.float16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
}
BITS = {
    tl.bfloat16: (torch.uint16, np.uint16),
    tl.float8e4nv: (torch.uint8, np.uint8),
    tl.float8e5: (torch.uint8, np.uint8),
}


def to_torch(handle: TensorHandle) -> torch.Tensor:
    dtype = handle.dtype.scalar
    data = torch.from_numpy(np.array(handle.data))
    return data.view(TORCH[dtype]) if dtype in BITS else data


def to_handle(tensor: torch.Tensor, dtype: Any) -> TensorHandle:
    tensor = tensor.to(TORCH[dtype])
    data = tensor.view(BITS[dtype][0]).numpy().astype(BITS[dtype][1]) if dtype in BITS else tensor.numpy()
    return TensorHandle(data, dtype)


def install() -> None:
    """Patch the interpreter for the rest of the process."""
    for name in ("cast_impl", "create_fp_to_fp"):
        _convert_by_torch(name)
    for name, op in [("fadd", torch.add), ("fsub", torch.sub), ("fmul", torch.mul), ("fdiv", torch.div)]:
        _compute_by_torch(f"create_{name}", op)
    _multiply_in_float32()


def _convert_by_torch(name: str) -> None:
    original = getattr(InterpreterBuilder, name)

    def convert(self: Any, source: TensorHandle, target: Any, *rounding: Any) -> TensorHandle:
        a, b = source.dtype.scalar, target.scalar
        if (a in BITS or b in BITS) and a in TORCH and b in TORCH:
            return to_handle(to_torch(source), b)
        if a in BITS:  # to an integer
            return original(self, to_handle(to_torch(source), tl.float32), target, *rounding)
        if b in BITS:
            return to_handle(torch.from_numpy(np.array(source.data)).float(), b)
        return original(self, source, target, *rounding)

    setattr(InterpreterBuilder, name, convert)


def _compute_by_torch(name: str, op: Any) -> None:
    original = getattr(InterpreterBuilder, name)

    def compute(self: Any, a: TensorHandle, b: TensorHandle) -> TensorHandle:
        dtype = a.dtype.scalar
        return to_handle(op(to_torch(a), to_torch(b)), dtype) if dtype in BITS else original(self, a, b)

    setattr(InterpreterBuilder, name, compute)


def _multiply_in_float32() -> None:
    original = InterpreterBuilder.create_dot

    def dot(self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *rest: Any) -> TensorHandle:
        if a.dtype.scalar in BITS:
            a, b = to_handle(to_torch(a), tl.float32), to_handle(to_torch(b), tl.float32)
        return original(self, a, b, d, *rest)

    InterpreterBuilder.create_dot = dot


def uniform_dot(self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_: Any) -> TensorHandle:
    """Multiply with one order of sums for all rows of a tile, as a GPU does. The interpreter's numpy does not."""
    product = (a.data[:, :, None] * b.data[None]).sum(axis=1, dtype=np.float32)
    return TensorHandle(product + d.data, d.dtype.scalar)
