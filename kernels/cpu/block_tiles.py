"""Machine code of products with ggml's block formats: rows rounded to int8 by group of 32 inputs, times a panel.

A group's codes are put together from their planes and multiplied; products are summed exactly in int32, small scales
included. Scaled sums are added without fused operations, so that all instruction sets return the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from .block_formats import GROUP, BlockFormat
from .tile import F32, I8, I16, I32, I64, Tile, TileArguments, load_half
from .tile_kernels import add_block, add_dot

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
