"""Products of weights of codes with int8 rows by tile registers (`amx`), a block of a panel at a time.

The block is unpacked first, once for all rows. A group's sums are exact in int32, by tiles or by dot products
(`tile_kernels`), and both scale and add them by the same operations in the same order. So a row has the same bits among
any number of rows, on any processor.

An unpacked group has signed codes, step by step of 4 inputs, 4 bytes for each output of the panel. Behind them are the
float32 scales of all outputs, a second set where half the inputs have one of their own, and the bases likewise. Codes
that share a scale are summed by themselves.

Each output needs some numbers of a row: its scale of a group, and its sums of codes that share a base. They are put
side by side for the 16 rows of a tile, as floats.

Legend: T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic, register_jitable

from .... import loops
from ..instructions import HOST
from ..pointers import pointer_to, stack_memory
from .amx import (
    PANEL_BYTES,
    STEP_BYTES,
    SUMS,
    TILE_BYTES,
    TILE_HEIGHT,
    compute_nothing,
    configure_bytes,
    copy_floats,
    local_state,
    release,
)
from .block_formats import GROUP
from .tile import F32, I8, I32, I64, Tile, load_half

MIN_ROWS = 32  # of a product by tiles: dot products take as long for fewer
MOST_ROWS = 256
BLOCK_INPUTS = 2048
KERNELS = ((1, 0), (1, 1), (2, 0), (2, 2))  # by the scales and bases of a GROUP
_OTHER_GROUPS = len(KERNELS)  # kernels from here on are the first two, for groups of any size
_WIDTH = HOST.width
_GATHERED = 16  # groups whose numbers are put side by side at once
_SUMS_BYTES = TILE_HEIGHT * PANEL_BYTES
_floats = pointer_to(types.float32)


def numbers_bytes(num_bases: int) -> int:
    """Return the bytes of the numbers of MOST_ROWS rows for the groups of a block."""
    return MOST_ROWS * BLOCK_INPUTS // GROUP * 4 * (1 + num_bases)


def group_codes(tile: Tile, planes: Sequence[int], words: Any, step: int, vector: int) -> Any:
    """Put the codes of four inputs of a group together from their planes of bits at `words`, a byte each."""
    b, width = tile.b, tile.instructions.width
    result, shift, at = None, 0, 0
    for bits in planes:
        index, place = divmod(step * bits, 8)
        value = tile.load(words, I64(4 * ((at + index) * width + vector * tile.lanes)), tile.ints, 4)
        if place > shift:
            value = b.lshr(value, tile.constant(place - shift))
        elif place < shift:
            value = b.shl(value, tile.constant(shift - place))
        mask = ((1 << bits) - 1 << shift) * 0x01010101
        value = b.and_(value, tile.constant(mask - (1 << 32) if mask >> 31 else mask))
        result = value if result is None else b.or_(result, value)
        shift, at = shift + bits, at + bits
    return result


def write_codes(tile: Tile, codes: Callable[[int, int], Any], offset: int, to: Any) -> None:
    """Emit code that writes the codes of a GROUP less their offset; `codes(step, vector)` are those of four inputs."""
    middle = ir.Constant(tile.bytes, [offset % 256] * tile.bytes.count)
    for step in range(GROUP // 4):
        for vector in range(tile.num_vectors):
            value = codes(step, vector)
            if offset:
                value = tile.b.bitcast(tile.b.sub(tile.b.bitcast(value, tile.bytes), middle), tile.ints)
            tile.store(value, to, I64(4 * (step * tile.instructions.width + vector * tile.lanes)))


def write_numbers(tile: Tile, numbers: Sequence[Sequence[Any]], to: Any) -> None:
    """Emit code that writes scales and bases, by vector, one of each output at a time."""
    for index, values in enumerate(numbers):
        for vector, value in enumerate(values):
            tile.store(value, to, I64(4 * (index * tile.instructions.width + vector * tile.lanes)))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack(
    _: Any, bits: Any, by_group: Any, codes: Any, scales: Any, bases: Any, group: Any, begin: Any, end: Any, to: Any
) -> Any:
    """Unpack the groups [begin, end) of a panel of 4-bit or 8-bit codes (`packed_matrix`), given by addresses.

    Scales are 1 unless there are some `by_group`.
    """
    if not (isinstance(bits, types.IntegerLiteral) and isinstance(by_group, types.IntegerLiteral)):
        return None
    size, has_scales, has_bases = bits.literal_value, by_group.literal_value, bits.literal_value == 4

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        _, _, codes, scales, bases, group, begin, end, to = arguments
        tile, b = Tile(builder, HOST, 1, 1), builder
        vectors, pieces = range(tile.num_vectors), b.sdiv(group, I64(GROUP))
        group_bytes = b.add(b.mul(group, I64(_WIDTH)), I64(PANEL_BYTES * (2 if has_bases else 1)))
        one = ir.Constant(tile.floats, [1.0] * tile.lanes)

        def halves(address: Any, index: Any) -> list[Any]:
            first = b.mul(index, I64(2 * _WIDTH))
            return [
                load_half(tile, tile.pointer(address), b.add(first, I64(2 * tile.lanes * vector))) for vector in vectors
            ]

        def unpacked(index: Any, _: list[Any]) -> list[Any]:
            own = b.add(to, b.mul(b.sub(index, begin), group_bytes))

            def piece(number: Any, _: list[Any]) -> list[Any]:
                place = b.mul(b.add(b.mul(index, pieces), number), I64(GROUP * _WIDTH * size // 8))
                read = partial(group_codes, tile, (size,), tile.pointer(b.add(codes, place)))
                target = tile.pointer(b.add(own, b.mul(number, I64(GROUP * _WIDTH))))
                write_codes(tile, read, 1 << (size - 1), target)
                return []

            tile.loop(I64(0), pieces, [], piece)
            numbers = [halves(b.add(scales, I64(4 * _WIDTH)), index) if has_scales else [one] * tile.num_vectors]
            if has_bases:
                numbers.append(halves(bases, index))
            write_numbers(tile, numbers, tile.pointer(b.add(own, b.mul(group, I64(_WIDTH)))))
            return []

        tile.loop(begin, end, [], unpacked)
        return context.get_dummy_value()

    return types.void(bits, by_group, *[types.int64] * 7), generate


def _transposed(tile: Tile, rows: list[Any]) -> list[Any]:
    """Return the columns of 16 vectors of 16 lanes, as vectors."""
    count = len(rows)
    half = count // 2
    while half:  # lanes and vectors change places, a bit of their numbers at a time
        low = [lane if not lane & half else count + lane - half for lane in range(count)]
        high = [lane + half if not lane & half else count + lane for lane in range(count)]
        new = list(rows)
        for place in range(count):
            if not place & half:
                one, other = rows[place], rows[place + half]
                for order, to in ((low, place), (high, place + half)):
                    new[to] = tile.b.shuffle_vector(one, other, ir.Constant(tile.ints, order))
        rows, half = new, half // 2
    return rows


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _gather(_: Any, num_bases: Any, rows: Any, x: Any, x_bytes: Any, groups: Any, count: Any, to: Any) -> Any:
    """Put the numbers of up to 16 rows and `count` groups side by side, and zeros for groups that make them a multiple
    of 16. Those of rows that are not there are any.

    `x` is the address of the first row's scale of the first of these groups. The int32 sum of its codes is `groups`
    numbers behind, and that of its first half as far behind this one.
    """
    if not isinstance(num_bases, types.IntegerLiteral):
        return None
    bases = num_bases.literal_value

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        _, rows, x, x_bytes, groups, count, to = arguments
        tile, b = Tile(builder, HOST, 1, 1), builder
        last, apart = b.sub(rows, I64(1)), b.mul(groups, I64(4))

        def some(index: Any, _: list[Any]) -> list[Any]:
            first = b.mul(index, I64(_GATHERED))
            lanes = ir.Constant(tile.ints, list(range(tile.lanes)))
            mask = b.icmp_signed("<", lanes, tile.broadcast(b.trunc(b.sub(count, first), I32)))
            begin = b.add(x, b.mul(first, I64(4)))
            own = []
            for row in range(TILE_HEIGHT):
                number = b.select(b.icmp_signed("<", I64(row), rows), I64(row), last)
                own.append(b.add(begin, b.mul(number, x_bytes)))

            def numbers(place: int) -> list[Any]:
                found = []
                for address in own:
                    at = tile.pointer(b.add(address, b.mul(apart, I64(place))), tile.ints)
                    name = f"llvm.masked.load.v{tile.lanes}i32.p0v{tile.lanes}i32"
                    found.append(tile.call(name, tile.ints, at, I32(4), mask, tile.constant(0)))
                return found

            sets = [numbers(0)]  # scales, whose bits are moved
            if bases:
                wholes = numbers(1)
                parts = [numbers(2)] if bases == 2 else [wholes]
                if bases == 2:
                    parts.append([b.sub(whole, part) for whole, part in zip(wholes, parts[0], strict=True)])
                sets += [[b.bitcast(b.sitofp(v, tile.floats), tile.ints) for v in values] for values in parts]
            target = b.add(to, b.mul(first, I64(64 * len(sets))))
            for place, values in enumerate(sets):
                for group, value in enumerate(_transposed(tile, values)):
                    tile.store(value, tile.pointer(target), I64(64 * (group * len(sets) + place)))
            return []

        times = b.sdiv(b.add(count, I64(_GATHERED - 1)), I64(_GATHERED))
        tile.loop(I64(0), times, [], some)
        return context.get_dummy_value()

    return types.void(num_bases, *[types.int64] * 6), generate


class _Kernel:
    """Emitter of the products of up to 16 rows and 16 outputs."""

    def __init__(self, builder: Any, num_scales: int, num_bases: int, is_group: bool, arguments: Sequence[Any]) -> None:
        self.tile, self.b, self.num_scales, self.num_bases = Tile(builder, HOST, 1, 1), builder, num_scales, num_bases
        self.is_group = is_group  # groups have GROUP inputs, which makes addresses constants
        (
            self.state, self.rows, self.groups, self.group, self.piece, self.x, self.x_bytes, self.weights,
            self.numbers, self.sums,
        ) = arguments  # fmt: skip
        if is_group:
            self.group = I64(GROUP)
        self.codes_bytes = builder.mul(self.group, I64(_WIDTH))
        self.part = I64(GROUP // num_scales) if is_group else self.group  # inputs that share a scale

    def emit(self) -> None:
        """Emit a loop over pairs of groups: a group's codes are multiplied while the sums of the one before are scaled.

        Of an odd number of groups, the last one comes twice, with scales of 0 at last.
        """
        tile, b = self.tile, self.b
        sums = tile.pointer(self.sums)
        offsets = [I64(PANEL_BYTES * row) for row in range(TILE_HEIGHT)]
        totals = [tile.load(sums, offset, tile.floats, 4) for offset in offsets]
        last = b.sub(self.groups, I64(1))

        def or_last(index: Any) -> Any:
            return b.select(b.icmp_signed("<", index, last), index, last)

        def pair(index: Any, totals: list[Any]) -> list[Any]:
            for slot in range(2):
                here = b.add(b.mul(index, I64(2)), I64(slot))
                self.multiply(or_last(b.add(here, I64(1))), 1 - slot)
                totals = self.scaled(here, or_last(here), slot, totals)
            return totals

        self.multiply(I64(0), 0)
        totals = tile.loop(I64(0), b.sdiv(b.add(self.groups, I64(1)), I64(2)), totals, pair)
        for offset, total in zip(offsets, totals, strict=True):
            tile.store(total, sums, offset)

    def weights_of(self, group: Any) -> Any:
        record_bytes = self.b.add(self.codes_bytes, I64(PANEL_BYTES * (self.num_scales + self.num_bases)))
        return self.b.add(self.weights, self.b.mul(group, record_bytes))

    def found(self, slot: int, number: int) -> Any:
        place = SUMS + TILE_BYTES * (slot * self.num_scales + number)
        return self.tile.pointer(self.b.add(self.state, I64(place)))

    def scaled(self, index: Any, group: Any, slot: int, totals: list[Any]) -> list[Any]:
        """Add a group's sums of products, which lie in `slot`, to the totals. `index` is that of the rows' numbers."""
        tile, b = self.tile, self.b
        numbers = tile.pointer(b.add(self.numbers, b.mul(index, I64(64 * (1 + self.num_bases)))))
        factors = tile.pointer(b.add(self.weights_of(group), self.codes_bytes))
        loaded = [
            tile.load(factors, I64(PANEL_BYTES * number), tile.floats, 4)
            for number in range(self.num_scales + self.num_bases)
        ]
        new = []
        for row, total in enumerate(totals):
            own = [
                tile.broadcast(tile.load(numbers, I64(64 * number + 4 * row), F32, 4))
                for number in range(1 + self.num_bases)
            ]
            product = None
            for number, scale in enumerate(loaded[: self.num_scales]):
                codes = tile.load(self.found(slot, number), I64(STEP_BYTES * row), tile.ints, 4)
                value = b.sitofp(codes, tile.floats)
                product = b.fmul(value, scale) if product is None else tile.fused(value, scale, product)
            for number, base in zip(own[1:], loaded[self.num_scales :], strict=True):
                product = tile.fused(number, base, product)
            new.append(tile.fused(product, own[0], total))
        return new

    def multiply(self, group: Any, slot: int) -> None:
        """Write a group's sums of products of codes to `slot`, those that share a scale by themselves."""
        tile, b = self.tile, self.b
        for number in range(self.num_scales):
            first = b.mul(self.part, I64(number))
            x = b.add(b.add(self.x, b.mul(group, self.group)), first)
            weights = b.add(self.weights_of(group), b.mul(first, I64(_WIDTH)))
            found, own = self.found(slot, number), I8(slot * self.num_scales + number)
            if HOST.emulated:
                for row, value in enumerate(self.emulated_dots(x, weights)):
                    tile.store(value, found, I64(STEP_BYTES * row))
                continue
            self.instruction("tilezero", own)

            def piece(index: Any, _: list[Any], x: Any = x, weights: Any = weights, own: Any = own) -> list[Any]:
                place = b.mul(index, self.piece)
                self.instruction("tileloadd64", I8(4), tile.pointer(b.add(x, place)), self.x_bytes)
                at = tile.pointer(b.add(weights, b.mul(place, I64(_WIDTH))))
                self.instruction("tileloadd64", I8(6), at, I64(PANEL_BYTES))
                self.instruction("tdpbssd", own, I8(4), I8(6))
                return []

            if self.is_group:
                piece(I64(0), [])
            else:
                tile.loop(I64(0), b.sdiv(self.part, self.piece), [], piece)
            self.instruction("tilestored64", own, found, I64(STEP_BYTES))

    def emulated_dots(self, x: Any, weights: Any) -> list[Any]:
        """Return what tiles would have, row by row, in plain arithmetic."""
        tile, b = self.tile, self.b
        last = b.sub(self.rows, I64(1))
        numbers = [b.select(b.icmp_signed("<", I64(row), self.rows), I64(row), last) for row in range(TILE_HEIGHT)]

        def signed(value: Any, place: int) -> Any:
            return b.ashr(b.shl(value, tile.constant(24 - 8 * place)), tile.constant(24))

        def step(index: Any, totals: list[Any]) -> list[Any]:
            w = tile.load(tile.pointer(weights), b.mul(index, I64(PANEL_BYTES)), tile.ints, 4)
            new = []
            for number, total in zip(numbers, totals, strict=True):
                at = b.add(b.mul(number, self.x_bytes), b.mul(index, I64(4)))
                own = tile.broadcast(tile.load(tile.pointer(x), at, I32, 4))
                for place in range(4):
                    total = b.add(total, b.mul(signed(w, place), signed(own, place)))
                new.append(total)
            return new

        return tile.loop(I64(0), b.sdiv(self.part, I64(4)), [tile.constant(0)] * TILE_HEIGHT, step)

    def instruction(self, name: str, *operands: Any) -> None:
        self.tile.call(f"llvm.x86.{name}", ir.VoidType(), *operands)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _add_tile(
    _: Any,
    kernel: Any,
    state: Any,
    rows: Any,
    groups: Any,
    group: Any,
    piece: Any,
    x: Any,
    x_bytes: Any,
    weights: Any,
    numbers: Any,
    sums: Any,
) -> Any:
    """Add the products of up to 16 rows and 16 outputs of unpacked groups to `sums`, PANEL_BYTES a row, by a kernel.

    Instructions take `piece` inputs at a time; `numbers` are as `_gather` writes them.
    """
    if not isinstance(kernel, types.IntegerLiteral):
        return None
    place, is_group = kernel.literal_value % _OTHER_GROUPS, kernel.literal_value < _OTHER_GROUPS

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        _Kernel(builder, *KERNELS[place], is_group, arguments[1:]).emit()
        return context.get_dummy_value()

    return types.void(kernel, *[types.int64] * 10), generate


@register_jitable  # type: ignore[untyped-decorator]
def _block_bytes(num_bases: int, count: int) -> int:
    """Return the bytes of the numbers of 16 rows and `count` groups."""
    return -(-count // _GATHERED) * _GATHERED * 64 * (1 + num_bases)


def _gather_numbers(
    T: int, num_bases: int, x: int, x_bytes: int, group: int, groups: int, begin: int, end: int, to: int
) -> None:
    """Put the numbers of T rounded rows and the groups [begin, end) side by side, for `add_unpacked`."""
    for row in range(0, T, TILE_HEIGHT):
        rows, place = min(TILE_HEIGHT, T - row), x + row * x_bytes + groups * group + 4 * begin
        target, count = to + row // TILE_HEIGHT * _block_bytes(num_bases, end - begin), end - begin
        if num_bases == 0:
            _gather(0, rows, place, x_bytes, groups, count, target)
        elif num_bases == 1:
            _gather(1, rows, place, x_bytes, groups, count, target)
        else:
            _gather(2, rows, place, x_bytes, groups, count, target)


def _add_unpacked(
    T: int,
    kernel: int,
    group: int,
    groups: int,
    begin: int,
    end: int,
    weights: int,
    numbers: int,
    factors: int,
    bias: int,
    x: int,
    x_bytes: int,
    y: int,
    y_bytes: int,
    width: int,
) -> None:
    """Add the products of T rounded rows and the unpacked groups [begin, end) of a panel to `width` outputs in y.

    At group 0 y begins with the bias; with `factors`, an address, it begins with 0, and after the last group sums are
    multiplied by the factors of their outputs and the bias is added. `numbers` come from `gather_numbers`.
    """
    state, sums = local_state(), stack_memory(_SUMS_BYTES)
    num_bases = 0 if kernel % 2 == 0 else 2 if kernel == 3 else 1
    part, configured = group // 2 if kernel in (2, 3) else group, 0
    piece = STEP_BYTES if part % STEP_BYTES == 0 else min(part, GROUP)
    bias_W, factors_W = carray(_floats(bias), (_WIDTH,)), carray(_floats(factors), (_WIDTH,))
    for row in range(0, T, TILE_HEIGHT):
        rows, to = min(TILE_HEIGHT, T - row), y + row * y_bytes
        if rows != configured:
            configure_bytes(state, rows, piece)
            configured = rows
        for r in range(rows):
            own_W = carray(_floats(sums + r * PANEL_BYTES), (_WIDTH,))
            if begin > 0:
                copy_floats(to + r * y_bytes, sums + r * PANEL_BYTES, width)
            else:
                for n in range(_WIDTH):
                    own_W[n] = np.float32(0) if factors != 0 else bias_W[n]
        inputs, own_numbers = x + row * x_bytes + begin * group, numbers
        own_numbers += row // TILE_HEIGHT * _block_bytes(num_bases, end - begin)
        for column in range(0, 4 * width, STEP_BYTES):
            own, found = weights + column, sums + column
            if kernel == 0:
                _add_tile(0, state, rows, end - begin, group, piece, inputs, x_bytes, own, own_numbers, found)
            elif kernel == 1:
                _add_tile(1, state, rows, end - begin, group, piece, inputs, x_bytes, own, own_numbers, found)
            elif kernel == 2:
                _add_tile(2, state, rows, end - begin, group, piece, inputs, x_bytes, own, own_numbers, found)
            elif kernel == 3:
                _add_tile(3, state, rows, end - begin, group, piece, inputs, x_bytes, own, own_numbers, found)
            elif kernel == 4:
                _add_tile(4, state, rows, end - begin, group, piece, inputs, x_bytes, own, own_numbers, found)
            else:
                _add_tile(5, state, rows, end - begin, group, piece, inputs, x_bytes, own, own_numbers, found)
        for r in range(rows):
            if factors != 0 and end == groups:
                own_W = carray(_floats(sums + r * PANEL_BYTES), (_WIDTH,))
                for n in range(_WIDTH):
                    own_W[n] = own_W[n] * factors_W[n] + bias_W[n]  # not fused: this file's loops fuse nothing
            copy_floats(sums + r * PANEL_BYTES, to + r * y_bytes, width)
    release(state)


def _compiled(function: Any, num_arguments: int) -> Any:
    """Compile a loop once for all that call it; without tiles none does."""
    if not HOST.tiles:
        return compute_nothing
    return loops.compiled_once(f"void({', '.join(['int64'] * num_arguments)})", error_model="numpy")(function)


gather_numbers, add_unpacked = _compiled(_gather_numbers, 9), _compiled(_add_unpacked, 15)
_UNPACKED_BYTES = BLOCK_INPUTS * _WIDTH + BLOCK_INPUTS // GROUP * 2 * PANEL_BYTES
_NUMBERS_BYTES = numbers_bytes(1)


def _multiply_codes(
    bits: int,
    by_group: int,
    panels: int,
    C: int,
    group: int,
    codes: int,
    panel_bytes: int,
    scales: int,
    scale_bytes: int,
    bases: int,
    base_bytes: int,
    bias: int,
    x: int,
    x_bytes: int,
    T: int,
    y: int,
    y_bytes: int,
    outputs: int,
) -> None:
    """Write the products of T rounded rows and panels of 4-bit or 8-bit codes, whose addresses are those of the first
    one's. Groups have BLOCK_INPUTS or fewer."""
    unpacked, numbers = stack_memory(_UNPACKED_BYTES), stack_memory(_NUMBERS_BYTES)
    groups, count, num_bases = (C + group - 1) // group, BLOCK_INPUTS // group, 1 if bits == 4 else 0
    kernel = num_bases + (0 if group == GROUP else _OTHER_GROUPS)
    for first_row in range(0, T, MOST_ROWS):
        rows, own_x = min(MOST_ROWS, T - first_row), x + first_row * x_bytes
        for begin in range(0, groups, count):
            end = min(begin + count, groups)
            gather_numbers(rows, num_bases, own_x, x_bytes, group, groups, begin, end, numbers)
            for panel in range(panels):
                own, factors = codes + panel * panel_bytes, scales + panel * scale_bytes
                own_bases = bases + panel * base_bytes
                if bits == 4:
                    _unpack(4, 1, own, factors, own_bases, group, begin, end, unpacked)
                elif by_group > 0:
                    _unpack(8, 1, own, factors, own_bases, group, begin, end, unpacked)
                else:
                    _unpack(8, 0, own, factors, own_bases, group, begin, end, unpacked)
                add_unpacked(
                    rows, kernel, group, groups, begin, end, unpacked, numbers, factors, bias + panel * PANEL_BYTES,
                    own_x, x_bytes, y + first_row * y_bytes + panel * PANEL_BYTES, y_bytes,
                    min(_WIDTH, outputs - panel * _WIDTH),
                )  # fmt: skip


multiply_codes = _compiled(_multiply_codes, 18)
