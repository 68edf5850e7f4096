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
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled_in_order
from .instructions import HOST

LANES = HOST.lanes

BLOCK = 64
# Dtypes of caches, by their codes.
FLOAT32, BFLOAT16, FLOAT16, E4M3_CODES, INT8 = range(5)
BFLOAT16_DOTS = 5  # of a bfloat16 cache whose queries may be rounded to bfloat16, for dot products of pairs
_KEYS = 4
LOG2_E = np.float32(1.4426950408889634)
_NOTHING = np.float32(-np.inf)

_FLOAT, _INT, _LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_FLOATS, _LANE_INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_LANE, LANES)
_FLOAT_BYTES, _ADDRESS_BYTES = 4, 8
# 2^r for r in [-1/2, 1/2] by powers of r: interpolation in Chebyshev's points, relative error 3e-9.
_EXP2 = np.polynomial.chebyshev.Chebyshev.interpolate(np.exp2, 6, domain=(-0.5, 0.5)).convert(
    kind=np.polynomial.Polynomial
)
_EXP2_POWERS = [float(np.float32(power)) for power in _EXP2.coef]


_ELEMENTS = {
    FLOAT32: _FLOAT,
    BFLOAT16: ir.IntType(16),
    FLOAT16: ir.IntType(16),
    E4M3_CODES: ir.IntType(8),
    INT8: ir.IntType(8),
}


class _Builder:
    """Shorthands for IR of float32 vectors at addresses."""

    def __init__(self, builder: Any) -> None:
        self.ir = builder

    def address(self, base: Any, *offsets: Any) -> Any:
        """Return a sum of byte offsets, which are values or ints."""
        for offset in offsets:
            if isinstance(offset, int):
                if offset == 0:
                    continue
                offset = _INT(offset)
            base = self.ir.add(base, offset)
        return base

    def load(self, address: Any, kind: Any = _FLOATS) -> Any:
        found = self.ir.load(self.ir.inttoptr(address, kind.as_pointer()))
        found.align = _ADDRESS_BYTES if kind is _INT else _FLOAT_BYTES
        return found

    def store(self, value: Any, address: Any) -> None:
        stored = self.ir.store(value, self.ir.inttoptr(address, value.type.as_pointer()))
        stored.align = _FLOAT_BYTES

    def call(self, name: str, *operands: Any) -> Any:
        kind = operands[0].type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        function = cgutils.get_or_insert_function(
            self.ir.module, ir.FunctionType(kind, [kind] * len(operands)), f"llvm.{name}.{suffix}"
        )
        return self.ir.call(function, operands)

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        return self.ir.shuffle_vector(a, b, ir.Constant(ir.VectorType(_LANE, len(lanes)), list(lanes)))

    def splat(self, value: Any) -> Any:
        nothing = ir.Constant(_FLOATS, ir.Undefined)
        return self.shuffle(self.ir.insert_element(nothing, value, _LANE(0)), nothing, [0] * LANES)

    def constant(self, value: float) -> Any:
        return ir.Constant(_FLOATS, [value] * LANES)

    def fold(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Combine a vector's lanes into one number, halves first."""
        lanes = LANES
        while lanes > 1:
            lanes //= 2
            value = combine(
                self.shuffle(value, value, list(range(lanes))),
                self.shuffle(value, value, list(range(lanes, 2 * lanes))),
            )
        return self.ir.extract_element(value, _LANE(0))

    def loop(self, count: Any, step: int, carried: Sequence[Any], body: Callable[..., Sequence[Any]]) -> list[Any]:
        """Append a loop of `body(index, *values)` for the indices 0, step, ... below `count`, at least one."""
        before, block = self.ir.block, self.ir.append_basic_block("loop")
        self.ir.branch(block)
        self.ir.position_at_end(block)
        index = self.ir.phi(_INT)
        index.add_incoming(_INT(0), before)
        phis = [self.ir.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        results = list(body(index, *phis))
        end = self.ir.block  # the body may have loops of its own
        following = self.ir.add(index, _INT(step))
        index.add_incoming(following, end)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, end)
        after = self.ir.append_basic_block("after")
        self.ir.cbranch(self.ir.icmp_signed("<", following, count), block, after)
        self.ir.position_at_end(after)
        return results


def _sums_of_four(b: _Builder, sums: Sequence[Any]) -> Any:
    """Return the sums of the lanes of four vectors, as four lanes: within groups of four lanes, then the groups."""
    groups = range(0, LANES, 4)
    pairs = []
    for x, y in (sums[:2], sums[2:]):
        low = b.shuffle(x, y, [lane for g in groups for lane in (g, LANES + g, g + 1, LANES + g + 1)])
        high = b.shuffle(x, y, [lane for g in groups for lane in (g + 2, LANES + g + 2, g + 3, LANES + g + 3)])
        pairs.append(b.ir.fadd(low, high))
    x, y = pairs
    low = b.shuffle(x, y, [lane for g in groups for lane in (g, g + 1, LANES + g, LANES + g + 1)])
    high = b.shuffle(x, y, [lane for g in groups for lane in (g + 2, g + 3, LANES + g + 2, LANES + g + 3)])
    total = b.ir.fadd(low, high)
    lanes = LANES
    while lanes > 4:
        lanes //= 2
        low, high = list(range(lanes)), list(range(lanes, 2 * lanes))
        total = b.ir.fadd(b.shuffle(total, total, low), b.shuffle(total, total, high))
    return total


def _load_as_floats(b: _Builder, address: Any, dtype: int) -> Any:
    """Return LANES numbers of a dtype, from an address on, as float32s."""
    element = _ELEMENTS[dtype]
    bits = b.ir.load(b.ir.inttoptr(address, ir.VectorType(element, LANES).as_pointer()))
    bits.align = 4 if dtype == FLOAT32 else element.width // 8
    if dtype == FLOAT32:
        return bits
    if dtype == INT8:
        return b.ir.sitofp(b.ir.sext(bits, _LANE_INTS), _FLOATS)

    def constant(number: int) -> Any:
        return ir.Constant(_LANE_INTS, [number] * LANES)

    wide = b.ir.zext(bits, _LANE_INTS)
    if dtype == BFLOAT16:
        return b.ir.bitcast(b.ir.shl(wide, constant(16)), _FLOATS)
    # Shifted, the exponent and mantissa stand where a float32 has them; the exponents differ by a bias.
    shift, bias, sign = (13, 127 - 15, 1 << 15) if dtype == FLOAT16 else (20, 127 - 7, 1 << 7)
    magnitude = b.ir.shl(b.ir.and_(wide, constant(sign - 1)), constant(shift))
    normal = b.ir.add(magnitude, constant(bias << 23))
    # A subnormal number is what its bits add to the least normal one.
    larger = b.ir.bitcast(b.ir.add(magnitude, constant((bias + 1) << 23)), _FLOATS)
    subnormal = b.ir.bitcast(b.ir.fsub(larger, b.constant(2.0 ** (bias - 126))), _LANE_INTS)
    found = b.ir.select(b.ir.icmp_signed("<", magnitude, constant(1 << 23)), subnormal, normal)
    if dtype == FLOAT16:  # infinity and NaN; e4m3 has no infinity, and its NaN becomes 480, as in the reference
        beyond = b.ir.add(normal, constant(bias << 23))
        found = b.ir.select(b.ir.icmp_signed(">=", magnitude, constant(31 << 23)), beyond, found)
    negative = b.ir.shl(b.ir.and_(wide, constant(sign)), constant(31 - sign.bit_length() + 1))
    return b.ir.bitcast(b.ir.or_(found, negative), _FLOATS)


def gather_rows(dtype: int) -> Callable[..., None]:
    """Return a function for compiled loops that copies keys or values of a dtype as float32s, one after the other.

    Its arguments are the address of the keys' addresses, the number of keys, D and the address of the copies.
    """
    width = 4 if dtype == FLOAT32 else _ELEMENTS[dtype].width // 8

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = _Builder(builder)
        addresses, num_keys, size, to = args

        def keys(key: Any) -> Sequence[Any]:
            source = b.load(b.address(addresses, builder.mul(key, _INT(_ADDRESS_BYTES))), _INT)
            target = b.address(to, builder.mul(builder.mul(key, size), _INT(_FLOAT_BYTES)))

            def vectors(d: Any) -> Sequence[Any]:
                numbers = _load_as_floats(b, b.address(source, builder.mul(d, _INT(width))), dtype)
                b.store(numbers, b.address(target, builder.mul(d, _INT(_FLOAT_BYTES))))
                return ()

            b.loop(size, LANES, (), vectors)
            return ()

        b.loop(num_keys, 1, (), keys)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def gather(_: Any, addresses: Any, num_keys: Any, size: Any, to: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return gather  # type: ignore[no-any-return]


def score_rows(num_rows: int) -> Callable[..., None]:
    """Return a function for compiled loops that writes the products of `num_rows` queries with the keys of a block.

    Its arguments are the address of the queries (D float32s each, one after the other), D, the address of the keys'
    addresses, the number of keys (rounded up to a multiple of 8: so many addresses are read) and the address of the
    scores (BLOCK float32s for each row).
    """
    keys_at_once = 2 * _KEYS if num_rows == 1 else _KEYS  # enough independent sums

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = _Builder(builder)
        q, size, addresses, num_keys, scores = args
        row_bytes = builder.mul(size, _INT(_FLOAT_BYTES))
        queries = [b.address(q, builder.mul(row_bytes, _INT(row))) for row in range(num_rows)]

        def keys(first: Any) -> Sequence[Any]:
            places = b.address(addresses, builder.mul(first, _INT(_ADDRESS_BYTES)))
            rows = [b.load(b.address(places, _ADDRESS_BYTES * key), _INT) for key in range(keys_at_once)]
            zero = b.constant(0.0)

            def inputs(d: Any, *sums: Any) -> Sequence[Any]:
                offset = builder.mul(d, _INT(_FLOAT_BYTES))
                found = [b.load(b.address(query, offset)) for query in queries]
                added = list(sums)
                for key in range(keys_at_once):
                    k = b.load(b.address(rows[key], offset))
                    for row in range(num_rows):
                        place = row * keys_at_once + key
                        added[place] = b.call("fmuladd", found[row], k, sums[place])
                return added

            sums = b.loop(size, LANES, [zero] * (num_rows * keys_at_once), inputs)
            for row in range(num_rows):
                for part in range(0, keys_at_once, _KEYS):
                    four = sums[row * keys_at_once + part :][:_KEYS]
                    place = b.address(
                        scores, builder.mul(first, _INT(_FLOAT_BYTES)), (row * BLOCK + part) * _FLOAT_BYTES
                    )
                    b.store(_sums_of_four(b, four), place)
            return ()

        b.loop(num_keys, keys_at_once, (), keys)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def score(_: Any, q: Any, size: Any, addresses: Any, num_keys: Any, scores: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return score  # type: ignore[no-any-return]


def weigh_values(num_rows: int, num_vectors: int) -> Callable[..., None]:
    """Return a function for compiled loops that scales `num_vectors` vectors of `num_rows` accumulators by a factor
    each and adds the values of a block, times their weights.

    Its arguments are the address of the weights (BLOCK float32s for each row), of the factors, of the values'
    addresses, the number of values, the offset of the vectors in a value and in an accumulator (bytes), the address of
    the accumulators, and their D.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = _Builder(builder)
        weights, factors, addresses, num_values, offset, accumulators, size = args
        row_bytes = builder.mul(size, _INT(_FLOAT_BYTES))
        places = [
            b.address(accumulators, offset, builder.mul(row_bytes, _INT(row)), vector * LANES * _FLOAT_BYTES)
            for row in range(num_rows)
            for vector in range(num_vectors)
        ]
        first = []
        for row in range(num_rows):
            factor = b.splat(b.load(b.address(factors, row * _FLOAT_BYTES), _FLOAT))
            own = places[row * num_vectors :][:num_vectors]
            first += [builder.fmul(b.load(place), factor) for place in own]

        def values(key: Any, *sums: Any) -> Sequence[Any]:
            row = b.load(b.address(addresses, builder.mul(key, _INT(_ADDRESS_BYTES))), _INT)
            column = b.address(weights, builder.mul(key, _INT(_FLOAT_BYTES)))
            found = [b.splat(b.load(b.address(column, r * BLOCK * _FLOAT_BYTES), _FLOAT)) for r in range(num_rows)]
            added = list(sums)
            for vector in range(num_vectors):
                v = b.load(b.address(row, offset, vector * LANES * _FLOAT_BYTES))
                for number in range(num_rows):
                    place = number * num_vectors + vector
                    added[place] = b.call("fmuladd", found[number], v, sums[place])
            return added

        for place, value in zip(places, b.loop(num_values, 1, first, values), strict=True):
            b.store(value, place)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def weigh(_: Any, weights: Any, factors: Any, addresses: Any, num: Any, offset: Any, acc: Any, size: Any) -> Any:
        return types.void(*[types.int64] * 7), generate

    return weigh  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def highest_score(_: Any, scores: Any) -> Any:
    """Return the largest of BLOCK float32 scores at an address. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = _Builder(builder)
        found = [b.load(b.address(args[0], lane * _FLOAT_BYTES)) for lane in range(0, BLOCK, LANES)]

        def larger(x: Any, y: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", x, y), x, y)

        while len(found) > 1:
            found = [larger(x, y) for x, y in zip(found[::2], found[1::2], strict=True)]
        return b.fold(found[0], larger)

    return types.float32(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def weigh_scores(_: Any, scores: Any, base: Any) -> Any:
    """Replace BLOCK float32 scores s at an address by 2^(s - base), and return the weights' sum. Weights below 2^-126
    become 0, those of -inf included. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = _Builder(builder)
        base = b.splat(args[1])
        least, rounding = b.constant(-126.0), b.constant(1.5 * 2.0**23 + 127)
        weights = []
        for lane in range(0, BLOCK, LANES):
            place = b.address(args[0], lane * _FLOAT_BYTES)
            x = builder.fsub(b.load(place), base)
            # The sum's last bits are the nearest whole number, plus the bias of an exponent.
            rounded = builder.fadd(builder.select(builder.fcmp_ordered(">", x, least), x, least), rounding)
            r = builder.fsub(x, builder.fsub(rounded, rounding))
            series = b.constant(_EXP2_POWERS[-1])
            for power in _EXP2_POWERS[-2::-1]:
                series = b.call("fmuladd", series, r, b.constant(power))
            scale = builder.shl(builder.bitcast(rounded, _LANE_INTS), ir.Constant(_LANE_INTS, [23] * LANES))
            weight = builder.fmul(series, builder.bitcast(scale, _FLOATS))
            # An ordered comparison: the weight of NaN is NaN.
            weight = builder.select(builder.fcmp_ordered("<", x, least), b.constant(0.0), weight)
            b.store(weight, place)
            weights.append(weight)
        while len(weights) > 1:
            weights = [builder.fadd(x, y) for x, y in zip(weights[::2], weights[1::2], strict=True)]
        return b.fold(weights[0], builder.fadd)

    return types.float32(types.int64, types.float32), generate


def pointer_to(kind: Any) -> Callable[[Any], Any]:
    """Return a function for compiled loops that makes a pointer to numbers of the numba type `kind` from an address."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return pointer  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def address_of(_: Any, array: Any) -> Any:
    """Return the address of an array's first number. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _INT)

    return types.int64(array), generate


_floats = pointer_to(types.float32)


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
