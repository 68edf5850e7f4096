"""Keys and values stored as codes with scales of their own, keys relative to statistics of their layer.

A stored key is `H((R(p) k - R(p) m_p) / f)` in codes: k before rope with its bias, R(p) the rotary embedding at
position p, m the channels' mean key before rope, with a row of its own for position 0 (an attention sink, most of which
no mean explains), f a factor of a channel that the two channels of a rotary pair share, so that it commutes with R, and
H a Hadamard matrix. A stored value is `H v`. Biases and the sink would otherwise take most of the codes' range (Hooper
et al. 2024, KVQuant; Ashkboos et al. 2024, QuaRot, section 4; Lin et al. 2024, QServe, section 4.2).

Bytes depend on the token's own key or value, its position and constants: any copy of them is whole. Of a head, in int8
and e4m3: a bfloat16 scale, then D codes. In uint8, four bits: an e5m3 scale for each 32 channels (the last group may
have fewer), then D / 2 bytes, the code of channel d in the low half, of d + D / 2 in the high half.

The codes 0 to 15 stand for the levels c + c^3 / 128, c = code - 7.5: near the best ones for normal numbers. An e5m3
scale has 5 bits of exponent and 3 of mantissa, no sign and no subnormals; 255 is NaN. Score and output are linear in
what is stored: `q . (R(p) k) = H(f q) . codes * scale + q . R(p) m_p`, and one H of the output restores values.

Legend: T tokens, K key/value heads, D head size, G groups of channels, B bytes of a packed key or value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from .quantise import E4M3, PACKED_INT4, QUANTISED_MAX, expand_e4m3, rotate

GROUP = 32  # channels of four-bit codes that share a scale
CLIPS = (1.0, 0.94, 0.88, 0.82, 0.76, 0.7)  # parts of a group's largest number that the largest level may stand for
E5M3_BIAS = 19  # scales from 2^-19 to 2^12 * 1.75, so that levels reach what float16 holds
_LEAST_SCALE = 2.0**-100  # of zeros, in place of 0, which is no divisor
_MAGNITUDES = [c + c**3 / 128 for c in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5)]
LARGEST_LEVEL = _MAGNITUDES[-1]
BOUNDS = [(low + high) / 2 for low, high in pairwise(_MAGNITUDES)]


@dataclass(frozen=True, eq=False)
class KeyBasis:
    """Statistics that a layer's stored keys are relative to, float32. Keys are turned back to position 0 by the rotary
    embedding without its attention factor: what that factor multiplies is in them once."""

    mean_KD: torch.Tensor
    first_KD: torch.Tensor  # in place of the mean at position 0
    factor_KD: torch.Tensor  # positive; both channels of a rotary pair have the same, unless `mean_KD` is zero
    frequencies: torch.Tensor  # radians a position of the pairs (i, i + D / 2), [D / 2]; 0 where none rotates

    def heads(self, part: slice) -> KeyBasis:
        """Return the statistics of some heads."""
        return KeyBasis(self.mean_KD[part], self.first_KD[part], self.factor_KD[part], self.frequencies)

    def offsets(self, positions: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return `R(p) m_p` of integer positions [...], [..., K, D]."""
        phases = positions.double()[..., None] * self.frequencies.double()
        cos, sin = phases.cos().to(dtype)[..., None, :], phases.sin().to(dtype)[..., None, :]
        low, high = self.mean_KD.to(dtype).chunk(2, dim=-1)
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
        return torch.where((positions == 0)[..., None, None], self.first_KD.to(dtype), turned)


def scaled_size(head_dim: int, dtype: torch.dtype) -> int:
    """Return B, the elements of a cache of `dtype` that hold one head's key or value with its scales."""
    return head_dim // 2 + -(-head_dim // GROUP) if dtype == PACKED_INT4 else head_dim + 2


def stored_size(head_dim: int, dtype: torch.dtype, *, is_scaled: bool = False) -> int:
    """Return the elements of a cache of `dtype` that hold one head's key or value; `is_scaled`: with scales of its own,
    as four bits always have."""
    return scaled_size(head_dim, dtype) if is_scaled or dtype == PACKED_INT4 else head_dim


def scaled_head_dim(size: int, dtype: torch.dtype) -> int:
    """Return the head size of which `scaled_size` is `size`."""
    if dtype != PACKED_INT4:
        return size - 2
    # A group has 17 bytes; one with fewer channels is shorter by half of those.
    whole, rest = divmod(size, GROUP // 2 + 1)
    return whole * GROUP + 2 * max(rest - 1, 0)


def pack_keys(k_TKD: torch.Tensor, positions_T: torch.Tensor, basis: KeyBasis, dtype: torch.dtype) -> torch.Tensor:
    """Return keys, after their rotary embedding, as they are stored: [T, K, B] of `dtype`."""
    wide = torch.promote_types(k_TKD.dtype, torch.float32)
    relative = k_TKD.to(wide) - basis.offsets(positions_T, wide)
    return pack(rotate(relative / basis.factor_KD.to(wide)), dtype)


def pack_values(v_TKD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values as they are stored: [T, K, B] of `dtype`."""
    return pack(rotate(v_TKD.to(torch.promote_types(v_TKD.dtype, torch.float32))), dtype)


def unpack_keys(stored: torch.Tensor, positions_T: torch.Tensor, basis: KeyBasis, dtype: torch.dtype) -> torch.Tensor:
    """Return the keys that `pack_keys` stored, [T, K, D] of `dtype`, after their rotary embedding."""
    return rotate(unpack(stored, dtype)) * basis.factor_KD.to(dtype) + basis.offsets(positions_T, dtype)


def pack(x_TKD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return rotated numbers as scales and codes, [T, K, B] of `dtype`: int8, e4m3 or uint8 for four bits."""
    x_TKD = x_TKD.float()
    if dtype == PACKED_INT4:
        return _pack_levels(x_TKD)
    largest_TK1 = x_TKD.abs().amax(-1, keepdim=True)
    scale_TK1 = (largest_TK1 / QUANTISED_MAX[dtype]).clamp_min_(_LEAST_SCALE).bfloat16()
    codes_TKD = x_TKD / scale_TK1.float()
    if dtype == torch.int8:
        codes_TKD = codes_TKD.round_()
    codes_TKD = codes_TKD.clamp_(-QUANTISED_MAX[dtype], QUANTISED_MAX[dtype]).to(dtype)
    return torch.cat((scale_TK1.view(torch.int8), codes_TKD.view(torch.int8)), -1).view(dtype)


def unpack(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the rotated numbers that `pack` packed, [..., D] of `dtype`."""
    if stored.dtype == PACKED_INT4:
        return _unpack_levels(stored, dtype)
    bits = stored.view(torch.int8)
    scale = bits[..., :2].contiguous().view(torch.bfloat16).to(dtype)
    codes = bits[..., 2:]
    return (expand_e4m3(codes, dtype) if stored.dtype == E4M3 else codes.to(dtype)) * scale


def e5m3_codes(scale: torch.Tensor) -> torch.Tensor:
    """Return the codes, uint8, of the nearest scales to positive float32s, halves away from 0; 255 of NaN and
    infinity."""
    bits = scale.view(torch.int32)
    codes = ((bits + (1 << 19)) >> 20) - ((127 - E5M3_BIAS) << 3)
    return torch.where(scale.isfinite(), codes.clamp(0, 254), 255).to(torch.uint8)


def e5m3_scales(codes: torch.Tensor) -> torch.Tensor:
    """Return the scales, float32, that codes of uint8 stand for."""
    scale = ((codes.to(torch.int32) + ((127 - E5M3_BIAS) << 3)) << 20).view(torch.float32)
    return torch.where(codes == 255, torch.nan, scale)


def _pack_levels(x_TKD: torch.Tensor) -> torch.Tensor:
    D = x_TKD.shape[-1]
    G = -(-D // GROUP)
    x_TKGN = torch.nn.functional.pad(x_TKD, (0, G * GROUP - D)).unflatten(-1, (G, GROUP))
    top_TKG1 = x_TKGN.abs().amax(-1, keepdim=True) / LARGEST_LEVEL
    found = [_levels_at(x_TKGN, e5m3_codes(top_TKG1 * clip), D) for clip in CLIPS]
    scale_TKG1, codes_TKGN, least_TKG1 = found[0]
    for scale, codes, error in found[1:]:
        better = error < least_TKG1
        scale_TKG1, least_TKG1 = torch.where(better, scale, scale_TKG1), torch.where(better, error, least_TKG1)
        codes_TKGN = torch.where(better, codes, codes_TKGN)
    low, high = codes_TKGN.flatten(-2)[..., :D].chunk(2, dim=-1)
    return torch.cat((scale_TKG1.squeeze(-1), low | (high << 4)), -1)


def _levels_at(
    x_TKGN: torch.Tensor, scale_TKG1: torch.Tensor, D: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the scales, the codes of the nearest levels, the smaller of two that are as near, and the sums of squared
    errors."""
    scale = e5m3_scales(scale_TKG1)
    y = x_TKGN / scale
    place = torch.bucketize(y.abs(), torch.tensor(BOUNDS, device=y.device)).to(torch.uint8)  # of NaN: any
    error = ((torch.tensor(_MAGNITUDES, device=y.device)[place.long()] - y.abs()) * scale).square()
    error.flatten(-2)[..., D:] = 0  # what pads the last group
    # In one order, so that what is stored for a token does not depend on the others.
    half = GROUP // 2
    while half:
        error = error[..., :half] + error[..., half : 2 * half]
        half //= 2
    codes = torch.where(y >= 0, 8 + place, 7 - place)
    return scale_TKG1, codes, error


def _unpack_levels(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    D = scaled_head_dim(stored.shape[-1], stored.dtype)
    G = -(-D // GROUP)
    scale_G, codes = e5m3_scales(stored[..., :G]).to(dtype), stored[..., G:]
    c = torch.cat((codes & 15, codes >> 4), -1).to(dtype).sub_(7.5)
    return c * (1 + c * c / 128) * scale_G.repeat_interleave(GROUP, dim=-1)[..., :D]
