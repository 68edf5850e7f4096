"""Products of weights of codes with int8 rows by tile registers (`amx`), a block of a panel at a time, once unpacked.

A group's sums are exact in int32, by tiles or by dot products (`tile_kernels`), and both scale and add them by the same
operations in the same order. So a row has the same bits among any number of rows, on any processor. Codes that share a
scale are summed by themselves.

Each output needs some numbers of a row: its scale of a group, and its sums of codes that share a base. They are put
side by side for the 16 rows of a tile, as floats.

Legend: T rows.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from .tile import F32, I8, I32, I64, Tile, emit_choice
from .unpacked import BLOCK_INPUTS, KINDS

MIN_ROWS = 32  # of a product by tiles: dot products take as long for fewer
MOST_ROWS = 256  # that meet an unpacked block together
_WIDTH = HOST.width
_GATHERED = 16  # groups whose numbers are put side by side at once
_SUMS_BYTES = TILE_HEIGHT * PANEL_BYTES
_floats = pointer_to(types.float32)


def numbers_bytes(num_bases: int) -> int:
    """Return the bytes of the numbers of MOST_ROWS rows for the groups of a block."""
    return MOST_ROWS * BLOCK_INPUTS // GROUP * 4 * (1 + num_bases)


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
            self.numbers, self.before, self.before_bytes, self.y, self.y_bytes, self.factors, self.bias,
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
        places = [b.add(self.before, b.mul(self.before_bytes, I64(row))) for row in range(TILE_HEIGHT)]
        totals = [tile.load(tile.pointer(place), I64(0), tile.floats, 4) for place in places]
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
        rows = [tile.pointer(b.add(self.y, b.mul(self.y_bytes, I64(row)))) for row in range(TILE_HEIGHT)]
        with b.if_else(b.icmp_signed("==", self.factors, I64(0))) as (as_they_are, scaled):
            with as_they_are:
                for row, total in zip(rows, totals, strict=True):
                    tile.store(total, row, I64(0))
            with scaled:
                factor, bias = (
                    tile.load(tile.pointer(place), I64(0), tile.floats, 4) for place in (self.factors, self.bias)
                )
                for row, total in zip(rows, totals, strict=True):
                    tile.store(b.fadd(b.fmul(total, factor), bias), row, I64(0))

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


@intrinsic  # type: ignore[untyped-decorator]
def _run(
    _: Any,
    kind: Any,
    state: Any,
    rows: Any,
    groups: Any,
    group: Any,
    piece: Any,
    x: Any,
    x_bytes: Any,
    weights: Any,
    numbers: Any,
    before: Any,
    before_bytes: Any,
    y: Any,
    y_bytes: Any,
    factors: Any,
    bias: Any,
) -> Any:
    """Write the products of 16 rows and 16 outputs of unpacked groups, added to what `before` has, to y.

    `kind` is the number of one of KINDS; behind these, the first two come with groups of other sizes than GROUP. With
    `factors`, an address, sums are multiplied by these first, and the bias is added. Instructions take `piece` inputs
    of the `rows` that exist at a time; `numbers` are as `_gather` writes them.
    """

    def emit(builder: Any, place: int, arguments: Sequence[Any]) -> None:
        _Kernel(builder, *KINDS[place % len(KINDS)], place < len(KINDS), arguments).emit()

    return types.void(*[types.int64] * 16), emit_choice(len(KINDS) + 2, emit)


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
    kind: int,
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
    state, sums, zeros = local_state(), stack_memory(_SUMS_BYTES), stack_memory(PANEL_BYTES)
    zeros_W = carray(_floats(zeros), (_WIDTH,))
    zeros_W[:] = np.float32(0)
    num_bases = 0 if kind % 2 == 0 else 2 if kind == 3 else 1
    other_groups = 0 if group == GROUP else len(KINDS)
    part, configured = group // 2 if kind in (2, 3) else group, 0
    piece = STEP_BYTES if part % STEP_BYTES == 0 else min(part, GROUP)
    final = factors if end == groups else 0
    for row in range(0, T, TILE_HEIGHT):
        rows, own_y = min(TILE_HEIGHT, T - row), y + row * y_bytes
        if rows != configured:
            configure_bytes(state, rows, piece)
            configured = rows
        to, to_bytes = own_y, y_bytes
        if rows < TILE_HEIGHT or width < _WIDTH:  # y has no place for all that a kernel writes
            to, to_bytes = sums, PANEL_BYTES
            for r in range(rows if begin > 0 else 0):
                copy_floats(own_y + r * y_bytes, sums + r * PANEL_BYTES, width)
        before, before_bytes = to, to_bytes
        if begin == 0:  # rows that are 0 bytes apart are the same
            before, before_bytes = bias if factors == 0 else zeros, 0
        x_at, numbers_at = x + row * x_bytes + begin * group, numbers
        numbers_at += row // TILE_HEIGHT * _block_bytes(num_bases, end - begin)
        for column in range(0, 4 * width, STEP_BYTES):
            own_final = final + column if final != 0 else 0
            _run(
                kind + other_groups, state, rows, end - begin, group, piece, x_at, x_bytes, weights + column,
                numbers_at, before + column, before_bytes, to + column, to_bytes, own_final, bias + column,
            )  # fmt: skip
        for r in range(rows if to == sums else 0):
            copy_floats(sums + r * PANEL_BYTES, own_y + r * y_bytes, width)
    release(state)


def _compiled(function: Any, num_arguments: int) -> Any:
    """Compile a loop once for all that call it; without tiles none does."""
    if not HOST.tiles:
        return compute_nothing
    return loops.compiled_once(f"void({', '.join(['int64'] * num_arguments)})", error_model="numpy")(function)


gather_numbers, add_unpacked = _compiled(_gather_numbers, 9), _compiled(_add_unpacked, 15)
