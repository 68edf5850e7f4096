"""Eight-bit keys and values: how numbers become codes, and codes numbers. Knows tensors; knows no caches.

A code times its head's scale is the number meant. Formats: int8, symmetric; e4m3, eight bits of floating point
(Micikevicius et al. 2022, "FP8 formats for deep learning", table 1).

Legend: T tokens, K key/value heads, D head size.
"""

from __future__ import annotations

import torch

E4M3 = torch.float8_e4m3fn
QUANTISED_MAX = {torch.int8: 127.0, E4M3: 448.0}  # of the formats; quantised caches have one of these dtypes

# An e4m3 code, shifted, is the same number in a wider format but for the bias of its exponent, subnormals included:
# the integer to do it in, the shift, the bits to keep (sign, exponent, mantissa), and what makes up for the bias.
_WIDER = {
    torch.float64: (torch.int64, 49, -0x7F02000000000000, 2.0**1016),
    torch.float32: (torch.int32, 20, -0x78100000, 2.0**120),
    torch.bfloat16: (torch.int16, 4, -0x7810, 2.0**120),
    torch.float16: (torch.int16, 7, -0x4080, 2.0**8),
}


def quantise(x_TKD: torch.Tensor, scale_K: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest codes of `dtype` (ties to even); what is out of range becomes the largest there is. `scale_K` is
    float32."""
    scaled = x_TKD.float() / scale_K[:, None]
    if dtype == torch.int8:
        scaled = scaled.round_()
    return scaled.clamp_(-QUANTISED_MAX[dtype], QUANTISED_MAX[dtype]).to(dtype)


def expand_e4m3(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers that e4m3 `codes`, as the int8 of the same bits, stand for, without a scale; exact. NaN is not told
    from 480.

    On CPUs torch converts e4m3 one number after the other, eight times slower than these three passes.
    """
    integer, shift, bits, factor = _WIDER[dtype]
    wide = codes.to(integer)  # the sign is extended: after the shift it is at the top
    wide <<= shift
    wide &= bits
    return wide.view(dtype).mul_(factor)
