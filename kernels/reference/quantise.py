"""Quantisation of keys and values to eight bits, and back.

A code times its head's scale is the number it stands for. Formats: int8, symmetric; e4m3, eight bits of floating point
(Micikevicius et al. 2022, "FP8 formats for deep learning", table 1).

Legend: T tokens, K key/value heads, D head size.
"""

from __future__ import annotations

import torch

E4M3 = torch.float8_e4m3fn
QUANTISED_MAX = {
    torch.int8: 127.0,
    E4M3: 448.0,
}  # largest code of each format; quantised caches have one of these dtypes

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
