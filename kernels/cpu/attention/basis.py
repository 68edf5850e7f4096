"""Packs rotated numbers as `reference.scaled_codes` defines it, and lays out a `KeyBasis` for compiled loops.

A block's first place is a multiple of BLOCK, so that the offset of its key at place p = BLOCK P + j is
R(BLOCK P) (R(j) m): R(j) m are constants of a layer, R(BLOCK P) one row of angles a block. A product with a query takes
the turn back by the block: q . R(p) m = (R(-BLOCK P) q) . (R(j) m).

Legend: K key/value heads, D head size, P blocks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numba import carray, types
from numpy.typing import NDArray

from ...reference.scaled_codes import BOUNDS, CLIPS, E5M3_BIAS, GROUP, LARGEST_LEVEL, KeyBasis
from ..bfloat16 import float32_to_bfloat16
from ..compiled import Floats, Ints, compiled_in_order
from ..instructions import HOST
from ..pointers import address_of, pointer_to
from .inner import BLOCK, E4M3_CODES, INT8, pack_keys
from .plan import set_addresses

_BLOCKS = 1024  # of which angles are kept; those of others are computed when they are met
FACTORS, FIRSTS, OFFSETS, PACKED_OFFSETS, ANGLES, FREQUENCIES = range(6)
_LEAST_SCALE, _LARGEST_E4M3, _LARGEST_INT8 = np.float32(2.0**-100), np.float32(448), np.float32(127)
_LARGEST_LEVEL, _E5M3_BASE = np.float32(LARGEST_LEVEL), (127 - E5M3_BIAS) << 3
_LEVEL_BOUNDS = tuple(np.float32(bound) for bound in BOUNDS)
_CLIPS = tuple(np.float32(clip) for clip in CLIPS)
_floats, _doubles = pointer_to(types.float32), pointer_to(types.float64)
_ints, _bytes, _codes = pointer_to(types.int64), pointer_to(types.uint8), pointer_to(types.int8)
_halves = pointer_to(types.uint16)


class BasisArrays(NamedTuple):
    """Arrays of a basis, and their addresses: of factors [K, D], what the row of position 0 is more than the mean
    [K, size], offsets [K, BLOCK, size], the same packed as for `score_rows`, angles [P, D] (cosines, then sines, of
    blocks' first places) and frequencies, float64 [D / 2]. `size` is D rounded up to vectors; zeros fill it."""

    words: Ints
    arrays: tuple[NDArray[np.generic], ...]


_kept: WeakKeyDictionary[KeyBasis, BasisArrays] = WeakKeyDictionary()


def arrays_of(basis: KeyBasis) -> BasisArrays:
    """Return the arrays of a basis, which live as long as it does."""
    if basis not in _kept:
        _kept[basis] = _make_arrays(basis)
    return _kept[basis]


def _make_arrays(basis: KeyBasis) -> BasisArrays:
    K, D = basis.mean_KD.shape
    size = -(-D // HOST.lanes) * HOST.lanes
    frequencies = basis.frequencies.double().numpy().copy()
    within = KeyBasis(basis.mean_KD, basis.mean_KD, basis.factor_KD, basis.frequencies)
    offsets = np.zeros((K, BLOCK, size), np.float32)
    offsets[:, :, :D] = within.offsets(torch.arange(BLOCK)).transpose(0, 1).numpy()
    firsts = np.zeros((K, size), np.float32)
    firsts[:, :D] = (basis.first_KD - basis.mean_KD).numpy()
    packed = np.zeros((K, BLOCK * size), np.float32)
    addresses = np.empty(BLOCK, np.int64)
    for head in range(K):
        _pack_offsets(offsets[head], addresses, packed[head])
    factors = np.ascontiguousarray(basis.factor_KD.float().numpy())
    arrays = factors, firsts, offsets, packed, _angles(frequencies.tobytes()), frequencies
    return BasisArrays(np.array([array.ctypes.data for array in arrays]), arrays)


@lru_cache(maxsize=8)
def _angles(frequencies: bytes) -> Floats:
    phases = np.arange(_BLOCKS)[:, None] * float(BLOCK) * np.frombuffer(frequencies, np.float64)
    return np.concatenate((np.cos(phases), np.sin(phases)), axis=1, dtype=np.float32)


@compiled_in_order("void(float32[:,::1], int64[::1], float32[::1])")
def _pack_offsets(offsets: Floats, addresses: Ints, packed: Floats) -> None:
    """Pack the offsets of a head."""
    set_addresses(address_of(offsets), 4 * offsets.shape[1], BLOCK, address_of(addresses))
    pack_keys(address_of(addresses), 0, offsets.shape[1], BLOCK, address_of(packed))


@compiled_in_order("void(int64, int64, int64, int64)")
def find_angles(basis: int, D: int, block: int, to: int) -> None:
    """Write the cosines and sines of a block's first place, D numbers."""
    words, to_D = carray(_ints(basis), (6,)), carray(_floats(to), (D,))
    half = D // 2
    if block < _BLOCKS:
        kept_D = carray(_floats(words[ANGLES] + 4 * D * block), (D,))
        for d in range(D):
            to_D[d] = kept_D[d]
        return
    frequencies = carray(_doubles(words[FREQUENCIES]), (half,))
    for d in range(half):
        phase = frequencies[d] * np.float64(block * BLOCK)
        to_D[d], to_D[half + d] = np.float32(np.cos(phase)), np.float32(np.sin(phase))


@compiled_in_order("void(int64, int64, int64, int64)")
def turn_back(source: int, angles: int, D: int, to: int) -> None:
    """Write D numbers, turned back by angles."""
    x, angle, y, half = carray(_floats(source), (D,)), carray(_floats(angles), (D,)), carray(_floats(to), (D,)), D // 2
    for d in range(half):
        low, high, cos, sin = x[d], x[half + d], angle[d], angle[half + d]
        y[d], y[half + d] = low * cos + high * sin, high * cos - low * sin


@compiled_in_order("void(int64, int64)")
def rotate(numbers: int, D: int) -> None:
    """Multiply D numbers by the Hadamard matrix, in place, as `reference.quantise.rotate` does."""
    x, size, half = carray(_floats(numbers), (D,)), min(D & -D, 256), 1
    while half < size:
        for start in range(0, D, 2 * half):
            for d in range(start, start + half):
                low, high = x[d], x[d + half]
                x[d], x[d + half] = low + high, low - high
        half *= 2
    factor = np.float32(1 / np.sqrt(np.float64(size)))
    for d in range(D):
        x[d] *= factor


@compiled_in_order("void(int64, int64, int64, int64, int64, int64)")
def relative_key(key: int, basis: int, head: int, D: int, size: int, position: int) -> None:
    """Replace a key after its rotary embedding by what is stored of it, before rounding. Takes D more numbers behind
    the key's `size`."""
    words, half, x = carray(_ints(basis), (6,)), D // 2, carray(_floats(key), (D,))
    m = carray(_floats(words[OFFSETS] + 4 * size * (head * BLOCK + position % BLOCK)), (D,))
    first, factor = (
        carray(_floats(words[FIRSTS] + 4 * size * head), (D,)),
        carray(_floats(words[FACTORS] + 4 * D * head), (D,)),
    )
    find_angles(basis, D, position // BLOCK, key + 4 * size)
    angle = carray(_floats(key + 4 * size), (D,))
    for d in range(half):
        low, high, cos, sin = m[d], m[half + d], angle[d], angle[half + d]
        x[d] -= low * cos - high * sin
        x[half + d] -= high * cos + low * sin
    for d in range(D):
        if position == 0:
            x[d] -= first[d]
        x[d] /= factor[d]
    rotate(key, D)


@compiled_in_order("float32(int64, int64)")
def _largest(numbers: int, count: int) -> np.float32:
    """Return the largest absolute value; NaN if one is not finite."""
    x, found, total = carray(_floats(numbers), (count,)), np.float32(0), np.float32(0)
    for d in range(count):
        found = max(found, abs(x[d]))
        total += x[d] * np.float32(0)
    return found if total == 0 else np.float32(np.nan)


@compiled_in_order("void(int64, int64, int64, int64)")
def pack_numbers(numbers: int, D: int, dtype: int, to: int) -> None:
    """Write rotated numbers as scales and codes to an address. They may be changed."""
    x = carray(_floats(numbers), (D,))
    if dtype != INT8 and dtype != E4M3_CODES:
        _pack_levels(numbers, D, to)
        return
    largest = _LARGEST_INT8 if dtype == INT8 else _LARGEST_E4M3
    scale = _largest(numbers, D) / largest
    if scale < _LEAST_SCALE:  # not `max`, of which NaN may be lost
        scale = _LEAST_SCALE
    bits = float32_to_bfloat16(scale)
    found = np.float32(np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32))
    carray(_halves(to), (1,))[0] = bits
    codes = carray(_codes(to + 2), (D,))
    for d in range(D):
        y = min(max(x[d] / found, -largest), largest)
        if dtype == INT8:
            codes[d] = np.int8(np.rint(y))
        else:
            codes[d] = _e4m3_code(y)


@compiled_in_order("int8(float32)")
def _e4m3_code(y: np.float32) -> np.int8:
    """Return the code of the nearest e4m3 number, ties to even, of a number within its range."""
    size = abs(np.float32(y))
    if size < np.float32(2.0**-6):
        code = np.int32(np.rint(size * np.float32(512)))
    else:
        bits: Any = np.float32(size).view(np.uint32)
        bits += np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))
        code = np.int32(bits >> np.uint32(20)) - np.int32((127 - 7) << 3)
    return np.int8(code | 128 if y < 0 else code)


@compiled_in_order("float32(uint8)")
def e5m3_scale(code: np.uint8) -> np.float32:
    """Return the scale of a code."""
    if code == 255:
        return np.float32(np.nan)
    return np.uint32((np.uint32(code) + np.uint32(_E5M3_BASE)) << np.uint32(20)).view(np.float32)  # type: ignore[no-any-return]


@compiled_in_order("uint8(float32)")
def _e5m3_code(scale: np.float32) -> np.uint8:
    """Return the code of the nearest scale, halves away from 0."""
    if not np.isfinite(scale):
        return np.uint8(255)
    code = np.int64((np.float32(scale).view(np.uint32) + np.uint32(1 << 19)) >> np.uint32(20)) - _E5M3_BASE
    return np.uint8(min(max(code, 0), 254))


@compiled_in_order("int64(float32)")
def _level(size: np.float32) -> int:
    """Return the place of the nearest level above 0, of two that are as near the lower one."""
    place = 0
    for bound in _LEVEL_BOUNDS:
        place += size > bound
    return place


@compiled_in_order("void(int64, int64, int64)")
def _pack_levels(numbers: int, D: int, to: int) -> None:
    """Write numbers as e5m3 scales and codes of four bits."""
    G, half = -(-D // GROUP), D // 2
    x, scales, codes = carray(_floats(numbers), (D,)), carray(_bytes(to), (G,)), carray(_bytes(to + G), (half,))
    for d in range(half):
        codes[d] = 0
    for g in range(G):
        first, count = g * GROUP, min(GROUP, D - g * GROUP)
        top = _largest(numbers + 4 * first, count) / _LARGEST_LEVEL
        best, least = np.uint8(0), np.float32(0)
        for number in range(len(_CLIPS)):
            code = _e5m3_code(top * _CLIPS[number])
            scale, error = e5m3_scale(code), np.float32(0)
            for d in range(first, first + count):
                size = abs(x[d] / scale)
                c = np.float32(_level(size)) + np.float32(0.5)
                off = (c + c * c * c * np.float32(1 / 128) - size) * scale
                error += off * off
            if number == 0 or error < least:
                best, least = code, error
        scales[g] = best
        scale = e5m3_scale(best)
        for d in range(first, first + count):
            y = x[d] / scale
            place = _level(abs(y))
            code = np.uint8(8 + place if y >= 0 else 7 - place)
            if d < half:
                codes[d] |= code
            else:
                codes[d - half] |= np.uint8(code << 4)
