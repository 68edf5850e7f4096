"""Rounding dense weights to 8 or 4 bits, to nearest.

Legend: N rows (outputs), C columns (inputs), G groups of a row.
"""

from __future__ import annotations

import torch

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
_SIGN = -0x8000  # of an int16
FP4_MAX = 6.0
_MX_GROUP = 32
NVFP4_GROUP = 16
MANY_ROWS = 256  # from so many rows on, products on a GPU are bound by compute: an estimate, to be measured
GROUP_SIZES = (128, 64, 32)  # supported by the int4 product, the smallest overhead first


def int8_rows(weight_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round symmetrically to int8 [N, C] and float32 scales [N, 1]: weight = codes * scale; a row's largest is
    +-127."""
    weight_NC = weight_NC.float()
    scale_N1 = _nonzero(weight_NC.abs().amax(1, keepdim=True) / 127)
    return (weight_NC / scale_N1).round_().clamp_(-127, 127).to(torch.int8), scale_N1


def fp8_rows(weight_NC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to float8 e4m3 [N, C] and float32 scales [N, 1]: weight = codes * scale; a row's largest is +-448."""
    weight_NC = weight_NC.float()
    scale_N1 = _nonzero(weight_NC.abs().amax(1, keepdim=True) / FP8_MAX)
    return (weight_NC / scale_N1).clamp_(-FP8_MAX, FP8_MAX).to(FP8), scale_N1


def fp8_as_bfloat16(codes: torch.Tensor) -> torch.Tensor:
    """Convert finite e4m3 numbers, a dozen times as fast as `codes.to(torch.bfloat16)` on a CPU.

    e4m3's bits, with three of mantissa, are put where bfloat16 has its exponent's low four and its mantissa's high
    three. The two exponents' biases, 7 and 127, then differ by a factor that one product makes good exactly, also for
    subnormals.
    """
    bits = codes.view(torch.int8).to(torch.int16)  # sign extension fills bits that are cleared below
    return bits.bitwise_left_shift_(4).bitwise_and_(_SIGN | 0x7F0).view(torch.bfloat16).mul_(2.0**120)


def int4_groups(weight_NC: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round asymmetrically: uint8 codes [N, C], scales [N, G] and uint8 zero points [N, G]; codes and zeros in [0, 16).

    weight = (code - zero) * scale. Scales are float32 values that bfloat16 holds. A group's range is widened to hold 0,
    which is represented exactly.
    """
    N, C = weight_NC.shape
    groups = weight_NC.float().view(N, C // group_size, group_size)
    low, high = groups.amin(2).clamp_(max=0), groups.amax(2).clamp_(min=0)
    scale_NG = _nonzero((high - low) / 15).bfloat16().float()
    zero_NG = (-low / scale_NG).round_().clamp_(0, 15)
    codes = (groups / scale_NG[..., None] + zero_NG[..., None]).round_().clamp_(0, 15)
    return codes.view(N, C).to(torch.uint8), scale_NG, zero_NG.to(torch.uint8)


def input_codes(
    x_TC: torch.Tensor, dtype: torch.dtype, scale_1: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows to codes of `dtype`, int8 or FP8, with scales [T, 1]: the stored `scale_1`, or None: one by row."""
    if scale_1 is None:
        return fp8_rows(x_TC) if dtype == FP8 else int8_rows(x_TC)
    scaled = x_TC.float() / scale_1
    if dtype == FP8:
        codes = scaled.clamp_(-FP8_MAX, FP8_MAX).to(FP8)
    else:
        codes = scaled.round_().clamp_(-128, 127).to(torch.int8)
    return codes, scale_1.expand(len(x_TC), 1)


def keep_larger_scale(scale_1: torch.Tensor, stored: float) -> None:
    """Take the scale `stored` if it is larger: of fused modules it keeps the range of all their inputs.

    Raises ValueError for a scale that is not above 0.
    """
    if not 0 < stored < float("inf"):
        raise ValueError(f"is {stored}: a scale of inputs is above 0")
    scale_1.clamp_(min=stored)


def mx_groups(x_TC: torch.Tensor, bits: int) -> torch.Tensor:
    """Round rows to e2m1 numbers (4 bits) or e4m3 ones (8) times a power of two per 32, and return them in float32.

    The power follows the group's largest magnitude, as compressed-tensors computes it: from 1.75 times a power of two
    on it is the next one.
    """
    groups = x_TC.float().unflatten(1, (-1, _MX_GROUP))
    mantissa, exponent = torch.frexp(groups.abs().amax(2, keepdim=True))
    exponent = exponent - (mantissa < 0.875).int() - (2 if bits == 4 else 8)
    scaled = torch.ldexp(groups, -exponent)
    scaled = _e2m1(scaled) if bits == 4 else scaled.clamp_(-FP8_MAX, FP8_MAX).to(FP8).float()
    return torch.ldexp(scaled, exponent).flatten(1)


def nv_groups(x_TC: torch.Tensor, scale_1: torch.Tensor) -> torch.Tensor:
    """Round rows to e2m1 numbers times an e4m3 number per 16 times `scale_1`, and return them in float32."""
    groups = x_TC.float().unflatten(1, (-1, NVFP4_GROUP))
    largest = groups.abs().amax(2, keepdim=True)
    scale = (largest / (FP4_MAX * scale_1)).clamp_(max=FP8_MAX).to(FP8).float() * scale_1
    # A group whose scale becomes 0 is one of zeros.
    return (_e2m1(groups / torch.where(scale == 0, torch.inf, scale)) * scale).flatten(1)


def _e2m1(scaled: torch.Tensor) -> torch.Tensor:
    """Round to 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; from the middle to the even code."""
    size = scaled.abs().clamp_(max=FP4_MAX)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return (size / step).round_() * step * scaled.sign()


def int4_group_size(*nums_inputs: int) -> int | None:
    """Return the largest group size that divides rows of all these lengths; None when there is none."""
    return next((size for size in GROUP_SIZES if all(count % size == 0 for count in nums_inputs)), None)


def _nonzero(scale: torch.Tensor) -> torch.Tensor:
    # A zero row may have any scale; a scale too small for its stored type would become 0 or inf.
    return scale.clamp_(min=1e-7)
