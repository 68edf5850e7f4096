"""Kernels of attention over codes: products of sixteen-bit integers, two in each 32-bit lane, with whole sums.

Codes of int8, e4m3 and four bits are widened to sixteen bits, and so are queries and weights, by factors of a row. A
sum of products is a whole number, exact in any order, so its bits depend on neither the kernel nor the batch. `Format`
has the bounds that keep sums below 2^31.

`pack_pairs` packs the codes of a block. Of packed keys a lane is a key: vectors hold a pair of channels of each. Of
packed values a lane is a channel: vectors hold a channel's numbers of a pair of keys.

Legend: R rows of a call (a query of one head), BLOCK keys of a block, Z channels of all segments with what fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from ..compiled import compiled_in_order
from ..instructions import HOST
from ..pointers import pointer_to
from ..products.tile import FLOATS, I16, I32, I64, FloatBuilder
from .inner import BLOCK, E4M3_CODES, FOUR_BITS, INT8, ROW_BYTES, TOTAL_BYTES
from .pack_pairs import (
    CHANNEL,
    CHANNELS,
    CHUNK,
    E4M3_UNIT,
    END,
    FIRST,
    LEVEL_UNIT,
    PAIR_BYTES,
    SCALE,
    SEGMENT,
    SEGMENT_FIELDS,
    VALUE_PAIRS,
    channel_of_word,
    num_pairs_of,
)

LANES = HOST.lanes
ROWS = 4  # most rows of a kernel: their sums stay in registers
KEYS_AT_ONCE = 2 * LANES  # of a kernel of scores
WEIGHT_BYTES = 2 * BLOCK  # of a row's weights
_KEY_PAIRS = 4  # of channels, that a round of a kernel multiplies

_floats, _ints, _words = pointer_to(types.float32), pointer_to(types.int64), pointer_to(types.int16)
_LANE_INTS, _WORDS = ir.VectorType(I32, LANES), ir.VectorType(I16, 2 * LANES)


class Format(NamedTuple):
    """Bounds of a format's sums: they stay below 2^31 for any codes."""

    unit: float  # what 1 of a widened code is, times the scale
    most_of_query: float  # of a query's numbers: SEGMENT of them, or all, times the largest code
    most_of_weights: float  # of the sum of a block's weights, times the largest code


FORMATS = {
    INT8: Format(1.0, 32767, 2.0**24),  # 127 times 32767 times 512 channels
    E4M3_CODES: Format(1 / E4M3_UNIT, 8191, 2.7e5),  # 480 is 7680
    FOUR_BITS: Format(1 / LEVEL_UNIT, 6000, 1.9e5),  # the largest level is 11055
}


def _add_pairs(b: FloatBuilder, total: Any, x: Any, y: Any) -> Any:
    """Add the sums of the lanes' two products."""
    x, y = b.ir.bitcast(x, _WORDS), b.ir.bitcast(y, _WORDS)
    if HOST.byte_dot == "plain" or HOST.emulated:
        wide = ir.VectorType(I32, 2 * LANES)
        products = b.ir.mul(b.ir.sext(x, wide), b.ir.sext(y, wide))
        even, odd = (b.shuffle(products, products, range(first, 2 * LANES, 2)) for first in (0, 1))
        return b.ir.add(total, b.ir.add(even, odd))
    name = "llvm.x86.avx2.pmadd.wd" if LANES == 8 else "llvm.x86.avx512.pmaddw.d.512"
    return b.ir.add(total, b.function(name, x, y, result=_LANE_INTS))


def _splat_pair(b: FloatBuilder, address: Any) -> Any:
    nothing = ir.Constant(_LANE_INTS, ir.Undefined)
    one = b.ir.insert_element(nothing, b.load(address, I32), I32(0))
    return b.shuffle(one, nothing, [0] * LANES)


def score_pairs(num_rows: int) -> Callable[..., None]:
    """Return a function for compiled loops that adds the products of `num_rows` queries with packed keys to scores.

    Its arguments are the address of the queries (Z words each), their bytes, the address of their factors (float32s),
    that of the packed keys, of the segments and their number, of the keys' scales (BLOCK float32s for each group), the
    number of keys (a multiple of KEYS_AT_ONCE), and the address of the scores (BLOCK float32s for each row).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        q, q_bytes, factors, keys, segments, num_segments, scales, num_keys, scores = args
        queries = [b.address(q, builder.mul(q_bytes, I64(row))) for row in range(num_rows)]
        nothing = ir.Constant(_LANE_INTS, [0] * LANES)

        def some_keys(first: Any) -> Sequence[Any]:
            own = b.address(keys, builder.mul(first, I64(4)))
            own_scales = b.address(scales, builder.mul(first, I64(4)))

            def segment(index: Any, *totals: Any) -> Sequence[Any]:
                record = b.address(segments, builder.mul(index, I64(8 * SEGMENT_FIELDS)))
                begin, end, scale = (b.load(b.address(record, 8 * at), I64) for at in (FIRST, END, SCALE))
                # Two channels are a pair, of 4 bytes in a query.
                packed = b.address(own, builder.mul(begin, I64(PAIR_BYTES // 2)))
                places = [b.address(query, builder.mul(begin, I64(2))) for query in queries]

                def some_pairs(first: Any, *sums: Any) -> Sequence[Any]:
                    here, offset = b.address(packed, builder.mul(first, I64(PAIR_BYTES))), builder.mul(first, I64(4))
                    found = list(sums)
                    for pair in range(_KEY_PAIRS):
                        at = pair * PAIR_BYTES
                        k = [b.load(b.address(here, at + vector * TOTAL_BYTES), _LANE_INTS) for vector in range(2)]
                        for place in range(2 * num_rows):
                            if place % 2 == 0:
                                x = _splat_pair(b, b.address(places[place // 2], offset, 4 * pair))
                            found[place] = _add_pairs(b, found[place], k[place % 2], x)
                    return found

                pairs = builder.lshr(builder.sub(end, begin), I64(1))
                sums = b.loop(pairs, _KEY_PAIRS, [nothing] * (2 * num_rows), some_pairs)
                group = b.address(own_scales, builder.mul(scale, I64(ROW_BYTES)))
                factor = [b.load(b.address(group, vector * TOTAL_BYTES)) for vector in range(2)]
                return [
                    b.call("fmuladd", builder.sitofp(sums[place], FLOATS), factor[place % 2], total)
                    for place, total in enumerate(totals)
                ]

            totals = b.loop(num_segments, 1, [b.constant(0.0)] * (2 * num_rows), segment)
            to = b.address(scores, builder.mul(first, I64(4)))
            for place, total in enumerate(totals):
                row, vector = divmod(place, 2)
                here = b.address(to, row * ROW_BYTES + vector * TOTAL_BYTES)
                factor = b.splat(b.load(b.address(factors, 4 * row), FLOATS.element))
                b.store(b.call("fmuladd", total, factor, b.load(here)), here)
            return ()

        b.loop(num_keys, KEYS_AT_ONCE, (), some_keys)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def score(
        _: Any, q: Any, size: Any, factors: Any, keys: Any, table: Any, count: Any, scales: Any, num: Any, to: Any
    ) -> Any:
        return types.void(*[types.int64] * 9), generate

    return score  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def round_weights(_: Any, weights: Any, scales: Any, most: Any, to: Any, factor: Any) -> Any:
    """Write BLOCK weights, none below 0, times the values' scales as words, and their common factor, so that their sum
    is at most `most`. NaN makes the factor NaN. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        weights, scales, most, to, factor = args
        found = [
            builder.fmul(b.load(b.address(weights, at)), b.load(b.address(scales, at)))
            for at in range(0, ROW_BYTES, TOTAL_BYTES)
        ]

        def folded(combine: Callable[[Any, Any], Any]) -> Any:
            vectors = found
            while len(vectors) > 1:
                vectors = [combine(x, y) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
            return b.splat(b.fold(vectors[0], combine))

        total, nothing = folded(builder.fadd), b.constant(0.0)
        least = b.larger(builder.fmul(folded(b.larger), b.constant(1 / 32767)), b.constant(1e-36))
        unit = b.larger(builder.fdiv(total, b.splat(most)), least)
        inverse = builder.fdiv(b.constant(1.0), unit)
        half = b.constant(0.5)
        for place, weight in enumerate(found):
            code = b.call("fmuladd", weight, inverse, half)
            code = builder.select(builder.fcmp_ordered("ord", code, code), code, nothing)
            words = builder.trunc(builder.fptosi(code, _LANE_INTS), ir.VectorType(I16, LANES))
            b.store(words, b.address(to, 2 * LANES * place))
        unit = builder.fadd(unit, builder.fmul(total, nothing))
        b.store(builder.extract_element(unit, I32(0)), factor)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32, types.int64, types.int64), generate


def weigh_pairs(num_rows: int, num_vectors: int) -> Callable[..., None]:
    """Return a function for compiled loops that adds a block's values, times their weights, to `num_vectors` vectors of
    the sums of `num_rows` rows.

    Its arguments are the address of the weights (BLOCK words), the bytes from a row's to the next one's, the address of
    the vectors in the first pair of values, the bytes of a pair, the number of pairs, the address of the weights'
    factors and the bytes from a row's to the next one's, and the address of the vectors in the first row's sums, and
    the bytes of a row's sums.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        weights, weight_bytes, values, pair_bytes, num_pairs, factors, factor_bytes, sums, sums_bytes = args
        rows = [b.address(weights, builder.mul(weight_bytes, I64(row))) for row in range(num_rows)]
        places = [(row, vector) for row in range(num_rows) for vector in range(num_vectors)]

        def some_pairs(first: Any, *totals: Any) -> Sequence[Any]:
            found = list(totals)
            for pair in range(VALUE_PAIRS):
                here, offset = (
                    b.address(values, builder.mul(builder.add(first, I64(pair)), pair_bytes)),
                    builder.mul(first, I64(4)),
                )
                v = [b.load(b.address(here, vector * TOTAL_BYTES), _LANE_INTS) for vector in range(num_vectors)]
                x = [_splat_pair(b, b.address(row, offset, 4 * pair)) for row in rows]
                found = [
                    _add_pairs(b, sum_, v[vector], x[row]) for sum_, (row, vector) in zip(found, places, strict=True)
                ]
            return found

        nothing = ir.Constant(_LANE_INTS, [0] * LANES)
        totals = b.loop(num_pairs, VALUE_PAIRS, [nothing] * len(places), some_pairs)
        for total, (row, vector) in zip(totals, places, strict=True):
            factor = b.splat(b.load(b.address(factors, builder.mul(factor_bytes, I64(row))), FLOATS.element))
            to = b.address(sums, builder.mul(sums_bytes, I64(row)), vector * TOTAL_BYTES)
            b.store(b.call("fmuladd", builder.sitofp(total, FLOATS), factor, b.load(to)), to)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def weigh(
        _: Any, w: Any, w_bytes: Any, values: Any, pair: Any, num: Any, factors: Any, step: Any, sums: Any, size: Any
    ) -> Any:
        return types.void(*[types.int64] * 9), generate

    return weigh  # type: ignore[no-any-return]


_score_1, _score_2, _score_3, _score_4 = map(score_pairs, range(1, ROWS + 1))
_WIDE = SEGMENT // LANES  # vectors of a whole segment
_NARROW = CHUNK // LANES
_weigh_1_wide, _weigh_2_wide = weigh_pairs(1, _WIDE), weigh_pairs(2, _WIDE)
_weigh_1, _weigh_2, _weigh_3, _weigh_4 = (weigh_pairs(rows, _NARROW) for rows in range(1, ROWS + 1))


@compiled_in_order("void(int64, int64, int64, int64, float32, int64, int64)")
def round_query(query: int, D: int, segments: int, count: int, most: float, to: int, factor: int) -> None:
    """Write a query's numbers as words up to `most`, and their factor. NaN and infinity make the factor NaN."""
    x_D, largest, total = carray(_floats(query), (D,)), np.float32(1e-30), np.float32(0)
    for d in range(D):
        largest = max(largest, abs(x_D[d]))
        total += x_D[d] * np.float32(0)
    carray(_floats(factor), (1,))[0] = largest / most + total
    inverse = most / largest if total == 0 else np.float32(0)
    for index in range(count):
        words = carray(_ints(segments + 8 * SEGMENT_FIELDS * index), (SEGMENT_FIELDS,))
        channel, channels, first = words[CHANNEL], words[CHANNELS], words[FIRST]
        to_Z = carray(_words(to + 2 * first), (words[END] - first,))
        for word in range(words[END] - first):
            d = channel_of_word(word)
            to_Z[word] = np.int16(np.rint(x_D[channel + d] * inverse)) if d < channels and total == 0 else 0


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def score(
    queries: int, q_bytes: int, factors: int, num_rows: int, keys: int, segments: int, count: int, scales: int,
    num: int, scores: int,
) -> None:  # fmt: skip
    """Add all rows' products with a block's keys to their scores."""
    row = 0
    while row < num_rows:
        left = num_rows - row
        q, own, to = queries + q_bytes * row, factors + 4 * row, scores + ROW_BYTES * row
        if left >= 4:
            _score_4(q, q_bytes, own, keys, segments, count, scales, num, to)
        elif left == 3:
            _score_3(q, q_bytes, own, keys, segments, count, scales, num, to)
        elif left == 2:
            _score_2(q, q_bytes, own, keys, segments, count, scales, num, to)
        else:
            _score_1(q, q_bytes, own, keys, segments, count, scales, num, to)
        row += 4


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def weigh(
    weights: int, groups: int, factors: int, num_rows: int, values: int, num: int, segments: int, count: int,
    sums: int, Z: int,
) -> None:  # fmt: skip
    """Add a block's values to the sums of all rows, by their weights, of which a row has `groups`."""
    w_bytes, f_bytes, pairs = WEIGHT_BYTES * groups, 4 * groups, num_pairs_of(num)
    for index in range(count):
        words = carray(_ints(segments + 8 * SEGMENT_FIELDS * index), (SEGMENT_FIELDS,))
        z = words[FIRST]
        while z < words[END]:
            wide = words[END] - z >= SEGMENT
            v, row = values + 4 * z, 0
            while row < num_rows:
                left = num_rows - row
                w = weights + w_bytes * row + WEIGHT_BYTES * words[SCALE]
                f, to = factors + f_bytes * row + 4 * words[SCALE], sums + 4 * (Z * row + z)
                if wide and left >= 2:
                    _weigh_2_wide(w, w_bytes, v, 4 * Z, pairs, f, f_bytes, to, 4 * Z)
                    row += 2
                elif wide:
                    _weigh_1_wide(w, w_bytes, v, 4 * Z, pairs, f, f_bytes, to, 4 * Z)
                    row += 1
                elif left >= 4:
                    _weigh_4(w, w_bytes, v, 4 * Z, pairs, f, f_bytes, to, 4 * Z)
                    row += 4
                elif left == 3:
                    _weigh_3(w, w_bytes, v, 4 * Z, pairs, f, f_bytes, to, 4 * Z)
                    row += 3
                elif left == 2:
                    _weigh_2(w, w_bytes, v, 4 * Z, pairs, f, f_bytes, to, 4 * Z)
                    row += 2
                else:
                    _weigh_1(w, w_bytes, v, 4 * Z, pairs, f, f_bytes, to, 4 * Z)
                    row += 1
            z += SEGMENT if wide else CHUNK
