"""Product loops of ggml's block formats: rows rounded to int8 by group of 32 inputs, times a panel of weights.

The loop of a format is compiled, or loaded, when a matrix first has it. Other loops call it by its address (`matmul`),
so that they are compiled without the formats. A group's codes are put together from their planes and multiplied, and
their products are summed exactly in int32. These sums are scaled and added in the order of the groups, by the same
operations, so that all instruction sets and any number of rows return the same bits.

Formats of several planes or small scales take long to read. For many rows a block of a panel is unpacked to bytes and
float32 scales first, once for all rows. On a processor with tiles the panels of all formats are, for `byte_tiles`, and
for the many rows of prompts, whose weights are widened from there (`widened`).

Legend: T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from threading import Lock
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .... import loops
from ..instructions import HOST
from ..pointers import stack_memory
from . import amx, byte_tiles
from .amx import SUMS_BYTES
from .block_formats import BLOCK_FORMATS, GROUP, BlockFormat
from .byte_tiles import add_unpacked, gather_numbers, numbers_bytes
from .tile import F32, I8, I16, I32, I64, Tile, TileArguments, emit_choice, load_half
from .tile_kernels import add_block, add_dot, emit_function
from .unpacked import BLOCK_INPUTS, BYTE_TILES, KINDS, WIDENED_ROWS, group_codes, write_codes, write_numbers
from .widened import MEMORY_BYTES, multiply_widened

_MOST_ROWS = 4  # of a kernel
_WIDTH = HOST.width
_FEW_ROWS = 64  # up to here a panel is read once, all units at a time
_BLOCK_ROWS, _BLOCK_INPUTS = 192, 1024
_FORMATS = list(BLOCK_FORMATS.values())
_STEPS = GROUP // 4
_AHEAD_BYTES = 8192  # of the weights that are read
_FETCH_BYTES = 128  # at a time
_FEW_ROWS_BYTES = 128 << 10  # of a block of weights: twice as much stays in the second cache
_UNPACKED_ROWS = 16  # from here on, formats whose groups take long to unpack are unpacked once for all rows
_compiling = Lock()


class BlockWeights:
    """A block format as `emit_tile` takes it. Steps are units, or groups that `_emit_unpack` has unpacked."""

    def __init__(self, form: BlockFormat, *, unpacked: bool = False) -> None:
        self.form, self.unpacked = form, unpacked

    def __str__(self) -> str:
        return f"{self.form.name}.unpacked" if self.unpacked else self.form.name

    def add_products(self, tile: Tile, arguments: TileArguments, sums: list[Any]) -> list[Any]:
        """Emit code that adds the products of the steps [begin, end) to the sums; return them.

        A row has its int8 codes, then of each group a float32 scale, an int32 sum of codes and one of its first half's.
        """
        return _Emitter(tile, arguments, self.form, self.unpacked).add_steps(sums)


class _Group(NamedTuple):
    """Values of a group of weights, by vector; scales and bases by scale."""

    words: Any  # address of the codes
    scales: list[list[Any]]
    bases: list[list[Any]]


class BlockReader:
    """Emitter of code that reads units and groups."""

    def __init__(self, tile: Tile, form: BlockFormat) -> None:
        self.tile, self.form, self.b = tile, form, tile.b
        self.count, self.width = tile.num_vectors, tile.instructions.width
        # Of an unpacked group: the codes as bytes, then float32 scales and bases.
        self.num_scales = GROUP // form.scale_inputs
        self.num_bases = _num_bases(form)

    def group(self, unit: Any, number: Any) -> _Group:
        """Read a group of the unit at an address."""
        form, b = self.form, self.b
        start = b.add(I64(form.header_bytes * self.width), b.mul(number, I64(form.group_bytes * self.width)))
        record = b.gep(unit, [start])
        words = b.gep(record, [I64(form.scale_bytes * self.width)])
        scale, base = self._halves(unit, 0), self._halves(unit, 1) if form.has_base else []
        if not form.has_small_scales:
            return _Group(words, [scale], [base] if base else [])

        def times(halves: list[Any], index: int, *, high: bool) -> list[Any]:
            return [b.fmul(*pair) for pair in zip(halves, self._small_numbers(record, index, high=high), strict=True)]

        first_base = 0 if form.joined else self.num_scales
        return _Group(
            words,
            [times(scale, index, high=False) for index in range(self.num_scales)],
            [times(base, first_base + index, high=True) for index in range(self.num_bases)],
        )

    def unpacked(self, record: Any) -> _Group:
        """Read an unpacked group."""
        numbers = [
            [
                self.tile.load(record, I64(4 * (index * self.width + vector * self.tile.lanes)), self.tile.floats, 4)
                for vector in range(self.count)
            ]
            for index in range(_STEPS, _STEPS + self.num_scales + self.num_bases)
        ]
        return _Group(record, numbers[: self.num_scales], numbers[self.num_scales :])

    def unpack(self, units: Any, codes: Any, to: Any, *, signed: bool) -> None:
        """Write some units at `codes` as unpacked groups, one behind the other; `signed` codes lack their offset."""
        tile, form, b = self.tile, self.form, self.b

        def unit(index: Any, _: list[Any]) -> list[Any]:
            here = tile.pointer(b.add(codes, b.mul(index, I64(form.unit_bytes * self.width))))
            first = b.mul(index, I64(form.groups))

            def group(number: Any, _: list[Any]) -> list[Any]:
                read = self.group(here, number)
                place = b.add(to, b.mul(b.add(first, number), I64(_unpacked_bytes(form))))
                codes_of = partial(self.codes, read.words)
                write_codes(tile, codes_of, form.offset if signed else 0, tile.pointer(place))
                numbers = [*read.scales, *read.bases]
                write_numbers(tile, numbers, tile.pointer(b.add(place, I64(GROUP * self.width))))
                return []

            return tile.loop(I64(0), I64(form.groups), [], group)

        tile.loop(I64(0), units, [], unit)

    def _halves(self, unit: Any, number: int) -> list[Any]:
        places = [I64(2 * (number * self.width + vector * self.tile.lanes)) for vector in range(self.count)]
        return [load_half(self.tile, unit, place) for place in places]

    def _small_numbers(self, record: Any, index: int, *, high: bool) -> list[Any]:
        """Load small scales, or bases if `high`, as float32."""
        tile, b = self.tile, self.b
        found = []
        for vector in range(self.count):
            place = I64(index * self.width + vector * tile.lanes)
            stored = tile.load(record, place, ir.VectorType(I8, tile.lanes), 1)
            value = b.sext(stored, tile.ints)
            if self.form.joined:
                value = b.and_(b.lshr(value, tile.constant(4)) if high else value, tile.constant(15))
            found.append(b.sitofp(value, tile.floats))
        return found

    def codes(self, words: Any, step: int, vector: int) -> Any:
        """Return the codes of four inputs, a byte each."""
        return group_codes(self.tile, self.form.planes, words, step, vector)


class _Emitter:
    """Emitter of one kernel's products."""

    def __init__(self, tile: Tile, a: TileArguments, form: BlockFormat, unpacked: bool) -> None:
        self.tile, self.a, self.form, self.b, self.is_unpacked = tile, a, form, tile.b, unpacked
        self.reader, self.count = BlockReader(tile, form), tile.num_vectors
        self.rows = [tile.pointer(self.b.add(a.x, self.b.mul(a.x_bytes, I64(row)))) for row in range(tile.num_rows)]
        groups = a.steps if unpacked else self.b.mul(a.steps, I64(form.groups))
        self.scales_at = self.b.mul(groups, I64(GROUP))
        self.sums_at = self.b.add(self.scales_at, self.b.mul(groups, I64(4)))
        self.half_sums_at = self.b.add(self.sums_at, self.b.mul(groups, I64(4)))

    def add_steps(self, sums: list[Any]) -> list[Any]:
        tile, a, form, b, reader = self.tile, self.a, self.form, self.b, self.reader
        codes = tile.pointer(a.codes)

        def unpacked(index: Any, sums: list[Any]) -> list[Any]:
            self.fetch(index)
            return self.add_group(
                sums, index, reader.unpacked(b.gep(codes, [b.mul(index, I64(_unpacked_bytes(form)))]))
            )

        def unit(index: Any, sums: list[Any]) -> list[Any]:
            here = b.gep(codes, [b.mul(index, I64(form.unit_bytes * reader.width))])
            first = b.mul(index, I64(form.groups))

            def group(number: Any, sums: list[Any]) -> list[Any]:
                place = b.add(first, number)
                self.fetch(place)
                return self.add_group(sums, place, reader.group(here, number))

            return group(I64(0), sums) if form.groups == 1 else tile.loop(I64(0), I64(form.groups), sums, group)

        return tile.loop(a.begin, a.end, sums, unpacked if self.is_unpacked else unit)

    def fetch(self, group: Any) -> None:
        """Fetch a group's share of the weights that come next, at least a cache line."""
        tile, a, b = self.tile, self.a, self.b
        start = b.add(a.ahead, b.mul(group, a.ahead_bytes))

        def lines(index: Any, _: list[Any]) -> list[Any]:
            tile.fetch(tile.pointer(b.add(start, b.mul(index, I64(_FETCH_BYTES)))), _FETCH_BYTES // 64)
            return []

        tile.loop(I64(0), b.lshr(b.add(a.ahead_bytes, I64(_FETCH_BYTES - 1)), I64(7)), [], lines)

    def add_group(self, sums: list[Any], place: Any, weights: _Group) -> list[Any]:
        """Add the products of a group, the row's scale included, to the sums."""
        tile, b = self.tile, self.b
        products: list[Any] = []
        for totals, scales in zip(self.totals(weights.words, place), weights.scales, strict=True):
            floats = [b.sitofp(total, tile.floats) for total in totals]
            if products:
                products = [
                    tile.fused(value, scales[index % self.count], product)
                    for index, (value, product) in enumerate(zip(floats, products, strict=True))
                ]
            else:
                products = [b.fmul(value, scales[index % self.count]) for index, value in enumerate(floats)]
        for half, bases in enumerate(weights.bases):
            row_sums = [tile.broadcast(b.sitofp(total, F32)) for total in self.sums_of_scale(half, place)]
            products = [
                tile.fused(row_sums[index // self.count], bases[index % self.count], product)
                for index, product in enumerate(products)
            ]
        x_scales = [tile.broadcast(scale) for scale in self.row_numbers(self.scales_at, place, F32)]
        return [
            tile.fused(product, x_scales[index // self.count], total)
            for index, (total, product) in enumerate(zip(sums, products, strict=True))
        ]

    def row_numbers(self, at: Any, group: Any, kind: Any = I32) -> list[Any]:
        """Load a number of the group for each row."""
        offset = self.b.add(at, self.b.mul(group, I64(4)))
        return [self.tile.load(row, offset, kind, 4) for row in self.rows]

    def sums_of_scale(self, half: int, group: Any) -> list[Any]:
        """Return each row's sum of the codes that share a scale."""
        if self.form.scale_inputs == GROUP:
            return self.row_numbers(self.sums_at, group)
        halves = self.row_numbers(self.half_sums_at, group)
        if half == 0:
            return halves
        wholes = self.row_numbers(self.sums_at, group)
        return [self.b.sub(whole, first) for whole, first in zip(wholes, halves, strict=True)]

    def totals(self, words: Any, group: Any) -> list[list[Any]]:
        """Return the sums of products of codes less their offset, int32, for each scale of a group."""
        tile, b, form = self.tile, self.b, self.form
        inputs = [b.gep(row, [b.mul(group, I64(GROUP))]) for row in self.rows]
        by_pairs = tile.instructions.byte_dot == "avx2"
        count, results = GROUP // form.scale_inputs, []
        for half in range(count):
            excess = 0 if form.bits == 8 and by_pairs else form.offset
            sums = self.sums_of_scale(half, group) if excess else [I32(0)] * len(self.rows)
            totals = [tile.broadcast(b.mul(total, I32(-excess))) for total in sums for _ in range(self.count)]
            if form.bits == 8:
                totals = add_block(tile, words, inputs, totals, _STEPS, False)
            else:
                steps = range(half * _STEPS // count, (half + 1) * _STEPS // count)
                totals = self.add_dots(words, inputs, totals, steps, by_pairs)
            results.append(totals)
        return results

    def add_dots(self, words: Any, inputs: list[Any], totals: list[Any], steps: range, by_pairs: bool) -> list[Any]:
        """Add the products of some steps of a group to the int32 sums."""
        tile, b, totals = self.tile, self.b, list(totals)
        most = 32767 // (2 * 127 * ((1 << self.form.bits) - 1))  # sums of pairs of products that fit sixteen bits
        pairs: list[Any] = []

        def widen() -> None:
            for place, value in enumerate(pairs):
                totals[place] = b.add(totals[place], _widened(tile, value))
            pairs.clear()

        for number, step in enumerate(steps):
            codes = [self.code(words, step, vector) for vector in range(self.count)]
            new = []
            for data in inputs:
                x = tile.broadcast(tile.load(data, I64(4 * step), I32, 4))
                for code in codes:
                    if by_pairs:
                        new.append(_pairs(tile, code, x))
                    else:
                        new.append(add_dot(tile, totals[len(new)], code, x))
            if not by_pairs:
                totals = new
                continue
            pairs[:] = [b.add(one, other) for one, other in zip(pairs, new, strict=True)] if pairs else new
            if (number + 1) % most == 0 or number + 1 == len(steps):
                widen()
        return totals

    def code(self, words: Any, step: int, vector: int) -> Any:
        """Return the codes of four inputs, a byte each."""
        if not self.is_unpacked:
            return self.reader.codes(words, step, vector)
        offset = I64(4 * (step * self.reader.width + vector * self.tile.lanes))
        return self.tile.load(words, offset, self.tile.ints, 4)


def _num_bases(form: BlockFormat) -> int:
    """Return the bases of an output and group."""
    return GROUP // form.scale_inputs if form.has_base else 0


def _unpacked_bytes(form: BlockFormat) -> int:
    """Return the bytes of an unpacked group: its codes as bytes, then float32 scales and bases."""
    return 4 * _WIDTH * (_STEPS + GROUP // form.scale_inputs + _num_bases(form))


def _pairs(tile: Tile, codes: Any, x: Any) -> Any:
    """Return sums of two products of bytes, in sixteen bits."""
    name = "llvm.x86.avx2.pmadd.ub.sw" if tile.lanes == 8 else "llvm.x86.avx512.pmaddubs.w.512"
    b = tile.b
    words = ir.VectorType(I16, 2 * tile.lanes)
    return tile.call(name, words, b.bitcast(codes, tile.bytes), b.bitcast(x, tile.bytes))


def _widened(tile: Tile, pairs: Any) -> Any:
    """Return sums of two numbers of sixteen bits, in 32."""
    name = "llvm.x86.avx2.pmadd.wd" if tile.lanes == 8 else "llvm.x86.avx512.pmaddw.d.512"
    return tile.call(name, tile.ints, pairs, ir.Constant(pairs.type, [1] * 2 * tile.lanes))


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _multiply_tile(
    _: Any,
    number: Any,
    rows: Any,
    codes: Any,
    bias: Any,
    x: Any,
    x_bytes: Any,
    y: Any,
    y_bytes: Any,
    begin: Any,
    end: Any,
    steps: Any,
    outputs: Any,
    ahead: Any,
    ahead_bytes: Any,
    unpacked: Any,
) -> Any:
    """Run the kernel of a number of rows, of the format `number`, which is a constant."""
    if not isinstance(number, types.IntegerLiteral):
        return None
    form = _FORMATS[number.literal_value]

    def emit(builder: Any, place: int, arguments: Sequence[Any]) -> None:
        weights = BlockWeights(form, unpacked=place >= _MOST_ROWS)
        builder.call(emit_function(builder.module, HOST, weights, place % _MOST_ROWS + 1, 1), arguments)

    kernels = emit_choice(2 * _MOST_ROWS if form.is_costly else _MOST_ROWS, emit)

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        _, rows, codes, bias, x, x_bytes, y, y_bytes, begin, end, steps, outputs, ahead, ahead_bytes, unpacked = (
            arguments
        )
        rest = [codes, I64(0), I64(0), I64(0), bias, x, x_bytes, y, y_bytes, begin, end, steps, I64(0), outputs]
        rest += [ahead, ahead_bytes]
        index = builder.add(builder.sub(rows, I64(1)), builder.mul(unpacked, I64(_MOST_ROWS)))
        return kernels(context, builder, signature, [index, *rest])

    return types.void(number, *[types.int64] * 14), generate


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _unpack(_: Any, number: Any, signed: Any, codes: Any, units: Any, to: Any) -> Any:
    """Unpack the groups of some units of a panel at `codes`, of the format `number`, one behind the other at `to`."""
    if not (isinstance(number, types.IntegerLiteral) and isinstance(signed, types.IntegerLiteral)):
        return None
    form = _FORMATS[number.literal_value]

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        reader, (_, _, codes, units, to) = BlockReader(Tile(builder, HOST, 1, 1), form), arguments
        reader.unpack(units, codes, to, signed=bool(signed.literal_value))
        return context.get_dummy_value()

    return types.void(number, signed, *[types.int64] * 3), generate


def _loop(number: int, most_units: int) -> Callable[..., None]:
    """Make the loop of a format; `most_units` are those of a block of inputs."""
    form = _FORMATS[number]
    groups, group_bytes, is_costly = form.groups, _unpacked_bytes(form), form.is_costly
    has_tiles, num_bases, wide_units = HOST.tiles, _num_bases(form), max(1, BLOCK_INPUTS // form.block)
    kind, memory_units = KINDS.index((GROUP // form.scale_inputs, num_bases)), most_units if is_costly else 0
    scratch_bytes = 64  # for widened weights, or for rows' numbers
    if has_tiles:
        memory_units = max(most_units, wide_units)
        scratch_bytes = max(MEMORY_BYTES, numbers_bytes(num_bases))
    memory_bytes = max(64, memory_units * groups * group_bytes)
    is_fetched = form.bits < 8  # a single stream of bytes is fetched better by the processor itself

    def multiply(
        codes: int,
        panel_bytes: int,
        units: int,
        bias: int,
        x: int,
        x_bytes: int,
        T: int,
        y: int,
        y_bytes: int,
        outputs: int,
        panels: int,
        tiles: int,
    ) -> None:
        """Write the products of all rows and some panels, whose addresses are those of the first one's.

        `tiles` is as in `multiply_sections`.
        """
        memory, unpacked = stack_memory(memory_bytes), 1 if is_costly and T >= _UNPACKED_ROWS else 0
        unit_bytes = panel_bytes // units
        block_rows, block_units, together, next_bytes = _BLOCK_ROWS, most_units, panels, panel_bytes
        if T <= _FEW_ROWS:
            block_rows, block_units, together = _FEW_ROWS, units, 1
            if T > _MOST_ROWS:  # each block's weights are fetched while the one before is multiplied
                block_units = -(-units // -(-panel_bytes // _FEW_ROWS_BYTES))
                if unpacked:
                    block_units = min(block_units, most_units)
                next_bytes = block_units * unit_bytes
        per_unit = groups if unpacked else 1  # steps
        is_widened = tiles == WIDENED_ROWS
        if has_tiles and (is_widened or (tiles == BYTE_TILES and T >= byte_tiles.MIN_ROWS)):
            scratch, sums = stack_memory(scratch_bytes), stack_memory(SUMS_BYTES)
            all_groups = units * groups
            most_rows = amx.rows_of_block(all_groups * GROUP) if is_widened else byte_tiles.MOST_ROWS
            for first_row in range(0, T, most_rows):
                rows, own_x, own_y = min(most_rows, T - first_row), x + first_row * x_bytes, y + first_row * y_bytes
                for begin in range(0, units, wide_units):
                    end = min(begin + wide_units, units)
                    first, last = begin * groups, end * groups
                    if not is_widened:
                        gather_numbers(rows, num_bases, own_x, x_bytes, GROUP, all_groups, first, last, scratch)
                    for panel in range(panels):
                        _unpack(number, 1, codes + panel * panel_bytes + begin * unit_bytes, end - begin, memory)
                        own_bias, width = bias + panel * _WIDTH * 4, min(_WIDTH, outputs - panel * _WIDTH)
                        if is_widened:
                            multiply_widened(
                                rows, kind, GROUP, first * GROUP, last * GROUP, all_groups * GROUP, memory, scratch,
                                own_bias, own_x, sums, own_y + panel * _WIDTH * 4, y_bytes, width,
                            )  # fmt: skip
                        else:
                            add_unpacked(
                                rows, kind, GROUP, all_groups, first, last, memory, scratch, 0, own_bias, own_x,
                                x_bytes, own_y + panel * _WIDTH * 4, y_bytes, width,
                            )  # fmt: skip
            return
        for first_row in range(0, T, block_rows):
            last_row = min(first_row + block_rows, T)
            num_tiles = -(-(last_row - first_row) // _MOST_ROWS)
            for first_panel in range(0, panels, together):
                for begin in range(0, units, block_units):
                    end = min(begin + block_units, units)
                    for panel in range(first_panel, min(first_panel + together, panels)):
                        weights = codes + panel * panel_bytes
                        ahead, ahead_bytes = weights + begin * unit_bytes, unit_bytes // groups
                        if num_tiles == 1:
                            ahead += _AHEAD_BYTES
                            if not is_fetched:
                                ahead_bytes = 0
                        else:  # the tiles share the weights that come after theirs
                            ahead += next_bytes
                            ahead_bytes = -(-ahead_bytes // (num_tiles * _FETCH_BYTES)) * _FETCH_BYTES
                        pieces = unit_bytes // groups // max(1, ahead_bytes)
                        if unpacked:
                            _unpack(number, 0, weights + begin * unit_bytes, end - begin, memory)
                            weights = memory - begin * groups * group_bytes
                        row = first_row
                        for blocks in range(num_tiles, 0, -1):
                            rows = -(-(last_row - row) // blocks)  # blocks of nearly one size
                            _multiply_tile(
                                number,
                                rows,
                                weights,
                                bias + panel * _WIDTH * 4,
                                x + row * x_bytes,
                                x_bytes,
                                y + row * y_bytes + panel * _WIDTH * 4,
                                y_bytes,
                                begin * per_unit,
                                end * per_unit,
                                units * per_unit,
                                outputs - panel * _WIDTH,
                                ahead - begin * groups * ahead_bytes,
                                ahead_bytes,
                                unpacked,
                            )
                            row += rows
                            ahead += (end - begin) * groups * ahead_bytes
                            pieces -= 1
                            if pieces < 0:  # all is fetched: the others ask for what is there
                                ahead, ahead_bytes = codes + panel * panel_bytes, 0

    return multiply


@cache
def _compiled_loop(name: str) -> Any:
    form = BLOCK_FORMATS[name]
    loop = _loop(_FORMATS.index(form), max(1, _BLOCK_INPUTS // form.block))
    loop.__qualname__ = f"multiply_{name}"  # names its files in numba's cache, which processes share without locks
    return loops.compile_function(loop, f"void({', '.join(['int64'] * 12)})", error_model="numpy")


def loop_address(name: str) -> int:
    """Return the address of a format's loop, whose arguments `matmul` passes. Any thread may compile it."""
    with _compiling:  # a second result would take the first one's place, whose address is in use
        return int(_compiled_loop(name).address)
