"""Quantisation of keys and values to eight bits, and back, and the rotation of those with scales of their own.

Formats of eight bits: int8, symmetric, and e4m3, whose codes times their head's scale are the numbers meant; e5m2, the
first half of a float16, without a scale (Micikevicius et al. 2022, "FP8 formats for deep learning", table 1).

The rotation is by a Hadamard matrix, which spreads large channels over all of them (Ashkboos et al. 2024, QuaRot,
section 4). `scaled_codes` packs what is rotated.

Legend: T tokens, K key/value heads, D head size.
"""

from __future__ import annotations

import torch

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PACKED_INT4 = torch.uint8  # caches of this dtype hold packed four-bit codes
QUANTISED_MAX = {
    torch.int8: 127.0,
    E4M3: 448.0,
}  # largest code of each format with scales by head
_E5M2_MAX = 57344.0

# An e4m3 code, shifted, is the same number in a wider format, subnormals included, except for the bias of its exponent.
# By dtype: the integer to shift in, the shift, the bits to keep (sign, exponent, mantissa), the factor for the bias.
_WIDER = {
    torch.float64: (torch.int64, 49, -0x7F02000000000000, 2.0**1016),
    torch.float32: (torch.int32, 20, -0x78100000, 2.0**120),
    torch.bfloat16: (torch.int16, 4, -0x7810, 2.0**120),
    torch.float16: (torch.int16, 7, -0x4080, 2.0**8),
}


def quantise(x_TKD: torch.Tensor, scale_K: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the nearest codes of `dtype`, ties to even; numbers out of range become the largest code. `scale_K` is
    float32."""
    scaled = x_TKD.float() / scale_K[:, None]
    if dtype == torch.int8:
        scaled = scaled.round_()
    return scaled.clamp_(-QUANTISED_MAX[dtype], QUANTISED_MAX[dtype]).to(dtype)


def expand_e4m3(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert e4m3 `codes`, given as int8 of the same bits, to `dtype` exactly, without a scale. NaN becomes 480.

    On CPUs torch converts e4m3 one number after the other, eight times slower than these three passes.
    """
    integer, shift, bits, factor = _WIDER[dtype]
    wide = codes.to(integer)  # the sign is extended: after the shift it is at the top
    wide <<= shift
    wide &= bits
    return wide.view(dtype).mul_(factor)


def to_e5m2(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest e5m2 numbers, ties to even; numbers out of range become the largest."""
    return x.float().clamp(-_E5M2_MAX, _E5M2_MAX).to(E5M2)


def expand_e5m2(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert e5m2 `codes`, given as int8 of the same bits, to `dtype` exactly."""
    return (codes.to(torch.int16) << 8).view(torch.float16).to(dtype)


def rotation_size(head_dim: int) -> int:
    """Return the size of the Hadamard matrices along the diagonal: the largest power of two that divides `head_dim`, at
    most 256."""
    return min(head_dim & -head_dim, 256)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Multiply the last dimension by the orthonormal Hadamard matrix, which is its own inverse.

    Sums are made in float32 at least and in one order, so a row's bits do not depend on the other rows.
    """
    D = x.shape[-1]
    size = rotation_size(D)
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    half = 1
    while half < size:
        a, b = wide.unflatten(-1, (D // (2 * half), 2, half)).unbind(-2)
        wide = torch.stack((a + b, a - b), -2).flatten(-3)
        half *= 2
    factor: float = size**-0.5
    return (wide * factor).to(x.dtype)
