"""Attention of a block of bfloat16 keys and values by dot products of pairs of bfloat16s, where the processor has them.

A block is packed once for all rows of a tile. Of keys a lane is a key: vectors hold a pair of channels of each key. Of
values a lane is a channel: vectors hold its numbers of a pair of keys. Queries and weights are rounded to bfloat16, all
sums are float32. A number is summed over the pairs in their order, whatever the number of rows, so its bits depend on
the row's own keys only. Where the processor has tile registers, both products go by those instead (`tiles`).

Weights are powers of two of scores minus a base, which need not be the largest score: it follows when scores exceed it
by SLACK, so that sums are seldom rescaled. The total is that of the rounded weights, so that equal values stay equal.

Legend: R rows of a call (a query of one head), BLOCK keys of a block, D head size (a multiple of LANES).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .... import loops
from ..bfloat16 import float32_to_bfloat16
from ..instructions import HOST
from ..pointers import pointer_to
from ..products.amx import local_state
from ..products.tile import F32, I16, I32, I64, FloatBuilder, Tile
from . import tiles
from .inner import BLOCK, FLOAT32, ROW_BYTES, SLACK, TOTAL_BYTES, mask_scores

LANES = HOST.lanes
ROWS = 6  # most rows of a kernel: their sums stay in registers
SCORE_ROWS = tiles.ROWS if HOST.tiles else ROWS  # that scratch memory holds
_VECTORS = BLOCK // LANES
_PAIR_BYTES = ROW_BYTES  # from a packed pair of channels to the next
# 2^r for r in [0, 1] by powers of r: relative error 4e-6, a five-hundredth of that of rounding to bfloat16.
_EXP2 = np.polynomial.chebyshev.Chebyshev.interpolate(np.exp2, 4, domain=(0, 1)).convert(kind=np.polynomial.Polynomial)
_EXP2_POWERS = [float(np.float32(power)) for power in _EXP2.coef]

_floats, _halves, _ints = pointer_to(types.float32), pointer_to(types.uint16), pointer_to(types.int64)


def _where_dots_are(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a code generator; an empty one, which compiles fast, where the processor has no such dot products: no
    cache is read by them then."""

    def nothing(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        return ir.Constant(F32, 0.0) if signature.return_type == types.float32 else context.get_dummy_value()

    return generate if HOST.bfloat16_dot else nothing


def _floats_of(tile: Tile, value: float) -> Any:
    return ir.Constant(tile.floats, [value] * tile.lanes)


def _shuffle(tile: Tile, x: Any, y: Any, lanes: Sequence[int]) -> Any:
    return tile.b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))


def _fold(tile: Tile, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine a vector's lanes into one number, halves first."""
    lanes = tile.lanes
    while lanes > 1:
        lanes //= 2
        low, high = list(range(lanes)), list(range(lanes, 2 * lanes))
        value = combine(_shuffle(tile, value, value, low), _shuffle(tile, value, value, high))
    return tile.b.extract_element(value, I32(0))


def _larger(tile: Tile, x: Any, y: Any) -> Any:
    """Return the larger lanes; `y` where one is NaN."""
    return tile.b.select(tile.b.fcmp_ordered(">", x, y), x, y)


def _exp2(tile: Tile, x: Any) -> Any:
    """Return 2^x for x < 127; 0 below -127, NaN of NaN."""
    b = tile.b
    if tile.instructions.emulated:
        x = _larger(tile, _floats_of(tile, -127.0), x)
        rounding = _floats_of(tile, 1.5 * 2.0**23)
        whole = b.fsub(b.fadd(x, rounding), rounding)
        whole = b.select(b.fcmp_ordered(">", whole, x), b.fsub(whole, _floats_of(tile, 1.0)), whole)
        r = b.fsub(x, whole)
    else:
        every, direction = ir.Constant(I16, -1), I32(4)
        # x - floor(x); 0 of an infinity.
        r = tile.call("llvm.x86.avx512.mask.reduce.ps.512", tile.floats, x, I32(1), x, every, direction)
    series = _floats_of(tile, _EXP2_POWERS[-1])
    for power in _EXP2_POWERS[-2::-1]:
        series = tile.multiply_add(series, r, _floats_of(tile, power))
    if not tile.instructions.emulated:  # times 2^floor(x)
        return tile.call("llvm.x86.avx512.mask.scalef.ps.512", tile.floats, series, x, x, every, direction)
    exponent = b.add(b.fptosi(whole, tile.ints), tile.constant(127))
    return b.fmul(series, b.bitcast(b.shl(exponent, tile.constant(23)), tile.floats))


def _transposed(tile: Tile, rows: list[Any]) -> list[Any]:
    """Transpose 16 vectors of 16 lanes: lanes of 32 bits, then pairs of them, then quarters of a vector."""
    quarters = range(0, 16, 4)
    columns: list[list[Any]] = []  # by group of four rows: four vectors, quarter L of vector c has column 4 L + c
    for first in range(0, 16, 4):
        pairs = []
        for x, y in (rows[first : first + 2], rows[first + 2 : first + 4]):
            for start in (0, 2):
                lanes = [lane for q in quarters for at in (q + start, q + start + 1) for lane in (at, 16 + at)]
                pairs.append(_shuffle(tile, x, y, lanes))
        group = []
        for half in range(2):
            for start in (0, 2):
                lanes = [lane for q in quarters for at in (q + start, 16 + q + start) for lane in (at, at + 1)]
                group.append(_shuffle(tile, pairs[half], pairs[2 + half], lanes))
        columns.append(group)
    found: list[Any] = [None] * 16

    def some_quarters(x: Any, y: Any, first: int) -> Any:
        lanes = [lane for base in (0, 16) for q in (first, first + 2) for lane in range(base + 4 * q, base + 4 * q + 4)]
        return _shuffle(tile, x, y, lanes)

    for c in range(4):
        for odd in range(2):
            low = some_quarters(columns[0][c], columns[1][c], odd)
            high = some_quarters(columns[2][c], columns[3][c], odd)
            for last in range(2):
                found[4 * (odd + 2 * last) + c] = some_quarters(low, high, last)
    return found


def _pack_keys(num_pairs: int) -> Callable[..., None]:
    """Return a function for compiled loops that packs `num_pairs` pairs of channels, 8 or 16, of 16 keys.

    Its arguments are the address of the keys' addresses, the offset of the pairs in a key (bytes), and the address of
    the packed pairs of the first key.
    """

    @_where_dots_are
    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        tile = Tile(builder, HOST, 1, 1)
        addresses, offset, to = tile.pointer(args[0]), args[1], tile.pointer(args[2])
        rows = []
        for key in range(16):
            row = tile.load(tile.pointer(tile.load(addresses, I64(8 * key), I64, 8)), offset, _lanes(num_pairs), 2)
            rows.append(_shuffle(tile, row, row, [lane % num_pairs for lane in range(16)]))
        for pair, vector in enumerate(_transposed(tile, rows)[:num_pairs]):
            tile.store(vector, to, I64(pair * _PAIR_BYTES))
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def pack(_: Any, addresses: Any, offset: Any, to: Any) -> Any:
        return types.void(*[types.int64] * 3), generate

    return pack  # type: ignore[no-any-return]


def _lanes(count: int) -> Any:
    return ir.VectorType(I32, count)


def _pack_values(num_channels: int) -> Callable[..., None]:
    """Return a function for compiled loops that packs `num_channels` channels, 16 or 32, of two values.

    Its arguments are the addresses of the channels in both values, and that of the packed ones.
    """

    @_where_dots_are
    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        tile = Tile(builder, HOST, 1, 1)
        first, second, to = map(tile.pointer, args)
        kind = ir.VectorType(I16, num_channels)
        x, y = tile.load(first, I64(0), kind, 2), tile.load(second, I64(0), kind, 2)
        for part in range(0, num_channels, 16):
            lanes = [lane for at in range(part, part + 16) for lane in (at, num_channels + at)]
            tile.store(_shuffle(tile, x, y, lanes), to, I64(4 * part))
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def pack(_: Any, first: Any, second: Any, to: Any) -> Any:
        return types.void(*[types.int64] * 3), generate

    return pack  # type: ignore[no-any-return]


def _score(num_rows: int) -> Callable[..., None]:
    """Return a function for compiled loops that writes the scores of `num_rows` queries with the keys of a block.

    Its arguments are the address of the queries, their bytes, the address of the packed keys, the number of pairs of
    channels, the factor of scores, and the address of the scores (BLOCK float32s for each row).
    """

    @_where_dots_are
    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        tile = Tile(builder, HOST, num_rows, 1)
        b, (q, q_bytes, keys, num_pairs, scale, scores) = builder, args
        queries = [tile.pointer(b.add(q, b.mul(q_bytes, I64(row)))) for row in range(num_rows)]
        packed, to, factor = tile.pointer(keys), tile.pointer(scores), tile.broadcast(scale)

        def step(pair: Any, sums: list[Any]) -> list[Any]:
            here, offset = b.gep(packed, [b.mul(pair, I64(_PAIR_BYTES))]), b.mul(pair, I64(4))
            k = [tile.load(here, I64(TOTAL_BYTES * vector), tile.ints, 4) for vector in range(_VECTORS)]
            new = []
            for row, query in enumerate(queries):
                x = tile.broadcast(tile.load(query, offset, I32, 4))
                new += [tile.add_pairs(sums[row * _VECTORS + vector], k[vector], x) for vector in range(_VECTORS)]
            return new

        sums = tile.loop(I64(0), num_pairs, [_floats_of(tile, 0.0)] * (num_rows * _VECTORS), step)
        for place, total in enumerate(sums):
            tile.store(b.fmul(total, factor), to, I64(TOTAL_BYTES * place))
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def score(_: Any, q: Any, q_bytes: Any, keys: Any, num_pairs: Any, scale: Any, scores: Any) -> Any:
        return types.void(*[types.int64] * 4, types.float32, types.int64), generate

    return score  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def _weigh_scores(_: Any, scores: Any, base: Any, total: Any, sums: Any, size: Any) -> Any:
    """Replace BLOCK float32 scores at an address by as many bfloat16 weights, and add the weights to the row's total.
    If the row's base at the address `base` rises, scale the total and the row's `size` sums. For compiled loops."""

    @_where_dots_are
    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        tile = Tile(builder, HOST, 1, 1)
        b, size = builder, args[4]
        scores, base, total, sums = map(tile.pointer, args[:4])
        found = [tile.load(scores, I64(TOTAL_BYTES * vector), tile.floats, 4) for vector in range(_VECTORS)]
        largest = _larger(tile, _larger(tile, found[0], found[1]), _larger(tile, found[2], found[3]))
        limit = tile.broadcast(b.fadd(tile.load(base, I64(0), F32, 4), ir.Constant(F32, SLACK)))
        above = b.bitcast(b.fcmp_ordered(">", largest, limit), ir.IntType(tile.lanes))
        with b.if_then(b.icmp_unsigned("!=", above, ir.Constant(ir.IntType(tile.lanes), 0)), likely=False):
            before = tile.load(base, I64(0), F32, 4)
            now = _fold(tile, largest, lambda x, y: _larger(tile, x, y))
            tile.store(now, base, I64(0))
            factor = _exp2(tile, tile.broadcast(b.fsub(before, now)))
            tile.store(b.fmul(tile.load(total, I64(0), tile.floats, 4), factor), total, I64(0))

            def rescale(vector: Any, _: list[Any]) -> list[Any]:
                offset = b.mul(vector, I64(TOTAL_BYTES))
                tile.store(b.fmul(tile.load(sums, offset, tile.floats, 4), factor), sums, offset)
                return []

            tile.loop(I64(0), b.sdiv(size, I64(LANES)), [], rescale)
        shift = tile.broadcast(tile.load(base, I64(0), F32, 4))
        weights = [_exp2(tile, b.fsub(score, shift)) for score in found]
        added = tile.load(total, I64(0), tile.floats, 4)
        ones = tile.constant(0x3F803F80)
        for half in range(_VECTORS // 2):
            pairs = tile.round_to_pairs(weights[2 * half], weights[2 * half + 1])
            added = tile.add_pairs(added, pairs, ones)
            tile.store(pairs, scores, I64(TOTAL_BYTES * half))
        tile.store(added, total, I64(0))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


def _weigh(num_rows: int, num_vectors: int) -> Callable[..., None]:
    """Return a function for compiled loops that adds a block's values, times their weights, to `num_vectors` vectors of
    the sums of `num_rows` rows.

    Its arguments are the address of the weights (rows of ROW_BYTES), that of the vectors in the first packed pair of
    values, the bytes of a pair, the number of pairs, the address of the vectors in the first row's sums, the bytes of a
    row's sums, the number of rows that exist, and an address for the sums of those that do not.
    """

    @_where_dots_are
    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        tile = Tile(builder, HOST, num_rows, 1)
        b, (weights, values, value_bytes, num_pairs, sums, sums_bytes, num_real, spare) = builder, args
        packed = tile.pointer(values)
        w_rows = [tile.pointer(b.add(weights, I64(row * ROW_BYTES))) for row in range(num_rows)]
        sums_rows = []
        for row in range(num_rows):
            place = b.add(sums, b.mul(sums_bytes, I64(row)))
            sums_rows.append(tile.pointer(b.select(b.icmp_signed("<", I64(row), num_real), place, spare)))
        offsets = [I64(TOTAL_BYTES * vector) for vector in range(num_vectors)]

        def step(pair: Any, added: list[Any]) -> list[Any]:
            here, offset = b.gep(packed, [b.mul(pair, value_bytes)]), b.mul(pair, I64(4))
            v = [tile.load(here, at, tile.ints, 4) for at in offsets]
            new = []
            for row, w in enumerate(w_rows):
                x = tile.broadcast(tile.load(w, offset, I32, 4))
                new += [tile.add_pairs(added[row * num_vectors + n], v[n], x) for n in range(num_vectors)]
            return new

        first = [tile.load(row, at, tile.floats, 4) for row in sums_rows for at in offsets]
        for place, total in enumerate(tile.loop(I64(0), num_pairs, first, step)):
            tile.store(total, sums_rows[place // num_vectors], offsets[place % num_vectors])
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def weigh(
        _: Any, w: Any, values: Any, value_bytes: Any, num: Any, sums: Any, sums_bytes: Any, num_real: Any, spare: Any
    ) -> Any:
        return types.void(*[types.int64] * 8), generate

    return weigh  # type: ignore[no-any-return]


_pack_8_pairs, _pack_16_pairs = _pack_keys(8), _pack_keys(16)
_pack_16_channels, _pack_32_channels = _pack_values(16), _pack_values(32)
_score_2, _score_4, _score_6 = _score(2), _score(4), _score(6)
_weigh_2, _weigh_4, _weigh_6 = _weigh(2, 4), _weigh(4, 4), _weigh(6, 4)
_weigh_2_rest, _weigh_4_rest, _weigh_6_rest = _weigh(2, 1), _weigh(4, 1), _weigh(6, 1)


@loops.compiled_once("void(int64, int64, int64, int64, int64, int64)", error_model="numpy")
def round_query(source: int, dtype: int, first: int, D: int, size: int, to: int) -> None:
    """Write a query as bfloat16s, and zeros up to `size`. It is the numbers from `first` on at the address `source`."""
    to_D = carray(_halves(to), (size,))
    if dtype == FLOAT32:
        wide_D = carray(_floats(source + 4 * first), (D,))
        for d in range(D):
            to_D[d] = float32_to_bfloat16(wide_D[d])
    else:
        half_D = carray(_halves(source + 2 * first), (D,))
        for d in range(D):
            to_D[d] = half_D[d]
    for d in range(D, size):
        to_D[d] = 0


@loops.compiled_once("void(int64, int64, int64, int64, boolean, int64)", error_model="numpy")
def pack_block(addresses: int, offset: int, num_keys: int, size: int, is_values: bool, to: int) -> None:
    """Pack a block's keys or values, `size` bfloat16s that lie `offset` bytes behind each of BLOCK addresses.

    The first `num_keys` count, the next may be read. Packed keys are [size / 2, BLOCK] pairs, packed values
    [BLOCK / 2, size].
    """
    addresses_L = carray(_ints(addresses), (BLOCK,))
    if is_values:
        for key in range(0, num_keys, 2):
            first, second = addresses_L[key] + offset, addresses_L[key + 1] + offset
            at = to + 2 * size * key
            d = 0
            while d + 32 <= size:
                _pack_32_channels(first + 2 * d, second + 2 * d, at + 4 * d)
                d += 32
            if d < size:
                _pack_16_channels(first + 2 * d, second + 2 * d, at + 4 * d)
        return
    for key in range(0, num_keys, 16):
        d = 0
        while d + 32 <= size:
            _pack_16_pairs(addresses + 8 * key, offset + 2 * d, to + 4 * key + _PAIR_BYTES // 2 * d)
            d += 32
        if d < size:
            _pack_8_pairs(addresses + 8 * key, offset + 2 * d, to + 4 * key + _PAIR_BYTES // 2 * d)


@intrinsic  # type: ignore[untyped-decorator]
def _fetch(_: Any, address: Any) -> Any:
    """Fetch the cache line of an address to the second cache. For compiled loops."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        FloatBuilder(builder).fetch(args[0])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@loops.compiled_once("void(int64, int64, int64, int64, int64, int64)", error_model="numpy")
def fetch_keys(addresses: int, first: int, end: int, offset: int, num_bytes: int, to_values: int) -> None:
    """Fetch the bytes that lie `offset` behind some keys' addresses, and those `to_values` behind these."""
    addresses_L = carray(_ints(addresses), (BLOCK,))
    for key in range(first, min(end, BLOCK)):
        for byte in range(offset, offset + num_bytes, 64):
            _fetch(addresses_L[key] + byte)
            _fetch(addresses_L[key] + to_values + byte)


@loops.compiled_once(
    f"void({', '.join(['int64'] * 13)}, float32, float32, {', '.join(['int64'] * 5)})",
    error_model="numpy",
)
def attend_block(
    keys: int,
    values: int,
    base: int,
    num_keys: int,
    size: int,
    queries: int,
    sums: int,
    bases: int,
    totals: int,
    begins: int,
    ends: int,
    num_queries: int,
    group: int,
    scale: float,
    cap: float,
    scratch: int,
    coming: int,
    offset: int,
    to_values: int,
    on_tiles: int,
) -> None:
    """Add a packed block's values to the sums of `num_queries` times `group` rows, by the weights of its keys.

    The block has `num_keys` keys from the place `base` on. All arguments but numbers are addresses: of the first row's
    query (`size` bfloat16s a row), sums (`size` float32s), base and total (LANES float32s), of the places that the
    queries see (int64s), of scratch memory for SCORE_ROWS rows of scores and one of sums, and at last `coming`, 0 or
    that of the addresses of a block to fetch: keys `offset` bytes behind those, values `to_values` behind keys.
    `on_tiles` is 1 if products go by tile registers; `size` is a multiple of `tiles.CHANNELS` then.
    """
    begins_Q, ends_Q = carray(_ints(begins), (num_queries,)), carray(_ints(ends), (num_queries,))
    num_rows, spare = num_queries * group, scratch + ROWS * ROW_BYTES
    fetched = -(-BLOCK // num_rows)  # keys with each row
    query = left_of_query = 0  # the row's query, and its rows that are left
    begin = end = row = 0
    state, configured = local_state(), 0
    if on_tiles:
        tiles.clear_values(values, size, num_keys)
    while row < num_rows:
        left = num_rows - row
        count = tiles.ROWS if on_tiles else 2 if left <= 2 else 4 if left in (3, 4, 7, 8) else 6
        real = min(left, count)
        q = queries + 2 * size * row
        if on_tiles:
            if real != configured:
                tiles.begin(state, real)
                configured = real
            tiles.score(state, real, q, size, keys, scale, scratch)
        elif count == 6:
            _score_6(q, 2 * size, keys, size // 2, scale, scratch)
        elif count == 4:
            _score_4(q, 2 * size, keys, size // 2, scale, scratch)
        else:
            _score_2(q, 2 * size, keys, size // 2, scale, scratch)
        last = 0  # of the keys that the rows see
        for r in range(real):
            if left_of_query == 0:
                begin = min(max(begins_Q[query] - base, 0), BLOCK)
                end = min(max(ends_Q[query] - base, 0), BLOCK)
                query, left_of_query = query + 1, group
            left_of_query -= 1
            last = max(last, min(end, num_keys))
            scores = scratch + ROW_BYTES * r
            if begin > 0 or end < BLOCK or cap > 0:
                mask_scores(scores, begin, end, cap)
            at = row + r
            if coming != 0:  # with each row some: the processor drops fetches when many are under way
                fetch_keys(coming, at * fetched, (at + 1) * fetched, offset, 2 * size, to_values)
            _weigh_scores(scores, bases + 4 * at, totals + TOTAL_BYTES * at, sums + 4 * size * at, size)
        pairs = max((last + 1) // 2, 1)
        d, to = 0, sums + 4 * size * row
        if on_tiles:
            tiles.weigh(state, last, scratch, values, size, to)
            d = size
        while d < size:
            v, at, rest = values + 4 * d, to + 4 * d, d + 4 * LANES > size
            if count == 6 and rest:
                _weigh_6_rest(scratch, v, 4 * size, pairs, at, 4 * size, real, spare)
            elif count == 6:
                _weigh_6(scratch, v, 4 * size, pairs, at, 4 * size, real, spare)
            elif count == 4 and rest:
                _weigh_4_rest(scratch, v, 4 * size, pairs, at, 4 * size, real, spare)
            elif count == 4:
                _weigh_4(scratch, v, 4 * size, pairs, at, 4 * size, real, spare)
            elif rest:
                _weigh_2_rest(scratch, v, 4 * size, pairs, at, 4 * size, real, spare)
            else:
                _weigh_2(scratch, v, 4 * size, pairs, at, 4 * size, real, spare)
            d += LANES if rest else 4 * LANES
        row += count
    if on_tiles:
        tiles.end(state)
