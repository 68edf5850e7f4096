"""Packs rotated numbers as `reference.scaled_codes` defines it, and lays out a `KeyBasis` for compiled loops.

Some blocks are a span, whose first place is a multiple of SPAN, so that the offset of its key at place p = SPAN P + j
is R(SPAN P) (R(j) m): R(j) m are constants of a layer, R(SPAN P) one row of angles a span. A product with a query takes
the turn back by the span: q . R(p) m = (R(-SPAN P) q) . (R(j) m). Pairs that turn little within a span are polynomials
of j there, whose coefficients all of them share: `TERMS` products take their place.

Legend: K key/value heads, D head size, P spans, E fast pairs, M = 2 E + TERMS, filled up to vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ...reference.scaled_codes import BOUNDS, CLIPS, E5M3_BIAS, GROUP, LARGEST_LEVEL, KeyBasis
from ..bfloat16 import float32_to_bfloat16
from ..codes import LARGEST_E4M3, LARGEST_INT8, nearest_code
from ..compiled import Floats, Ints, compiled_in_order
from ..instructions import HOST
from ..pointers import address_of, pointer_to
from ..products.tile import F32, I64, FloatBuilder
from .inner import BLOCK, E4M3_CODES, INT8, TOTAL_BYTES, pack_keys
from .plan import set_addresses

LANES = HOST.lanes
# Places that queries are turned back for at once: with more, more pairs are fast, which cost products of every key.
SPAN = 4 * BLOCK
_SPANS = 256  # of which angles are kept; those of others are computed when they are met
FACTORS, FIRSTS, OFFSETS, PACKED_TERMS, ANGLES, FREQUENCIES, SERIES, FAST, NUM_TERMS, WORDS = range(10)
TERMS = max(8, LANES)  # coefficients of a polynomial of the place in a span
_SERIES_ERROR = 4e-7  # of a cosine by such a polynomial
_UNROLLED = 2  # slow pairs whose sums are taken at once
_LEAST_SCALE = np.float32(2.0**-100)
_LARGEST_LEVEL, _E5M3_BASE = np.float32(LARGEST_LEVEL), (127 - E5M3_BIAS) << 3
_LEVEL_BOUNDS = tuple(np.float32(bound) for bound in BOUNDS)
_CLIPS = tuple(np.float32(clip) for clip in CLIPS)
_floats, _doubles = pointer_to(types.float32), pointer_to(types.float64)
_ints, _bytes = pointer_to(types.int64), pointer_to(types.uint8)
_halves = pointer_to(types.uint16)


class BasisArrays(NamedTuple):
    """Arrays of a basis, and their addresses: of factors [K, D], what the row of position 0 is more than the mean
    [K, size], offsets [K, SPAN, size], those of fast pairs and a polynomial's terms packed as for `score_rows`, block
    by block [K, SPAN M], angles [P, D] (cosines, then sines, of spans' first places), frequencies, float64 [D / 2], and
    slow pairs' coefficients [K, D / 2 - E, 2, TERMS]; at last the numbers E and M. `size` is D rounded up to vectors;
    zeros fill it."""

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
    size = -(-D // LANES) * LANES
    frequencies = basis.frequencies.double().numpy().copy()
    within = KeyBasis(basis.mean_KD, basis.mean_KD, basis.factor_KD, basis.frequencies)
    offsets = np.zeros((K, SPAN, size), np.float32)
    offsets[:, :, :D] = within.offsets(torch.arange(SPAN)).transpose(0, 1).numpy()
    firsts = np.zeros((K, size), np.float32)
    firsts[:, :D] = (basis.first_KD - basis.mean_KD).numpy()
    x = (2 * np.arange(SPAN) + 1) / SPAN - 1
    terms = np.polynomial.chebyshev.chebvander(x, TERMS - 1)  # orthogonal at these places
    by_channel = within.offsets(torch.arange(SPAN), torch.float64).permute(1, 2, 0).numpy()
    fast = _num_fast(frequencies)
    is_fast = np.arange(D) % (D // 2) < fast
    # Of each slow pair the first channel, then the second.
    series = (by_channel[:, ~is_fast] @ np.linalg.pinv(terms).T).reshape(K, 2, D // 2 - fast, TERMS)
    series = np.ascontiguousarray(series.swapaxes(1, 2), np.float32)
    num_terms = -(-(2 * fast + TERMS) // LANES) * LANES
    rows = np.zeros((K, SPAN, num_terms), np.float32)
    rows[:, :, : 2 * fast] = by_channel[:, is_fast].swapaxes(1, 2)
    rows[:, :, 2 * fast : 2 * fast + TERMS] = terms
    packed, addresses = np.zeros((K, SPAN * num_terms), np.float32), np.empty(BLOCK, np.int64)
    for head, first in product(range(K), range(0, SPAN, BLOCK)):
        _pack_rows(rows[head, first : first + BLOCK], addresses, packed[head, first * num_terms :])
    factors = np.ascontiguousarray(basis.factor_KD.float().numpy())
    arrays = factors, firsts, offsets, packed, _angles(frequencies.tobytes()), frequencies, series
    return BasisArrays(np.array([*(array.ctypes.data for array in arrays), fast, num_terms]), arrays)


def _num_fast(frequencies: NDArray[np.float64]) -> int:
    """Return how many of the first pairs are computed one by one: none behind them turns fast. An even number is
    left."""
    half = SPAN / 2 * np.abs(frequencies)
    # The remainder of Chebyshev's interpolation of a cosine: x^n / (2^(n - 1) n!).
    error = half**TERMS / (2.0 ** (TERMS - 1) * math.factorial(TERMS))
    found = int(np.flatnonzero(error > _SERIES_ERROR).max(initial=-1)) + 1
    return found + (len(half) - found) % _UNROLLED


@lru_cache(maxsize=8)
def _angles(frequencies: bytes) -> Floats:
    phases = np.arange(_SPANS)[:, None] * float(SPAN) * np.frombuffer(frequencies, np.float64)
    return np.concatenate((np.cos(phases), np.sin(phases)), axis=1, dtype=np.float32)


@compiled_in_order("void(float32[:,::1], int64[::1], float32[::1])")
def _pack_rows(rows: Floats, addresses: Ints, packed: Floats) -> None:
    """Pack what a head's products take as keys."""
    set_addresses(address_of(rows), 4 * rows.shape[1], BLOCK, address_of(addresses))
    pack_keys(address_of(addresses), 0, rows.shape[1], BLOCK, address_of(packed))


@compiled_in_order("void(int64, int64, int64, int64)")
def find_angles(basis: int, D: int, span: int, to: int) -> None:
    """Write the cosines and sines of a span's first place, D numbers."""
    words, to_D = carray(_ints(basis), (WORDS,)), carray(_floats(to), (D,))
    half = D // 2
    if span < _SPANS:
        kept_D = carray(_floats(words[ANGLES] + 4 * D * span), (D,))
        for d in range(D):
            to_D[d] = kept_D[d]
        return
    frequencies = carray(_doubles(words[FREQUENCIES]), (half,))
    for d in range(half):
        phase = frequencies[d] * np.float64(span * SPAN)
        to_D[d], to_D[half + d] = np.float32(np.cos(phase)), np.float32(np.sin(phase))


@intrinsic  # type: ignore[untyped-decorator]
def _sum_series(_: Any, first: Any, second: Any, series: Any, count: Any, to: Any) -> Any:
    """Write the sums of TERMS coefficients each, times the channels of `count` > 0 pairs, a multiple of _UNROLLED. For
    compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        first, second, series, count, to = args
        vectors = range(0, 4 * TERMS, TOTAL_BYTES)

        def some(pair: Any, *sums: Any) -> Sequence[Any]:
            rows, found = b.address(series, builder.mul(pair, I64(8 * TERMS))), list(sums)
            for at in range(2 * _UNROLLED):
                channel = b.address((first, second)[at % 2], builder.mul(pair, I64(4)), at // 2 * 4)
                x = b.splat(b.load(channel, F32))
                for vector, byte in enumerate(vectors):
                    place = at * len(vectors) + vector
                    found[place] = b.call("fmuladd", x, b.load(b.address(rows, 4 * TERMS * at + byte)), found[place])
            return found

        sums = b.loop(count, _UNROLLED, [b.constant(0.0)] * (2 * _UNROLLED * len(vectors)), some)
        for vector, byte in enumerate(vectors):
            parts = sums[vector :: len(vectors)]
            while len(parts) > 1:
                parts = [builder.fadd(x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            b.store(parts[0], b.address(to, byte))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64)")
def turn_back(source: int, angles: int, basis: int, head: int, D: int, turned: int, to: int) -> None:
    """Write M numbers whose product with a head's packed terms is that of D numbers, turned back by angles, with its
    offsets. `turned` is memory for D numbers."""
    words, half = carray(_ints(basis), (WORDS,)), D // 2
    fast, num_terms = words[FAST], words[NUM_TERMS]
    x, angle, y = carray(_floats(source), (D,)), carray(_floats(angles), (D,)), carray(_floats(turned), (D,))
    to_M = carray(_floats(to), (num_terms,))
    for d in range(half):
        low, high, cos, sin = x[d], x[half + d], angle[d], angle[half + d]
        y[d], y[half + d] = low * cos + high * sin, high * cos - low * sin
    for d in range(fast):
        to_M[d], to_M[fast + d] = y[d], y[half + d]
    for d in range(2 * fast, num_terms):
        to_M[d] = 0
    if fast < half:
        slow = half - fast
        _sum_series(
            turned + 4 * fast, turned + 4 * (half + fast), words[SERIES] + 8 * TERMS * slow * head, slow, to + 8 * fast
        )


@intrinsic  # type: ignore[untyped-decorator]
def _rotate_lanes(_: Any, numbers: Any) -> Any:
    """Take sums and differences of LANES numbers in place, of neighbours, then of pairs, and so on. For compiled
    loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b, half = FloatBuilder(builder), 1
        x = b.load(args[0])
        while half < LANES:
            other = b.shuffle(x, x, [lane ^ half for lane in range(LANES)])
            signs = ir.Constant(x.type, [-1.0 if lane & half else 1.0 for lane in range(LANES)])
            x, half = b.call("fmuladd", x, signs, other), 2 * half
        b.store(x, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _add_and_subtract(_: Any, first: Any, second: Any) -> Any:
    """Replace two times LANES numbers by their sums and differences. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        x, y = map(b.load, args)
        b.store(builder.fadd(x, y), args[0])
        b.store(builder.fsub(x, y), args[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@compiled_in_order("void(int64, int64)")
def rotate(numbers: int, D: int) -> None:
    """Multiply D numbers by the Hadamard matrix, in place, as `reference.quantise.rotate` does."""
    x, size, half = carray(_floats(numbers), (D,)), min(D & -D, 256), 1
    if size >= LANES:
        for d in range(0, D, LANES):
            _rotate_lanes(numbers + 4 * d)
        half = LANES
    while half < size:
        for start in range(0, D, 2 * half):
            if half >= LANES:
                for d in range(start, start + half, LANES):
                    _add_and_subtract(numbers + 4 * d, numbers + 4 * (d + half))
            else:
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
    words, half, x = carray(_ints(basis), (WORDS,)), D // 2, carray(_floats(key), (D,))
    m = carray(_floats(words[OFFSETS] + 4 * size * (head * SPAN + position % SPAN)), (D,))
    first, factor = (
        carray(_floats(words[FIRSTS] + 4 * size * head), (D,)),
        carray(_floats(words[FACTORS] + 4 * D * head), (D,)),
    )
    find_angles(basis, D, position // SPAN, key + 4 * size)
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
    scale = _largest(numbers, D) / (LARGEST_INT8 if dtype == INT8 else LARGEST_E4M3)
    if scale < _LEAST_SCALE:  # not `max`, of which NaN may be lost
        scale = _LEAST_SCALE
    bits = float32_to_bfloat16(scale)
    found = np.float32(np.uint32(np.uint32(bits) << np.uint32(16)).view(np.float32))
    carray(_halves(to), (1,))[0] = bits
    codes = carray(_bytes(to + 2), (D,))
    for d in range(D):
        codes[d] = nearest_code(x[d] / found, dtype)


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
