"""Product loops of ggml's block formats: rows rounded to int8 by group of 32 inputs, times a panel of weights.

The loop of a format is compiled, or loaded, when a matrix first has it. Other loops call it by its address (`matmul`),
so that they are compiled without the formats. A group's codes are put together from their planes and multiplied;
products are summed exactly in int32, small scales included. Scaled sums are added without fused operations, so that
all instruction sets return the same bits.

Legend: T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ... import loops
from .block_formats import BLOCK_FORMATS, GROUP, BlockFormat
from .instructions import HOST
from .tile import F32, I8, I16, I32, I64, Tile, TileArguments, load_half
from .tile_kernels import add_block, add_dot, emit_function

_MOST_ROWS = 4  # of a kernel
_WIDTH = HOST.width
_FEW_ROWS = 64  # up to here a panel is read once, all units at a time
_BLOCK_ROWS, _BLOCK_INPUTS = 192, 1024
_FORMATS = list(BLOCK_FORMATS.values())
_STEPS = GROUP // 4
_AHEAD_BYTES = 8192  # of the weights that are read


class BlockWeights:
    """A block format as `emit_tile` takes it. Steps are units."""

    def __init__(self, form: BlockFormat) -> None:
        self.form = form

    def __str__(self) -> str:
        return self.form.name

    def add_products(self, tile: Tile, arguments: TileArguments, sums: list[Any]) -> list[Any]:
        """Emit code that adds the products of the units [begin, end) to the sums; return them.

        A row has its int8 codes, then of each group a float32 scale, an int32 sum of codes and one of its first half's.
        """
        return _Emitter(tile, arguments, self.form).add_units(sums)


class _Emitter:
    """Emitter of one kernel's units and groups."""

    def __init__(self, tile: Tile, a: TileArguments, form: BlockFormat) -> None:
        self.tile, self.a, self.form, self.b = tile, a, form, tile.b
        self.count, self.width = tile.num_vectors, tile.instructions.width
        self.rows = [tile.pointer(self.b.add(a.x, self.b.mul(a.x_bytes, I64(row)))) for row in range(tile.num_rows)]
        groups = self.b.mul(a.steps, I64(form.groups))
        self.scales_at = self.b.mul(groups, I64(GROUP))
        self.sums_at = self.b.add(self.scales_at, self.b.mul(groups, I64(4)))
        self.half_sums_at = self.b.add(self.sums_at, self.b.mul(groups, I64(4)))

    def add_units(self, sums: list[Any]) -> list[Any]:
        tile, a, form, b = self.tile, self.a, self.form, self.b
        codes = tile.pointer(a.codes)
        header = form.header_bytes * self.width

        def by_vector(values: list[Any], emit: Callable[[Any, Any], Any], factors: list[Any]) -> list[Any]:
            return [emit(value, factors[place % self.count]) for place, value in enumerate(values)]

        def unit(index: Any, sums: list[Any]) -> list[Any]:
            here = b.gep(codes, [b.mul(index, I64(form.unit_bytes * self.width))])
            first, group_bytes = b.mul(index, I64(form.groups)), form.group_bytes * self.width

            def load_halves(start: int) -> list[Any]:
                places = [I64(2 * (start * self.width + vector * tile.lanes)) for vector in range(self.count)]
                return [load_half(tile, here, place) for place in places]

            if not form.has_small_scales:
                self.prefetch(here, form.unit_bytes * self.width)
                [totals] = self.totals(b.gep(here, [I64(header)]), index)
                products = by_vector([b.sitofp(total, tile.floats) for total in totals], b.fmul, load_halves(0))
                if form.has_base:
                    row_sums = [tile.broadcast(b.sitofp(total, F32)) for total in self.row_numbers(self.sums_at, index)]
                    bases = load_halves(1)
                    products = [
                        b.fadd(product, b.fmul(row_sums[place // self.count], bases[place % self.count]))
                        for place, product in enumerate(products)
                    ]
                return self.add_scaled(sums, products, index)

            def group(number: Any, parts: list[Any]) -> list[Any]:
                record = b.gep(here, [b.add(I64(header), b.mul(number, I64(group_bytes)))])
                self.prefetch(record, group_bytes)
                place = b.add(first, number)
                words = b.gep(record, [I64(form.scale_bytes * self.width)])
                total: list[Any] = []
                for half, totals in enumerate(self.totals(words, place)):
                    scaled = by_vector(totals, b.mul, self.small_numbers(record, half, high=False))
                    total = [b.add(one, other) for one, other in zip(total, scaled, strict=True)] if total else scaled
                return self.add_scaled(parts, [b.sitofp(value, tile.floats) for value in total], place)

            def group_of_bases(number: Any, parts: list[Any]) -> list[Any]:
                record = b.gep(here, [b.add(I64(header), b.mul(number, I64(group_bytes)))])
                place, count = b.add(first, number), GROUP // form.scale_inputs
                total: list[Any] = []
                for half in range(count):
                    bases = self.small_numbers(record, half if form.joined else count + half, high=True)
                    sums = [tile.broadcast(value) for value in self.sums_of_scale(half, place)]
                    scaled = [b.mul(base, value) for value in sums for base in bases]
                    total = [b.add(one, other) for one, other in zip(total, scaled, strict=True)] if total else scaled
                return self.add_scaled(parts, [b.sitofp(value, tile.floats) for value in total], place)

            for number, emit in enumerate([group, group_of_bases][: 1 + form.has_base]):
                nothing = [ir.Constant(tile.floats, None)] * len(sums)
                parts = tile.loop(I64(0), I64(form.groups), nothing, emit)
                scaled = by_vector(parts, b.fmul, load_halves(number))
                sums = [b.fadd(total, part) for total, part in zip(sums, scaled, strict=True)]
            return sums

        return tile.loop(a.begin, a.end, sums, unit)

    def prefetch(self, place: Any, num_bytes: int) -> None:
        """Fetch the weights that are read some groups later, unless they are one stream of bytes: those the processor
        fetches better by itself."""
        if self.form.bits < 8:
            self.tile.prefetch(place, [I64(0)], num_bytes, ahead=_AHEAD_BYTES)

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

    def add_scaled(self, sums: list[Any], products: list[Any], group: Any) -> list[Any]:
        """Add the products of a group, times the rows' scales."""
        scales = [self.tile.broadcast(scale) for scale in self.row_numbers(self.scales_at, group, F32)]
        b = self.b
        return [
            b.fadd(total, b.fmul(product, scales[place // self.count]))
            for place, (total, product) in enumerate(zip(sums, products, strict=True))
        ]

    def small_numbers(self, record: Any, index: int, *, high: bool) -> list[Any]:
        """Load small scales, or bases if `high`, as int32."""
        tile, b = self.tile, self.b
        found = []
        for vector in range(self.count):
            place = I64(index * self.width + vector * tile.lanes)
            stored = tile.load(record, place, ir.VectorType(I8, tile.lanes), 1)
            value = b.sext(stored, tile.ints)
            if self.form.joined:
                value = b.and_(b.lshr(value, tile.constant(4)) if high else value, tile.constant(15))
            found.append(value)
        return found

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
                totals = self.add_steps(words, inputs, totals, steps, by_pairs)
            results.append(totals)
        return results

    def add_steps(self, words: Any, inputs: list[Any], totals: list[Any], steps: range, by_pairs: bool) -> list[Any]:
        """Add the products of some steps of a group to the int32 sums."""
        tile, b, totals = self.tile, self.b, list(totals)
        most = 32767 // (2 * 127 * ((1 << self.form.bits) - 1))  # sums of pairs of products that fit sixteen bits
        pairs: list[Any] = []

        def widen() -> None:
            for place, value in enumerate(pairs):
                totals[place] = b.add(totals[place], _widened(tile, value))
            pairs.clear()

        for number, step in enumerate(steps):
            codes = [self.codes(words, step, vector) for vector in range(self.count)]
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

    def codes(self, words: Any, step: int, vector: int) -> Any:
        """Put the codes of four inputs together, a byte each."""
        tile, b = self.tile, self.b
        result, shift, at = None, 0, 0
        for bits in self.form.planes:
            index, place = divmod(step * bits, 8)
            offset = I64(4 * ((at + index) * self.width + vector * tile.lanes))
            value = tile.load(words, offset, tile.ints, 4)
            if place > shift:
                value = b.lshr(value, tile.constant(place - shift))
            elif place < shift:
                value = b.shl(value, tile.constant(shift - place))
            mask = ((1 << bits) - 1 << shift) * 0x01010101
            value = b.and_(value, tile.constant(mask - (1 << 32) if mask >> 31 else mask))
            result = value if result is None else b.or_(result, value)
            shift, at = shift + bits, at + bits
        return result


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
    units: Any,
    outputs: Any,
) -> Any:
    """Run the kernel of a number of rows, of the format `number`, which is a constant."""
    if not isinstance(number, types.IntegerLiteral):
        return None
    weights = BlockWeights(_FORMATS[number.literal_value])

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        _, rows, codes, bias, x, x_bytes, y, y_bytes, begin, end, units, outputs = arguments
        rest = [codes, I64(0), I64(0), I64(0), bias, x, x_bytes, y, y_bytes, begin, end, units, I64(0), outputs]
        rest += [I64(0), I64(0)]
        after, nowhere = builder.append_basic_block("done"), builder.append_basic_block("unreachable")
        choice = builder.switch(rows, nowhere)
        for size in range(1, _MOST_ROWS + 1):
            block = builder.append_basic_block()
            choice.add_case(I64(size), block)
            builder.position_at_end(block)
            builder.call(emit_function(builder.module, HOST, weights, size, 1), rest)
            builder.branch(after)
        builder.position_at_end(nowhere)
        builder.unreachable()
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(number, *[types.int64] * 11), generate


def _loop(number: int, most_units: int) -> Callable[..., None]:
    """Make the loop of a format; `most_units` are those of a block of inputs."""

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
    ) -> None:
        """Write the products of all rows and some panels, whose addresses are those of the first one's."""
        block_rows, block_units = _BLOCK_ROWS, most_units
        if T <= _FEW_ROWS:
            block_rows, block_units = _FEW_ROWS, units
        for first_row in range(0, T, block_rows):
            last_row = min(first_row + block_rows, T)
            for begin in range(0, units, block_units):
                end = min(begin + block_units, units)
                for panel in range(panels):
                    row = first_row
                    for blocks in range(-(-(last_row - first_row) // _MOST_ROWS), 0, -1):
                        rows = -(-(last_row - row) // blocks)  # blocks of nearly one size
                        _multiply_tile(
                            number,
                            rows,
                            codes + panel * panel_bytes,
                            bias + panel * _WIDTH * 4,
                            x + row * x_bytes,
                            x_bytes,
                            y + row * y_bytes + panel * _WIDTH * 4,
                            y_bytes,
                            begin,
                            end,
                            units,
                            outputs - panel * _WIDTH,
                        )
                        row += rows

    return multiply


@cache
def _compiled_loop(name: str) -> Any:
    form = BLOCK_FORMATS[name]
    loop = _loop(_FORMATS.index(form), max(1, _BLOCK_INPUTS // form.block))
    loop.__qualname__ = f"multiply_{name}"  # names its files in numba's cache, which processes share without locks
    return loops.compile_function(loop, f"void({', '.join(['int64'] * 11)})", error_model="numpy")


def loop_address(name: str) -> int:
    """Return the address of a format's loop, whose arguments `matmul` passes."""
    return int(_compiled_loop(name).address)
