"""Codes of keys and values with scales of their own (`reference.scaled_codes`): how they are packed and unpacked, and
what queries become that meet such keys.

A key's offset R(p) m is turned by angles that all heads share, so its product with a query is a sum over these angles'
cosines and sines: `q . R(p) m = sum_i a_i cos(p w_i) + b_i sin(p w_i)`, of each rotary pair i, with
`a = q_low m_low + q_high m_high` and `b = q_high m_low - q_low m_high`. Position 0 takes `q . (first - m)` besides.
Products of float16 would round such a sum too much, so its factors are two float16s each.

Legend: T tokens, H query heads, K key/value heads, D head size, P positions, N heads of a block, or keys of a tile,
G groups of channels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.utils.weak import WeakIdKeyDictionary

from ..reference.quantise import E4M3, PACKED_INT4, rotation_size
from ..reference.scaled_codes import BOUNDS, CLIPS, E5M3_BIAS, GROUP, LARGEST_LEVEL, KeyBasis
from .launching import launch
from .rotation import rotate_rows

FORMATS = {torch.int8: "int8", E4M3: "e4m3", PACKED_INT4: "int4"}  # by the cache's dtype
_FEWEST_POSITIONS = 1 << 15
_GROUP, _SCALE_SHIFT = tl.constexpr(GROUP), tl.constexpr((127 - E5M3_BIAS) << 3)
_LARGEST_LEVEL = tl.constexpr(LARGEST_LEVEL)
_LEAST_SCALE = tl.constexpr(2.0**-100)
_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2**23: see store.py
_BOUNDS = tl.constexpr(tuple(BOUNDS))
_CLIPS = tl.constexpr(CLIPS)
_NUM_BOUNDS, _NUM_CLIPS = tl.constexpr(len(BOUNDS)), tl.constexpr(len(CLIPS))


class Angles(NamedTuple):
    """Cosines, then sines, of the phases of each position, [P, D] float16: their first halves and what these lack."""

    high_PD: torch.Tensor
    low_PD: torch.Tensor


class ScaledQueries(NamedTuple):
    """Queries for keys with a basis."""

    q_THD: torch.Tensor  # float16, times the keys' factors and rotated
    high_THD: torch.Tensor  # float16, factors of the angles' cosines, then of their sines, divided by `share_TH`
    low_THD: torch.Tensor  # float16, what these lack
    share_TH: torch.Tensor  # float32
    first_TH: torch.Tensor  # float32, what a key at position 0 adds to the score
    angles: Angles


_known: WeakIdKeyDictionary = WeakIdKeyDictionary()  # frequencies -> the values that `_angles` is keyed by
_angles: dict[tuple[object, ...], Angles] = {}


def angles_of(frequencies: torch.Tensor, num_positions: int = 0) -> Angles:
    """Return the angles of at least so many positions, and of those that were asked for before. Layers whose
    frequencies are the same numbers share them; 4 D bytes a position."""
    if frequencies.device.type == "meta":
        empty = torch.empty(_FEWEST_POSITIONS, 2 * len(frequencies), dtype=torch.float16, device=frequencies.device)
        return Angles(empty, empty)
    if frequencies not in _known:
        _known[frequencies] = (frequencies.device, *frequencies.tolist())
    key = _known[frequencies]
    found = _angles.get(key)
    if found is None or len(found.high_PD) < num_positions:
        size = max(_FEWEST_POSITIONS, 1 << (max(num_positions, 1) - 1).bit_length())
        phases = torch.arange(size, device=frequencies.device).double()[:, None] * frequencies.double()
        exact = torch.cat((phases.cos(), phases.sin()), -1)
        high = exact.half()
        found = _angles[key] = Angles(high, (exact - high.double()).half())
    return found


def scaled_queries(q_THD: torch.Tensor, basis: KeyBasis, num_positions: int) -> ScaledQueries:
    """Return queries for keys at positions below `num_positions`."""
    T, H, D = q_THD.shape
    q16_THD, high_THD, low_THD = torch.empty((3, T, H, D), dtype=torch.float16, device=q_THD.device)
    share_TH, first_TH = torch.empty((2, T, H), dtype=torch.float32, device=q_THD.device)
    block_n = min(triton.next_power_of_2(H), 16)
    launch(
        _scaled_queries,
        (T, triton.cdiv(H, block_n)),
        q_THD,
        basis.mean_KD,
        basis.first_KD,
        basis.factor_KD,
        q16_THD,
        high_THD,
        low_THD,
        share_TH,
        first_TH,
        q_THD.stride(0),
        q_THD.stride(1),
        H=H,
        GROUP=H // len(basis.mean_KD),
        D=D,
        BLOCK_N=block_n,
        BLOCK_D=triton.next_power_of_2(D),
        ROTATION=rotation_size(D),
        FACTOR=rotation_size(D) ** -0.5,
        num_warps=4,
    )
    angles = angles_of(basis.frequencies, num_positions)
    return ScaledQueries(q16_THD, high_THD, low_THD, share_TH, first_TH, angles)


@triton.jit
def _scaled_queries(
    q_THD,
    mean_KD,
    first_KD,
    factor_KD,
    q16_THD,
    high_THD,
    low_THD,
    share_TH,
    first_TH,
    stride_t,
    stride_h,
    H: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROTATION: tl.constexpr,
    FACTOR: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    other_D = (d + D // 2) % D
    valid_ND = (n < H)[:, None] & (d < D)[None, :]
    source = q_THD + token * stride_t + n[:, None] * stride_h
    q_ND = tl.load(source + d[None, :], mask=valid_ND, other=0.0).to(tl.float32)
    other_ND = tl.load(source + other_D[None, :], mask=valid_ND, other=0.0).to(tl.float32)
    head_N = (n // GROUP)[:, None] * D
    mean_ND = tl.load(mean_KD + head_N + d[None, :], mask=valid_ND, other=0.0)
    other_mean_ND = tl.load(mean_KD + head_N + other_D[None, :], mask=valid_ND, other=0.0)
    first_ND = tl.load(first_KD + head_N + d[None, :], mask=valid_ND, other=0.0)
    factor_ND = tl.load(factor_KD + head_N + d[None, :], mask=valid_ND, other=0.0)
    part_ND = tl.where(
        (d < D // 2)[None, :],
        q_ND * mean_ND + other_ND * other_mean_ND,
        q_ND * other_mean_ND - other_ND * mean_ND,
    )
    share_N = tl.maximum(tl.max(tl.abs(part_ND), 1), _LEAST_SCALE)
    part_ND /= share_N[:, None]
    high_ND = part_ND.to(tl.float16)
    rotated_ND = rotate_rows(q_ND * factor_ND, BLOCK_N, BLOCK_D, ROTATION, FACTOR)
    at_N = token * H + n
    at_ND = at_N[:, None] * D + d[None, :]
    tl.store(q16_THD + at_ND, rotated_ND.to(tl.float16), mask=valid_ND)
    tl.store(high_THD + at_ND, high_ND, mask=valid_ND)
    tl.store(low_THD + at_ND, (part_ND - high_ND.to(tl.float32)).to(tl.float16), mask=valid_ND)
    tl.store(share_TH + at_N, share_N, mask=n < H)
    tl.store(first_TH + at_N, tl.sum(q_ND * (first_ND - mean_ND), 1), mask=n < H)


@triton.jit
def key_offsets(
    mean_KD,
    first_KD,
    high_PD,
    low_PD,
    position,
    num_positions,
    head_N,
    valid_N,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    D: tl.constexpr,
):
    """Return what is subtracted from the keys of some heads at a position [N, D], 0 elsewhere; NaN beyond the
    angles."""
    d = tl.arange(0, BLOCK_D)
    pair_D = d % (D // 2)
    other_D = (d + D // 2) % D
    valid_ND = valid_N[:, None] & (d < D)[None, :]
    known_D = (d < D) & (position < num_positions)
    row = position.to(tl.int64) * D
    cos_D = tl.load(high_PD + row + pair_D, mask=known_D, other=float("nan")).to(tl.float32)
    cos_D += tl.load(low_PD + row + pair_D, mask=known_D, other=0.0).to(tl.float32)
    sin_D = tl.load(high_PD + row + D // 2 + pair_D, mask=known_D, other=0.0).to(tl.float32)
    sin_D += tl.load(low_PD + row + D // 2 + pair_D, mask=known_D, other=0.0).to(tl.float32)
    at_ND = head_N[:, None] * D
    mean_ND = tl.load(mean_KD + at_ND + d[None, :], mask=valid_ND, other=0.0)
    other_ND = tl.load(mean_KD + at_ND + other_D[None, :], mask=valid_ND, other=0.0)
    first_ND = tl.load(first_KD + at_ND + d[None, :], mask=valid_ND, other=0.0)
    turned_ND = mean_ND * cos_D[None, :] + other_ND * tl.where(d < D // 2, -sin_D, sin_D)[None, :]
    return tl.where(valid_ND, tl.where(position == 0, first_ND, turned_ND), 0.0)


@triton.jit
def scaled_bytes(FORMAT: tl.constexpr, D: tl.constexpr):
    """Return the bytes of a head's key or value."""
    return D // 2 + (D + _GROUP - 1) // _GROUP if FORMAT == "int4" else D + 2


@triton.jit
def store_scaled(
    x_ND,
    slot,
    head_N,
    valid_N,
    memory,
    FORMAT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    D: tl.constexpr,
):
    """Write the rotated keys or values of some heads to the slot that begins at byte `slot`."""
    d = tl.arange(0, BLOCK_D)
    at_N = slot + head_N * scaled_bytes(FORMAT, D)
    if FORMAT == "int4":
        _store_levels(x_ND, at_N, valid_N, memory, BLOCK_N, BLOCK_D, D)
    else:
        LIMIT: tl.constexpr = 127.0 if FORMAT == "int8" else 448.0
        scale_N = tl.maximum(_largest(x_ND) / LIMIT, _LEAST_SCALE, propagate_nan=tl.PropagateNan.ALL).to(tl.bfloat16)
        bits_N = scale_N.to(tl.int16, bitcast=True).to(tl.int32)
        tl.store(memory + at_N, (bits_N & 255).to(tl.uint8), mask=valid_N)
        tl.store(memory + at_N + 1, ((bits_N >> 8) & 255).to(tl.uint8), mask=valid_N)
        x_ND /= scale_N.to(tl.float32)[:, None]
        if FORMAT == "int8":
            x_ND = tl.where(x_ND == x_ND, (x_ND + _ROUNDER) - _ROUNDER, 0.0)  # the scale says NaN
        x_ND = tl.minimum(tl.maximum(x_ND, -LIMIT), LIMIT)
        if FORMAT == "int8":
            code_ND = x_ND.to(tl.int8).to(tl.uint8, bitcast=True)
        else:
            code_ND = x_ND.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        tl.store(memory + at_N[:, None] + 2 + d[None, :], code_ND, mask=valid_N[:, None] & (d < D)[None, :])


@triton.jit
def _largest(x):
    """Return the largest magnitude of the last axis, NaN if one is."""
    return tl.max(tl.where(x != x, float("inf"), tl.abs(x)), 1) + tl.sum(x * 0.0, 1)


@triton.jit
def _scale_code(scale):
    """Return the e5m3 code of a positive float32, int32."""
    code = ((scale.to(tl.int32, bitcast=True) + (1 << 19)) >> 20) - _SCALE_SHIFT
    code = tl.minimum(tl.maximum(code, 0), 254)
    return tl.where((scale == scale) & (scale < float("inf")), code, 255)


@triton.jit
def _scale_of(code):
    """Return the float32 that an e5m3 code of int32 stands for."""
    scale = ((code + _SCALE_SHIFT) << 20).to(tl.float32, bitcast=True)
    return tl.where(code == 255, float("nan"), scale)


@triton.jit
def _store_levels(x_ND, at_N, valid_N, memory, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr):
    """Write four-bit codes: the scales of groups, then the codes of channels d, in the low halves of bytes, and d + D /
    2."""
    G: tl.constexpr = (D + _GROUP - 1) // _GROUP
    SIZE: tl.constexpr = min(BLOCK_D, _GROUP)
    BLOCK_G: tl.constexpr = BLOCK_D // SIZE
    HALF: tl.constexpr = D // 2
    d, g = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_G)
    x_RC = tl.reshape(x_ND, [BLOCK_N * BLOCK_G, SIZE])  # a row for each group
    top_R = _largest(x_RC) / _LARGEST_LEVEL
    least_R = tl.full([BLOCK_N * BLOCK_G], float("inf"), dtype=tl.float32)
    scale_R = tl.full([BLOCK_N * BLOCK_G], 255, dtype=tl.int32)
    code_RC = tl.zeros([BLOCK_N * BLOCK_G, SIZE], dtype=tl.int32)
    for index in tl.static_range(_NUM_CLIPS):
        tried_R = _scale_code(top_R * _CLIPS[index])
        step_R = _scale_of(tried_R)[:, None]
        y_RC = x_RC / step_R
        place_RC = tl.zeros([BLOCK_N * BLOCK_G, SIZE], dtype=tl.int32)
        for bound in tl.static_range(_NUM_BOUNDS):
            place_RC += (tl.abs(y_RC) > _BOUNDS[bound]).to(tl.int32)
        c_RC = place_RC.to(tl.float32) + 0.5
        lost_RC = (c_RC + c_RC * c_RC * c_RC / 128.0 - tl.abs(y_RC)) * step_R
        # A last group of fewer channels: the padding is 0 and would be counted alike for all clips but for the scale.
        within_RC = tl.reshape(tl.broadcast_to((d < D)[None, :], [BLOCK_N, BLOCK_D]), [BLOCK_N * BLOCK_G, SIZE])
        error_R = tl.sum(tl.where(within_RC, lost_RC * lost_RC, 0.0), 1)
        better_R = error_R < least_R
        least_R = tl.where(better_R, error_R, least_R)
        scale_R = tl.where(better_R, tried_R, scale_R)
        code_RC = tl.where(better_R[:, None], tl.where(y_RC >= 0.0, 8 + place_RC, 7 - place_RC), code_RC)
    scale_NG = tl.reshape(scale_R, [BLOCK_N, BLOCK_G])
    tl.store(memory + at_N[:, None] + g[None, :], scale_NG.to(tl.uint8), mask=valid_N[:, None] & (g < G)[None, :])
    code_ND = tl.reshape(code_RC, [BLOCK_N, BLOCK_D])
    # Channel d + D / 2 belongs into the byte of channel d: the codes are gathered along the row.
    partner_ND = tl.broadcast_to(tl.where(d < HALF, d + HALF, d)[None, :], [BLOCK_N, BLOCK_D])
    high_ND = tl.gather(code_ND, partner_ND, 1)
    at_ND = at_N[:, None] + G + d[None, :]
    tl.store(memory + at_ND, (code_ND | (high_ND << 4)).to(tl.uint8), mask=valid_N[:, None] & (d < HALF)[None, :])


@triton.jit
def load_scaled(
    memory,
    offset_N,
    valid_N,
    FORMAT: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WHOLE: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """Return a tile's keys or values as float16 [N, D] and the scales that they lack, float32 [N]; four-bit codes have
    theirs, and 1. A `WHOLE` tile has no key that is not valid: masks would take a fifth of the instructions. In `PAIRS`
    codes become float16 before threads exchange them, not one byte after the other behind it: values are then read as
    columns at once. The tile needs as many keys as threads, else each thread computes the addresses of most rows."""
    d = tl.arange(0, BLOCK_D)
    if WHOLE and D == BLOCK_D:
        valid_N = None
        valid_ND = None
    else:
        valid_ND = valid_N[:, None] & (d < D)[None, :]
    if FORMAT == "int4":
        G: tl.constexpr = (D + _GROUP - 1) // _GROUP
        HALF: tl.constexpr = D // 2
        if D == BLOCK_D:
            return _load_levels(memory, offset_N, valid_N, D), 1.0
        byte_ND = _load(memory + offset_N[:, None] + G + (d % HALF)[None, :], valid_ND).to(tl.int32)
        scale_ND = _load(memory + offset_N[:, None] + (d // _GROUP)[None, :], valid_ND).to(tl.int32)
        c_ND = ((byte_ND >> tl.where(d < HALF, 0, 4)[None, :]) & 15).to(tl.float32) - 7.5
        x_ND = c_ND * (1.0 + c_ND * c_ND * 0.0078125) * _scale_of(scale_ND)
        if valid_ND is not None:
            x_ND = tl.where(valid_ND, x_ND, 0.0)
        x_ND = x_ND.to(tl.float16)
        scale_N = 1.0
    else:
        offset_N = offset_N // 2 * 2  # which they are, since D is even: the compiler does not know
        scale_N = _load((memory + offset_N).to(tl.pointer_type(tl.bfloat16)), valid_N, 1.0).to(tl.float32)
        if PAIRS and D == BLOCK_D:
            return _load_pairs(memory, offset_N, valid_N, FORMAT, D), scale_N
        code_ND = _load(memory + offset_N[:, None] + 2 + d[None, :], valid_ND)
        if FORMAT == "int8":
            # 1024 + code + 128: a conversion of integers takes longer.
            x_ND = ((code_ND ^ 128).to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1152.0
        else:
            x_ND = code_ND.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return x_ND, scale_N


@triton.jit
def _load_pairs(memory, offset_N, valid_N, FORMAT: tl.constexpr, D: tl.constexpr):
    """Return a tile of codes of a byte, of heads whose size is a power of two, as float16 [N, D]."""
    pair = tl.arange(0, D // 2)
    valid_N1 = None if valid_N is None else valid_N[:, None]
    word_NP = _load((memory + offset_N).to(tl.pointer_type(tl.uint16))[:, None] + 1 + pair[None, :], valid_N1)
    if FORMAT == "int8":
        # Each byte behind 0x64, as the float16 1024 + code + 128.
        word_NP = word_NP.to(tl.int32)
        both_NP = ((word_NP | (word_NP << 8)) & 0x00FF00FF) ^ 0x64806480
        x_NP2 = tl.join(both_NP.to(tl.int16), (both_NP >> 16).to(tl.int16)).to(tl.float16, bitcast=True) - 1152.0
    else:
        code_NP2 = tl.join(word_NP.to(tl.uint8), (word_NP >> 8).to(tl.uint8))
        x_NP2 = code_NP2.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    return tl.reshape(x_NP2, [offset_N.shape[0], D])


@triton.jit
def _load_levels(memory, offset_N, valid_N, D: tl.constexpr):
    """Return a tile of four-bit codes, of heads whose size is a power of two, as float16 [N, D]."""
    G: tl.constexpr = (D + _GROUP - 1) // _GROUP
    b = tl.arange(0, D // 2)
    g = tl.arange(0, G)
    valid_N1 = None if valid_N is None else valid_N[:, None]
    scale_NG = _scale_of(_load(memory + offset_N[:, None] + g[None, :], valid_N1).to(tl.int32)).to(tl.float16)
    byte_NB = _load(memory + offset_N[:, None] + G + b[None, :], valid_N1).to(tl.int16)
    code_NB2 = tl.join(byte_NB & 15, byte_NB >> 4)
    # 512 + code, which float16 holds by steps of a half.
    c_NB2 = ((code_NB2 << 1) | 0x6000).to(tl.float16, bitcast=True) - 519.5
    c_ND = tl.reshape(tl.permute(c_NB2 * (c_NB2 * c_NB2 * 0.0078125 + 1.0), (0, 2, 1)), [offset_N.shape[0], D])
    scale_NGC = tl.broadcast_to(scale_NG[:, :, None], [offset_N.shape[0], G, D // G])
    return c_ND * tl.reshape(scale_NGC, [offset_N.shape[0], D])


@triton.jit
def _load(pointers, valid, other=0):
    """Load numbers, `other` where they are not valid; None: all are."""
    if valid is None:  # noqa: SIM108 (a statement, of which Triton compiles one branch only)
        found = tl.load(pointers)
    else:
        found = tl.load(pointers, mask=valid, other=other)
    return found
