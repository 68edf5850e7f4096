"""Packing of codes of keys and values for the products of `pairs`: sixteen-bit integers, two in each 32-bit lane.

Codes come in segments of at most SEGMENT channels that have one scale and lie together, filled up to a multiple of
CHUNK channels. Of packed keys a lane is a key: vectors hold a pair of channels of each. Of packed values a lane is a
channel: vectors hold a channel's numbers of a pair of keys.

Codes are brought to the lanes as bytes, four to a lane, and widened there: bytes 0 and 2 of a lane are a pair, 1 and 3
the next one. So of four channels the pairs are the first and third, the second and fourth (`channel_of_word`).

Legend: BLOCK keys of a block, Z channels of all segments with what fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from ...reference.scaled_codes import GROUP
from ..compiled import compiled_in_order
from ..instructions import HOST
from ..pointers import pointer_to
from ..products.tile import FLOATS, I8, I16, I32, I64, FloatBuilder
from .inner import BLOCK, E4M3_CODES, FOUR_BITS, INT8

LANES = HOST.lanes
SEGMENT = GROUP
CHUNK = 16  # bytes of codes that are read at once: channels, twice as many of four bits
PAIR_BYTES = 4 * BLOCK  # from a packed pair of channels to the next
VALUE_PAIRS = 2  # pairs of values that are packed and multiplied together
# Numbers of a segment: its codes' place (bytes) and half of a byte, first channel, number of channels, the place of its
# scale, that of its first channel among Z, and behind its last.
CODES, HALF, CHANNEL, CHANNELS, SCALE, FIRST, END, SEGMENT_FIELDS = range(8)

SCALE_BYTES = 2  # of a key or value of bytes, before its codes
E4M3_UNIT = 16  # widened e4m3 codes are this times their number, towards 0
LEVEL_UNIT = 1024  # widened levels are this times the level

_ints = pointer_to(types.int64)
_QUAD, _BYTES = ir.VectorType(I32, 4), ir.VectorType(I8, CHUNK)
_LANE_INTS, _WORDS = ir.VectorType(I32, LANES), ir.VectorType(I16, 2 * LANES)
# Whether an instruction looks up each byte in a table of sixteen.
_HAS_TABLES = HOST.byte_dot != "plain" and not HOST.emulated

# 1024 (c + c^3 / 128), c = code - 7.5, in whole numbers: of 2 c.
_LEVELS = [(2 * code - 15) * ((2 * code - 15) ** 2 + 512) for code in range(16)]
_E4M3_SIZES = [
    int((8 + (code & 7) if code >> 3 else code & 7) * 2.0 ** (max(code >> 3, 1) - 10) * E4M3_UNIT)
    for code in range(128)
]
_POWERS = [0, *(1 << exponent for exponent in range(15))]  # of e4m3's exponents; 0: subnormal numbers are below 1


class _Lanes:
    """Widens codes in the lanes of vectors."""

    def __init__(self, b: FloatBuilder) -> None:
        self.b, self.ir = b, b.ir

    def constant(self, number: int, kind: Any = _WORDS) -> Any:
        return ir.Constant(kind, [number] * kind.count)

    def looked_up(self, numbers: Sequence[int], index: Any) -> tuple[Any, Any]:
        """Return pairs of sixteen-bit numbers by the bytes of `index`, <LANES x i32>: of 16 numbers for bytes below 16,
        of 128 by seven bits."""
        kind = ir.VectorType(I8, 4 * LANES)
        bytes_ = self.ir.bitcast(index, kind)

        def table(numbers: Sequence[int], up: int) -> Any:
            return ir.Constant(kind, [number >> up & 255 for number in numbers] * (4 * LANES // len(numbers)))

        found = []
        for up in (0, 8):
            if len(numbers) == 16:
                name = "llvm.x86.avx2.pshuf.b" if LANES == 8 else "llvm.x86.avx512.pshuf.b.512"
                one = self.b.function(name, table(numbers, up), bytes_)
            else:
                first, second = table(numbers[:64], up), table(numbers[64:], up)
                one = self.b.function("llvm.x86.avx512.vpermi2var.qi.512", first, bytes_, second)
            found.append(self.ir.bitcast(one, _WORDS))
        low, high = found
        byte = self.constant(255)
        first = self.ir.or_(self.ir.and_(low, byte), self.ir.shl(high, self.constant(8)))
        second = self.ir.or_(self.ir.lshr(low, self.constant(8)), self.ir.and_(high, self.constant(255 << 8)))
        return first, second

    def levels(self, codes: Any, half: int) -> tuple[Any, Any]:
        own = self.ir.lshr(codes, self.constant(4, _LANE_INTS)) if half else codes
        own = self.ir.and_(own, self.constant(0x0F0F0F0F, _LANE_INTS))
        if _HAS_TABLES:
            return self.looked_up(_LEVELS, own)
        words, found = self.ir.bitcast(own, _WORDS), []
        for code in (self.ir.and_(words, self.constant(255)), self.ir.lshr(words, self.constant(8))):
            c = self.ir.sub(self.ir.add(code, code), self.constant(15))
            found.append(self.ir.mul(c, self.ir.add(self.ir.mul(c, c), self.constant(512))))
        return found[0], found[1]

    def e4m3(self, codes: Any) -> tuple[Any, Any]:
        if not _HAS_TABLES:
            return self.e4m3_by_floats(codes)
        words, found = self.ir.bitcast(codes, _WORDS), []
        at_top = self.ir.shl(words, self.constant(8)), words
        if HOST.byte_tables:
            sizes = self.looked_up(_E4M3_SIZES, codes)
        else:
            exponents = self.ir.lshr(codes, self.constant(3, _LANE_INTS))
            powers = self.looked_up(_POWERS, self.ir.and_(exponents, self.constant(0x0F0F0F0F, _LANE_INTS)))
            sizes = self.e4m3_size(at_top[0], powers[0]), self.e4m3_size(at_top[1], powers[1])
        for size, code in zip(sizes, at_top, strict=True):
            sign = self.ir.ashr(code, self.constant(15))
            found.append(self.ir.sub(self.ir.xor(size, sign), sign))
        return found[0], found[1]

    def e4m3_size(self, code: Any, power: Any) -> Any:
        """Return sizes of codes in the upper halves of words, by the powers of their exponents."""
        # The mantissa with its first 1, times 2^11; times the power it is 2^16 times what is wanted.
        mantissa = self.ir.and_(self.ir.shl(code, self.constant(3)), self.constant(7 << 11))
        mantissa, wide = self.ir.or_(mantissa, self.constant(1 << 14)), ir.VectorType(I32, 2 * LANES)
        product = self.ir.mul(self.ir.zext(mantissa, wide), self.ir.zext(power, wide))
        return self.ir.trunc(self.ir.lshr(product, self.constant(16, wide)), _WORDS)

    def e4m3_by_floats(self, codes: Any) -> tuple[Any, Any]:
        found = []
        for up in (24, 16, 8, 0):
            # Exponent and mantissa stand where a float32 has them; subnormal numbers come out right, too.
            at_top = self.ir.shl(codes, self.constant(up, _LANE_INTS))
            bits = self.ir.and_(
                self.ir.ashr(at_top, self.constant(4, _LANE_INTS)), self.constant(-(1 << 31) | 0x7F00000, _LANE_INTS)
            )
            scaled = self.ir.fmul(self.ir.bitcast(bits, FLOATS), self.b.constant(2.0 ** (127 - 7) * E4M3_UNIT))
            found.append(self.ir.fptosi(scaled, _LANE_INTS))
        return self.joined(found[0], found[2]), self.joined(found[1], found[3])

    def joined(self, low: Any, high: Any) -> Any:
        low = self.ir.and_(low, self.constant(0xFFFF, _LANE_INTS))
        return self.ir.bitcast(self.ir.or_(low, self.ir.shl(high, self.constant(16, _LANE_INTS))), _WORDS)

    def widened(self, codes: Any, dtype: int, half: int) -> tuple[Any, Any]:
        """Return four codes a lane, <LANES x i32>, as two pairs a lane, <2 LANES x i16> each. `half` chooses four bits
        of each byte."""
        if dtype == FOUR_BITS:
            return self.levels(codes, half)
        if dtype == E4M3_CODES:
            return self.e4m3(codes)
        words, eight = self.ir.bitcast(codes, _WORDS), self.constant(8)
        return self.ir.ashr(self.ir.shl(words, eight), eight), self.ir.ashr(words, eight)

    def joined_rows(self, rows: Sequence[Any]) -> Any:
        """Return the rows as one vector."""
        rows = list(rows)
        while len(rows) > 1:
            lanes = range(2 * rows[0].type.count)
            rows = [self.b.shuffle(x, y, lanes) for x, y in zip(rows[::2], rows[1::2], strict=True)]
        return rows[0]

    def by_lane(self, keys: Sequence[Any]) -> list[Any]:
        """Return, of LANES keys of four 32-bit numbers, the vectors of their first, second, third, fourth numbers."""
        vectors = [self.joined_rows(keys[first::4]) for first in range(4)]
        fours = range(0, LANES, 4)

        def merged(x: Any, y: Any, places: Sequence[int]) -> Any:
            return self.b.shuffle(x, y, [(at % 4 + four) + LANES * (at // 4) for four in fours for at in places])

        low, high = (0, 4, 1, 5), (2, 6, 3, 7)
        parts = [[merged(vectors[at], vectors[at + 1], places) for at in (0, 2)] for places in (low, high)]
        return [merged(*own, places) for own in parts for places in ((0, 1, 4, 5), (2, 3, 6, 7))]


def _read(b: FloatBuilder, address: Any, kind: Any) -> Any:
    found = b.ir.load(b.ir.inttoptr(address, kind.as_pointer()))
    found.align = 1
    return found


def _pack_keys(dtype: int, half: int) -> Callable[..., None]:
    """Return a function for compiled loops that packs a segment of a block's keys.

    Its arguments are the address of addresses, the offset of the codes from those (bytes), the number of keys (rounded
    up to a multiple of LANES: so many addresses are read), that of chunks, and the address of the packed pairs.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        lanes = _Lanes(b)
        addresses, offset, num_keys, num_chunks, to = args

        def keys(first: Any) -> Sequence[Any]:
            places = b.address(addresses, builder.mul(first, I64(8)))
            rows = [b.address(b.load(b.address(places, 8 * key), I64), offset) for key in range(LANES)]
            target = b.address(to, builder.mul(first, I64(4)))

            def chunks(chunk: Any) -> Sequence[Any]:
                read, written = builder.mul(chunk, I64(CHUNK)), builder.mul(chunk, I64(CHUNK // 2 * PAIR_BYTES))
                codes = lanes.by_lane([_read(b, b.address(row, read), _QUAD) for row in rows])
                pairs = [pair for vector in codes for pair in lanes.widened(vector, dtype, half)]
                for place, pair in enumerate(pairs):
                    b.store(pair, b.address(target, written, place * PAIR_BYTES))
                return ()

            b.loop(num_chunks, 1, (), chunks)
            return ()

        b.loop(num_keys, LANES, (), keys)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def pack(_: Any, addresses: Any, offset: Any, num_keys: Any, num_chunks: Any, to: Any) -> Any:
        return types.void(*[types.int64] * 5), generate

    return pack  # type: ignore[no-any-return]


def _pack_values(dtype: int, half: int) -> Callable[..., None]:
    """Return a function for compiled loops that packs a segment of a block's values.

    Its arguments are the address of addresses, the offset of the codes from those (bytes), the number of pairs of
    values (a multiple of VALUE_PAIRS), that of chunks, the address of the packed channels, and the bytes from a pair to
    the next.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        b = FloatBuilder(builder)
        lanes = _Lanes(b)
        addresses, offset, num_pairs, num_chunks, to, pair_bytes = args

        def pairs(pair: Any) -> Sequence[Any]:
            places = b.address(addresses, builder.mul(pair, I64(16)))
            rows = [b.address(b.load(b.address(places, 8 * key), I64), offset) for key in range(2 * VALUE_PAIRS)]
            target = b.address(to, builder.mul(pair, pair_bytes))

            def chunks(chunk: Any) -> Sequence[Any]:
                read, written = builder.mul(chunk, I64(CHUNK)), builder.mul(chunk, I64(4 * CHUNK))
                codes = [_read(b, b.address(row, read), _BYTES) for row in rows]
                # A lane has the bytes of keys 0, 2, 1 and 3: its pairs are of neighbours.
                turns = [lane for at in range(CHUNK) for lane in (at, CHUNK + at)]
                words = [
                    builder.bitcast(b.shuffle(codes[first], codes[first + 2], turns), ir.VectorType(I16, CHUNK))
                    for first in range(2)
                ]
                quads = builder.bitcast(b.shuffle(*words, turns), ir.VectorType(I32, CHUNK))
                for part in range(0, CHUNK, LANES):
                    own = b.shuffle(quads, quads, range(part, part + LANES))
                    for place, vector in enumerate(lanes.widened(own, dtype, half)):
                        here = b.address(target, written, 4 * part)
                        b.store(vector, b.address(here, pair_bytes) if place else here)
                return ()

            b.loop(num_chunks, 1, (), chunks)
            return ()

        b.loop(num_pairs, VALUE_PAIRS, (), pairs)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def pack(_: Any, addresses: Any, offset: Any, num_pairs: Any, num_chunks: Any, to: Any, pair_bytes: Any) -> Any:
        return types.void(*[types.int64] * 6), generate

    return pack  # type: ignore[no-any-return]


_pack_keys_int8, _pack_keys_e4m3 = _pack_keys(INT8, 0), _pack_keys(E4M3_CODES, 0)
_pack_keys_low, _pack_keys_high = _pack_keys(FOUR_BITS, 0), _pack_keys(FOUR_BITS, 1)
_pack_values_int8, _pack_values_e4m3 = _pack_values(INT8, 0), _pack_values(E4M3_CODES, 0)
_pack_values_low, _pack_values_high = _pack_values(FOUR_BITS, 0), _pack_values(FOUR_BITS, 1)


@compiled_in_order("int64(int64)")
def channel_of_word(word: int) -> int:
    """Return the channel of a packed key's word, both from the segment's first on."""
    return (word & -4) | (word & 1) << 1 | (word >> 1 & 1)


@compiled_in_order("int64(int64, int64, int64)")
def find_segments(dtype: int, D: int, to: int) -> int:
    """Write the segments of a format's codes; return their number."""
    half = D // 2 if dtype == FOUR_BITS else D
    most = D if dtype == INT8 else SEGMENT
    head = -(-D // GROUP) if dtype == FOUR_BITS else SCALE_BYTES
    channel = count = first = 0
    while channel < D:
        end = min(D, channel // most * most + most)
        if channel < half:
            end = min(end, half)
        words = carray(_ints(to + 8 * SEGMENT_FIELDS * count), (SEGMENT_FIELDS,))
        words[HALF] = channel >= half
        words[CODES] = head + channel - (half if channel >= half else 0)
        words[CHANNEL], words[CHANNELS] = channel, end - channel
        words[SCALE] = channel // GROUP if dtype == FOUR_BITS else 0
        words[FIRST] = first
        first += -(-(end - channel) // CHUNK) * CHUNK
        words[END] = first
        channel, count = end, count + 1
    return count


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64)")
def pack_keys(dtype: int, addresses: int, offset: int, num: int, segments: int, count: int, to: int) -> None:
    """Pack a block's keys, whose codes lie `offset` bytes behind BLOCK addresses."""
    padded = -(-num // LANES) * LANES
    for index in range(count):
        words = carray(_ints(segments + 8 * SEGMENT_FIELDS * index), (SEGMENT_FIELDS,))
        place, chunks = offset + words[CODES], (words[END] - words[FIRST]) // CHUNK
        target = to + PAIR_BYTES // 2 * words[FIRST]
        if dtype == INT8:
            _pack_keys_int8(addresses, place, padded, chunks, target)
        elif dtype == E4M3_CODES:
            _pack_keys_e4m3(addresses, place, padded, chunks, target)
        elif words[HALF] == 0:
            _pack_keys_low(addresses, place, padded, chunks, target)
        else:
            _pack_keys_high(addresses, place, padded, chunks, target)


@compiled_in_order("int64(int64)")
def num_pairs_of(num: int) -> int:
    """Return how many pairs of values are packed and multiplied; those behind `num` have no weight."""
    return -(-num // (2 * VALUE_PAIRS)) * VALUE_PAIRS


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64)")
def pack_values(dtype: int, addresses: int, offset: int, num: int, segments: int, count: int, to: int) -> None:
    """Pack a block's values, whose codes lie `offset` bytes behind BLOCK addresses."""
    pair_bytes = 4 * carray(_ints(segments), (count, SEGMENT_FIELDS))[count - 1, END]
    for index in range(count):
        words = carray(_ints(segments + 8 * SEGMENT_FIELDS * index), (SEGMENT_FIELDS,))
        place, chunks = offset + words[CODES], (words[END] - words[FIRST]) // CHUNK
        pairs, target = num_pairs_of(num), to + 4 * words[FIRST]
        if dtype == INT8:
            _pack_values_int8(addresses, place, pairs, chunks, target, pair_bytes)
        elif dtype == E4M3_CODES:
            _pack_values_e4m3(addresses, place, pairs, chunks, target, pair_bytes)
        elif words[HALF] == 0:
            _pack_values_low(addresses, place, pairs, chunks, target, pair_bytes)
        else:
            _pack_values_high(addresses, place, pairs, chunks, target, pair_bytes)
