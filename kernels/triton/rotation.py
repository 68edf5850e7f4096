"""Hadamard rotations of heads, as `reference.quantise.rotate` makes them.

Legend: T tokens, H heads, D head size, N heads of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..reference.quantise import rotation_size
from .launching import launch


def rotate(x_THD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return each head's numbers, rotated, as `dtype`."""
    T, H, D = x_THD.shape
    out_THD = torch.empty((T, H, D), dtype=dtype, device=x_THD.device)
    block_n = min(triton.next_power_of_2(H), 16)
    launch(
        _rotate_heads,
        (T, triton.cdiv(H, block_n)),
        x_THD,
        out_THD,
        x_THD.stride(0),
        x_THD.stride(1),
        H=H,
        D=D,
        BLOCK_N=block_n,
        BLOCK_D=triton.next_power_of_2(D),
        ROTATION=rotation_size(D),
        FACTOR=rotation_size(D) ** -0.5,
        num_warps=4,
    )
    return out_THD


@triton.jit
def _sums_and_differences(x_ND, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, APART: tl.constexpr, SIZE: tl.constexpr):
    """Replace each pair of numbers APART from each other, within matrices of SIZE, by its sum and its difference."""
    if APART < SIZE:
        pairs = tl.reshape(x_ND, [BLOCK_N, BLOCK_D // (2 * APART), 2, APART])
        a, b = tl.split(tl.permute(pairs, [0, 1, 3, 2]))
        x_ND = tl.reshape(tl.permute(tl.join(a + b, a - b), [0, 1, 3, 2]), [BLOCK_N, BLOCK_D])
    return x_ND


@triton.jit
def rotate_rows(x_ND, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SIZE: tl.constexpr, FACTOR: tl.constexpr):
    """Multiply by Hadamard matrices of SIZE along the diagonal: the sums are those of the plain torch, in its order."""
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 1, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 2, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 4, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 8, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 16, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 32, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 64, SIZE)
    x_ND = _sums_and_differences(x_ND, BLOCK_N, BLOCK_D, 128, SIZE)
    return x_ND * FACTOR


@triton.jit
def _rotate_heads(
    x_THD,
    out_THD,
    stride_t,
    stride_h,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROTATION: tl.constexpr,
    FACTOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    valid_ND = (n < H)[:, None] & (d < D)[None, :]
    x_ND = tl.load(x_THD + token * stride_t + n[:, None] * stride_h + d[None, :], mask=valid_ND, other=0.0)
    x_ND = x_ND.to(tl.float32)
    x_ND = rotate_rows(x_ND, BLOCK_N, BLOCK_D, ROTATION, FACTOR)
    at_ND = (token * H + n)[:, None] * D + d[None, :]
    tl.store(out_THD + at_ND, x_ND.to(out_THD.dtype.element_ty), mask=valid_ND)
