"""Inner kernels of compiled attention: products of a few queries with a block of keys, the block's softmax weights, and
the weighted sums of its values.

They are written in LLVM IR, because compilers neither keep all sums in registers nor fix the order of a sum. A number
is always summed in one order, however many rows are computed together (loops that use these functions are
`compiled_in_order`). Memory is given by addresses: a key or value is D consecutive float32s at an address of its own,
so the rows of a block may lie anywhere.

Legend: R rows of a call (a query of one head), BLOCK keys of a block, D head size (a multiple of LANES).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from ..bfloat16 import narrow, widen
from ..compiled import compiled_in_order
from ..instructions import HOST
from ..pointers import pointer_to
from ..products.tile import F32, FLOATS, I8, I16, I32, I64, FloatBuilder

LANES = HOST.lanes

BLOCK = 64
# Dtypes of caches, by their codes.
FLOAT32, BFLOAT16, FLOAT16, E4M3_CODES, INT8 = range(5)
BFLOAT16_DOTS = 5  # of a bfloat16 cache whose queries may be rounded to bfloat16, for dot products of pairs
E5M2_CODES = 6
FOUR_BITS = 7  # which `scaled` unpacks
LOG2_E = np.float32(1.4426950408889634)
_NOTHING = np.float32(-np.inf)

_LANE_INTS = ir.VectorType(I32, LANES)
_FLOAT_BYTES, _ADDRESS_BYTES = 4, 8
_GROUPS = max(LANES // 4, HOST.vectors)  # of four keys: so many are multiplied at once
KEYS_AT_ONCE = 4 * _GROUPS
ROWS = 4  # most rows of a kernel: their sums stay in registers
ROW_BYTES = 4 * BLOCK  # of scores
TOTAL_BYTES = 4 * LANES  # of a row's total, by lanes
NO_BASE = np.float32(-1e30)  # of a row that has seen no key; finite, so that hidden keys have weight 0
SLACK = 8.0  # how far scores may exceed the base of weights
# 2^r for r in [0, 1] by powers of r: 1 + r times an interpolation in Chebyshev's points, relative error 2e-7. 2^0 is
# exact, so a row of one key returns its value.
_EXP2 = np.polynomial.chebyshev.Chebyshev.interpolate(lambda r: np.expm1(np.log(2) * r) / r, 4, domain=(0, 1)).convert(
    kind=np.polynomial.Polynomial
)
_EXP2_POWERS = [1.0, *(float(np.float32(power)) for power in _EXP2.coef)]


_ELEMENTS = {
    FLOAT32: F32,
    BFLOAT16: I16,
    FLOAT16: I16,
    E4M3_CODES: I8,
    INT8: I8,
    E5M2_CODES: I8,
}


def _transposed(b: FloatBuilder, rows: Sequence[Any]) -> list[Any]:
    """Transpose four vectors within groups of four lanes: lane 4 g + i of vector j is lane 4 g + j of row i."""
    groups, found = range(0, LANES, 4), []
    for start in (0, 2):
        lanes = [lane for g in groups for at in (g + start, g + start + 1) for lane in (at, LANES + at)]
        x, y = b.shuffle(rows[0], rows[1], lanes), b.shuffle(rows[2], rows[3], lanes)
        for half in (0, 2):
            pairs = [lane for g in groups for at in (g + half, LANES + g + half) for lane in (at, at + 1)]
            found.append(b.shuffle(x, y, pairs))
    return found


def _sums_of_groups(b: FloatBuilder, vectors: Sequence[Any]) -> Any:
    """Return a vector whose i-th group of four lanes is the sum of those of vector i, of LANES / 4 vectors."""
    parts = LANES // 4  # of each sum
    while parts > 1:
        starts = [group + part for group in range(0, LANES // 4, parts) for part in range(parts // 2)]
        low = [lane for start in starts for lane in range(4 * start, 4 * start + 4)]
        low += [LANES + lane for lane in low]
        high = [lane + 2 * parts for lane in low]
        vectors = [
            b.ir.fadd(b.shuffle(x, y, low), b.shuffle(x, y, high))
            for x, y in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        parts //= 2
    return vectors[0]


def _exp2(b: FloatBuilder, x: Any) -> Any:
    """Return 2^x for x < 127; 0 below -126 or less, NaN of NaN."""
    fast = LANES == 16 and not HOST.emulated
    every, direction = ir.Constant(I16, -1), I32(4)
    least, rounding = b.constant(-126.0), b.constant(1.5 * 2.0**23 + 127)
    if fast:  # x - floor(x); 0 of an infinity
        r = b.function("llvm.x86.avx512.mask.reduce.ps.512", x, I32(1), x, every, direction)
    else:
        # The sum's last bits are a whole number, plus the bias of an exponent.
        rounded = b.ir.fadd(b.larger(x, least), rounding)
        above = b.ir.fcmp_ordered(">", b.ir.fsub(rounded, rounding), x)
        rounded = b.ir.select(above, b.ir.fsub(rounded, b.constant(1.0)), rounded)
        r = b.ir.fsub(x, b.ir.fsub(rounded, rounding))
    series = b.constant(_EXP2_POWERS[-1])
    for power in _EXP2_POWERS[-2::-1]:
        series = b.call("fmuladd", series, r, b.constant(power))
    if fast:  # times 2^floor(x)
        return b.function("llvm.x86.avx512.mask.scalef.ps.512", series, x, x, every, direction)
    scale = b.ir.shl(b.ir.bitcast(rounded, _LANE_INTS), ir.Constant(_LANE_INTS, [23] * LANES))
    # An ordered comparison: the weight of NaN is NaN.
    below = b.ir.fcmp_ordered("<", x, least)
    return b.ir.select(below, b.constant(0.0), b.ir.fmul(series, b.ir.bitcast(scale, FLOATS)))


def _load_as_floats(b: FloatBuilder, address: Any, dtype: int) -> Any:
    """Return LANES numbers of a dtype, from an address on, as float32s."""
    element = _ELEMENTS[dtype]
    bits = b.ir.load(b.ir.inttoptr(address, ir.VectorType(element, LANES).as_pointer()))
    bits.align = 4 if dtype == FLOAT32 else element.width // 8
    if dtype == FLOAT32:
        return bits
    if dtype == INT8:
        return b.ir.sitofp(b.ir.sext(bits, _LANE_INTS), FLOATS)

    def constant(number: int) -> Any:
        return ir.Constant(_LANE_INTS, [number] * LANES)

    wide = b.ir.zext(bits, _LANE_INTS)
    if dtype == BFLOAT16:
        return b.ir.bitcast(b.ir.shl(wide, constant(16)), FLOATS)
    if dtype == E5M2_CODES:  # the first half of a float16
        wide = b.ir.shl(wide, constant(8))
    # Shifted, the exponent and mantissa stand where a float32 has them; the exponents differ by a bias.
    shift, bias, sign = (13, 127 - 15, 1 << 15) if dtype != E4M3_CODES else (20, 127 - 7, 1 << 7)
    magnitude = b.ir.shl(b.ir.and_(wide, constant(sign - 1)), constant(shift))
    normal = b.ir.add(magnitude, constant(bias << 23))
    # A subnormal number is what its bits add to the least normal one.
    larger = b.ir.bitcast(b.ir.add(magnitude, constant((bias + 1) << 23)), FLOATS)
    subnormal = b.ir.bitcast(b.ir.fsub(larger, b.constant(2.0 ** (bias - 126))), _LANE_INTS)
    found = b.ir.select(b.ir.icmp_signed("<", magnitude, constant(1 << 23)), subnormal, normal)
    if dtype != E4M3_CODES:  # infinity and NaN; e4m3 has no infinity, and its NaN becomes 480, as in the reference
        beyond = b.ir.add(normal, constant(bias << 23))
        found = b.ir.select(b.ir.icmp_signed(">=", magnitude, constant(31 << 23)), beyond, found)
    negative = b.ir.shl(b.ir.and_(wide, constant(sign)), constant(31 - sign.bit_length() + 1))
    return b.ir.bitcast(b.ir.or_(found, negative), FLOATS)


def _gather_rows(dtype: int) -> Callable[..., None]:
    """Return a function for compiled loops that copies keys or values of a dtype as float32s, one after the other.

    Its arguments are the address of addresses, an offset from those (bytes), the number of keys, D and the address of
    the copies.
    """
    width = 4 if dtype == FLOAT32 else _ELEMENTS[dtype].width // 8

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        addresses, start, num_keys, size, to = args

        def keys(key: Any) -> Sequence[Any]:
            at = b.address(addresses, builder.mul(key, I64(_ADDRESS_BYTES)))
            source = b.address(b.load(at, I64), start)
            target = b.address(to, builder.mul(builder.mul(key, size), I64(_FLOAT_BYTES)))

            def vectors(d: Any) -> Sequence[Any]:
                numbers = _load_as_floats(b, b.address(source, builder.mul(d, I64(width))), dtype)
                b.store(numbers, b.address(target, builder.mul(d, I64(_FLOAT_BYTES))))
                return ()

            b.loop(size, LANES, (), vectors)
            return ()

        b.loop(num_keys, 1, (), keys)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def gather(_: Any, addresses: Any, start: Any, num_keys: Any, size: Any, to: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return gather  # type: ignore[no-any-return]


def _load_four(b: FloatBuilder, addresses: Sequence[Any], offset: Any) -> list[Any]:
    return _transposed(b, [b.load(b.address(key, offset)) for key in addresses])


@intrinsic  # type: ignore[untyped-decorator]
def pack_keys(_: Any, addresses: Any, start: Any, size: Any, num_keys: Any, to: Any) -> Any:
    """Pack the keys of a block for `score_rows`. For compiled loops.

    The arguments are the address of addresses, an offset from those (bytes), D, the number of keys (rounded up to a
    multiple of KEYS_AT_ONCE: so many addresses are read), and the address of the packed keys, BLOCK times D float32s.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        addresses, start, size, num_keys, to = args
        key_bytes = builder.mul(size, I64(_FLOAT_BYTES))

        def keys(first: Any) -> Sequence[Any]:
            places = b.address(addresses, builder.mul(first, I64(_ADDRESS_BYTES)))
            target = b.address(to, builder.mul(first, key_bytes))
            rows = [b.load(b.address(places, _ADDRESS_BYTES * key), I64) for key in range(4 * _GROUPS)]

            def channels(d: Any) -> Sequence[Any]:
                offset = builder.mul(d, I64(_FLOAT_BYTES))
                packed = b.address(target, builder.mul(offset, I64(KEYS_AT_ONCE)))
                for group in range(_GROUPS):
                    for j, vector in enumerate(
                        _load_four(b, rows[4 * group : 4 * group + 4], builder.add(start, offset))
                    ):
                        b.store(vector, b.address(packed, (j * _GROUPS + group) * TOTAL_BYTES))
                return ()

            b.loop(size, LANES, (), channels)
            return ()

        b.loop(num_keys, KEYS_AT_ONCE, (), keys)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def score_rows(num_rows: int, *, in_place: bool) -> Callable[..., None]:
    """Return a function for compiled loops that writes the products of `num_rows` queries with the keys of a block.

    Vectors hold four channels of each of LANES / 4 groups for four keys; a query's channels are copied to the four. So
    a product is summed over every fourth group of channels, in their order, then the groups: in one order, packed
    or not.

    The arguments are the address of the queries (D float32s each, one after the other), D, the address of the packed
    keys, or with `in_place` of addresses, an offset from those (bytes), the number of keys as of `pack_keys`, the
    address of the scores (BLOCK float32s for each row), and with `in_place` what to fetch into the cache: the address
    of the addresses of the next block's keys, and the offset of this block's values from its keys.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        q, size, source, start, num_keys, scores, coming, to_values = args
        row_bytes = builder.mul(size, I64(_FLOAT_BYTES))
        queries = [b.address(q, builder.mul(row_bytes, I64(row))) for row in range(num_rows)]

        def keys(first: Any) -> Sequence[Any]:
            at = builder.mul(first, I64(_ADDRESS_BYTES))
            place, next_place = b.address(source, at), b.address(coming, at)
            packed_keys = b.address(source, builder.mul(first, row_bytes))
            if in_place:
                rows = [b.load(b.address(place, _ADDRESS_BYTES * key), I64) for key in range(4 * _GROUPS)]
                next_rows = [b.load(b.address(next_place, _ADDRESS_BYTES * key), I64) for key in range(4 * _GROUPS)]

            def channels(d: Any, *sums: Any) -> Sequence[Any]:
                offset = builder.mul(d, I64(_FLOAT_BYTES))
                found = [b.load(b.address(query, offset)) for query in queries]
                copied = [
                    [b.shuffle(x, x, [lane // 4 * 4 + j for lane in range(LANES)]) for j in range(4)] for x in found
                ]
                added = list(sums)

                def add(group: int, j: int, k: Any) -> None:
                    for row in range(num_rows):
                        place = row * _GROUPS + group
                        added[place] = b.call("fmuladd", copied[row][j], k, added[place])

                if in_place:
                    behind = builder.add(start, offset)
                    for group in range(_GROUPS):
                        four = slice(4 * group, 4 * group + 4)
                        for key in next_rows[four]:
                            b.fetch(b.address(key, behind))
                        for key in rows[four]:
                            b.fetch(b.address(key, behind, to_values))
                        for j, k in enumerate(_load_four(b, rows[four], behind)):
                            add(group, j, k)
                    return added
                packed = b.address(packed_keys, builder.mul(offset, I64(KEYS_AT_ONCE)))
                for j in range(4):
                    for group in range(_GROUPS):
                        add(group, j, b.load(b.address(packed, (j * _GROUPS + group) * TOTAL_BYTES)))
                return added

            sums = b.loop(size, LANES, [b.constant(0.0)] * (num_rows * _GROUPS), channels)
            to = b.address(scores, builder.mul(first, I64(_FLOAT_BYTES)))
            for row in range(num_rows):
                for part in range(0, _GROUPS, LANES // 4):
                    total = _sums_of_groups(b, sums[row * _GROUPS + part :][: LANES // 4])
                    b.store(total, b.address(to, row * ROW_BYTES + 4 * part * _FLOAT_BYTES))
            return ()

        b.loop(num_keys, KEYS_AT_ONCE, (), keys)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def score(
        _: Any, q: Any, size: Any, source: Any, start: Any, num: Any, to: Any, coming: Any, to_values: Any
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    return score  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def weigh_scores(_: Any, scores: Any, base: Any, total: Any, sums: Any, size: Any) -> Any:
    """Replace BLOCK float32 scores s at an address by 2^(s - base), and add them to the row's total, by lanes. If the
    row's base at the address `base` rises, scale the total and the row's `size` sums. For compiled loops.

    The base follows when scores exceed it by SLACK, so that sums are seldom rescaled.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        scores, base, total, sums, size = args
        places = [b.address(scores, lane * _FLOAT_BYTES) for lane in range(0, BLOCK, LANES)]
        found = [b.load(place) for place in places]
        largest = found
        while len(largest) > 1:
            largest = [b.larger(x, y) for x, y in zip(largest[::2], largest[1::2], strict=True)]
        limit = b.splat(builder.fadd(b.load(base, F32), ir.Constant(F32, SLACK)))
        above = builder.bitcast(builder.fcmp_ordered(">", largest[0], limit), ir.IntType(LANES))
        with builder.if_then(builder.icmp_unsigned("!=", above, ir.Constant(ir.IntType(LANES), 0)), likely=False):
            before, now = b.load(base, F32), b.fold(largest[0], b.larger)
            b.store(now, base)
            factor = _exp2(b, b.splat(builder.fsub(before, now)))
            b.store(builder.fmul(b.load(total), factor), total)

            def rescale(d: Any) -> Sequence[Any]:
                place = b.address(sums, builder.mul(d, I64(_FLOAT_BYTES)))
                b.store(builder.fmul(b.load(place), factor), place)
                return ()

            b.loop(size, LANES, (), rescale)
        shift = b.splat(b.load(base, F32))
        weights = [_exp2(b, builder.fsub(score, shift)) for score in found]
        for weight, place in zip(weights, places, strict=True):
            b.store(weight, place)
        while len(weights) > 1:
            weights = [builder.fadd(x, y) for x, y in zip(weights[::2], weights[1::2], strict=True)]
        b.store(builder.fadd(b.load(total), weights[0]), total)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


@intrinsic  # type: ignore[untyped-decorator]
def total_weight(_: Any, total: Any) -> Any:
    """Return a row's total weight from its address. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        return b.fold(b.load(args[0]), builder.fadd)

    return types.float32(types.int64), generate


def weigh_values(num_rows: int, num_vectors: int, *, fetches: bool = False) -> Callable[..., None]:
    """Return a function for compiled loops that adds the values of a block, times their weights, to `num_vectors`
    vectors of the sums of `num_rows` rows.

    Its arguments are the address of the weights (BLOCK float32s for each row), of the values' addresses, the number of
    values, the offset of the vectors from those addresses (bytes), the address of the vectors in the first row's sums,
    the bytes of a row's sums, and if `fetches` what to fetch into the cache: the address of the addresses of the next
    block's values, and the offset of its keys from them.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        weights, addresses, num_values, offset, sums, row_bytes, coming, to_keys = args
        places = [
            b.address(sums, builder.mul(row_bytes, I64(row)), vector * TOTAL_BYTES)
            for row in range(num_rows)
            for vector in range(num_vectors)
        ]

        def values(key: Any, *sums: Any) -> Sequence[Any]:
            at = builder.mul(key, I64(_ADDRESS_BYTES))
            value = b.address(b.load(b.address(addresses, at), I64), offset)
            if fetches:
                next_value = b.address(b.load(b.address(coming, at), I64), offset)
                for first in (next_value, b.address(next_value, to_keys)):
                    for byte in range(0, num_vectors * TOTAL_BYTES, 64):
                        b.fetch(b.address(first, byte))
            column = b.address(weights, builder.mul(key, I64(_FLOAT_BYTES)))
            found = [b.splat(b.load(b.address(column, row * ROW_BYTES), F32)) for row in range(num_rows)]
            added = list(sums)
            for vector in range(num_vectors):
                v = b.load(b.address(value, vector * TOTAL_BYTES))
                for row in range(num_rows):
                    place = row * num_vectors + vector
                    added[place] = b.call("fmuladd", found[row], v, sums[place])
            return added

        for place, value in zip(places, b.loop(num_values, 1, [b.load(at) for at in places], values), strict=True):
            b.store(value, place)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def weigh(
        _: Any,
        weights: Any,
        addresses: Any,
        num: Any,
        offset: Any,
        sums: Any,
        row_bytes: Any,
        coming: Any,
        to_keys: Any,
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    return weigh  # type: ignore[no-any-return]


_floats, _halves = pointer_to(types.float32), pointer_to(types.uint16)
_gather_bfloat16, _gather_float16, _gather_e4m3, _gather_int8 = map(_gather_rows, range(1, 5))
_gather_e5m2 = _gather_rows(E5M2_CODES)


@compiled_in_order("void(int64, int64, int64, float32)")
def mask_scores(scores: int, begin: int, end: int, cap: float) -> None:
    """Cap a row's scores, and hide the keys outside [begin, end)."""
    scores_L = carray(_floats(scores), (BLOCK,))
    if cap > 0:
        for key in range(BLOCK):
            scores_L[key] = cap * LOG2_E * np.tanh(scores_L[key])
    for key in range(begin):
        scores_L[key] = _NOTHING
    for key in range(end, BLOCK):
        scores_L[key] = _NOTHING


@compiled_in_order("void(int64, int64, int64, int64, int64, float32, int64)")
def read_query(source: int, dtype: int, first: int, D: int, size: int, scale: float, target: int) -> None:
    """Write a query, times `scale`, and zeros up to `size`. It is the numbers from `first` on at the address
    `source`."""
    to = carray(_floats(target), (size,))
    if dtype == FLOAT32:
        wide = carray(_floats(source + 4 * first), (D,))
        for d in range(D):
            to[d] = wide[d] * scale
    else:
        half = carray(_halves(source + 2 * first), (D,))
        for d in range(D):
            to[d] = widen(half[d]) * scale
    for d in range(D, size):
        to[d] = 0


@compiled_in_order("void(int64, int64, int64, int64, int64, int64)")
def gather(dtype: int, addresses: int, offset: int, num: int, size: int, to: int) -> None:
    """Copy a block's keys (or values), not float32s themselves, as float32s."""
    if dtype == BFLOAT16:
        _gather_bfloat16(addresses, offset, num, size, to)
    elif dtype == FLOAT16:
        _gather_float16(addresses, offset, num, size, to)
    elif dtype == E4M3_CODES:
        _gather_e4m3(addresses, offset, num, size, to)
    elif dtype == E5M2_CODES:
        _gather_e5m2(addresses, offset, num, size, to)
    else:
        _gather_int8(addresses, offset, num, size, to)


@compiled_in_order("void(int64, int64, float32, int64, int64, int64)")
def write_output(sums: int, D: int, factor: float, target: int, dtype: int, first: int) -> None:
    """Write a row's sums, times `factor`, as the numbers from `first` on at the address `target`."""
    sums_D = carray(_floats(sums), (D,))
    if dtype == FLOAT32:
        wide = carray(_floats(target + 4 * first), (D,))
        for d in range(D):
            wide[d] = sums_D[d] * factor
    else:
        half = carray(_halves(target + 2 * first), (D,))
        for d in range(D):
            half[d] = narrow(sums_D[d] * factor, half[d])
