"""The emitter of one product kernel's instructions, in LLVM IR, and the kernel's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir

from .instructions import Instructions

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()

PREFETCH_BYTES = 2048  # ahead of the weights that are read; the processor's own prefetching stops at pages


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no type for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


class TileArguments(NamedTuple):
    """Arguments of a kernel, 64-bit integers."""

    codes: Any  # address of the panel's weights
    panel_bytes: Any  # from a panel's weights to the next one's
    scales: Any  # address of the panel's scales, or 0
    bases: Any  # address of the panel's bases, or 0
    bias: Any  # address of the float32 biases of the panel's outputs
    x: Any  # address of the first row as the format wants it
    x_bytes: Any  # from a row to the next
    y: Any  # address of the first row's first output
    y_bytes: Any  # from a row to the next
    begin: Any  # first step; at 0 the sums start, else they go on from y
    end: Any  # behind the last step
    steps: Any  # of a whole row
    group: Any  # inputs of a group, a multiple of 32, or 0
    outputs: Any  # of the panel that exist; others are not written
    # Address of the weights to fetch into the cache with the first 32-bit lanes of a panel's outputs, and the bytes
    # from there to those of the next lanes.
    ahead: Any
    ahead_bytes: Any


class Tile:
    """Emitter of one kernel's instructions. Values are lists of vectors, one per vector of the panels."""

    def __init__(self, builder: Any, instructions: Instructions, num_rows: int, num_panels: int) -> None:
        self.b, self.instructions, self.num_rows, self.num_panels = builder, instructions, num_rows, num_panels
        self.lanes, self.num_vectors = instructions.lanes, num_panels * instructions.vectors
        self.floats, self.ints = ir.VectorType(F32, self.lanes), ir.VectorType(I32, self.lanes)
        self.bytes = ir.VectorType(I8, 4 * self.lanes)

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        module = self.b.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [value.type for value in arguments]), name)
        return self.b.call(function, arguments)

    def pointer(self, address: Any, kind: Any = I8) -> Any:
        return self.b.inttoptr(address, kind.as_pointer())

    def load(self, base: Any, offset: Any, kind: Any, align: int) -> Any:
        value = self.b.load(self.b.bitcast(self.b.gep(base, [offset]), kind.as_pointer()))
        value.align = align
        return value

    def prefetch(self, base: Any, offsets: list[Any], num_bytes: int, ahead: int = PREFETCH_BYTES) -> None:
        """Fetch the weights that are read some rounds later."""
        for offset in offsets:
            self.fetch(self.b.gep(base, [self.b.add(offset, I64(ahead))]), -(-num_bytes // 64))

    def fetch(self, base: Any, num_lines: int) -> None:
        """Fetch cache lines from an address on. To the second cache: in the first they would replace what is in use."""
        for line in range(num_lines):
            place = self.b.gep(base, [I64(64 * line)])
            self.call("llvm.prefetch.p0i8", ir.VoidType(), place, I32(0), I32(2), I32(1))

    def store(self, value: Any, base: Any, offset: Any) -> None:
        self.b.store(value, self.b.bitcast(self.b.gep(base, [offset]), value.type.as_pointer())).align = 4

    def broadcast(self, value: Any) -> Any:
        kind = ir.VectorType(value.type, self.lanes)
        nothing = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(nothing, value, I32(0))
        return self.b.shuffle_vector(first, nothing, ir.Constant(self.ints, [0] * self.lanes))

    def constant(self, value: int) -> Any:
        return ir.Constant(self.ints, [value] * self.lanes)

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        return self.call(f"llvm.fmuladd.v{self.lanes}f32", self.floats, a, b, total)

    def halves(self, pairs: Any) -> tuple[Any, Any]:
        """Return the first and the second bfloat16 of each lane as float32s."""
        b = self.b
        first = b.bitcast(b.shl(pairs, self.constant(16)), self.floats)
        return first, b.bitcast(b.and_(pairs, self.constant(-65536)), self.floats)

    def add_pairs(self, total: Any, x: Any, y: Any) -> Any:
        """Add the products of two bfloat16s in each lane; `x` and `y` are vectors of integers."""
        if self.instructions.emulated:
            for factors in zip(self.halves(x), self.halves(y), strict=True):
                total = self.multiply_add(*factors, total)
            return total
        kind = ir.VectorType(_BFloat(), 2 * self.lanes)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
        return self.call(name, self.floats, total, self.b.bitcast(x, kind), self.b.bitcast(y, kind))

    def round_to_pairs(self, low: Any, high: Any) -> Any:
        """Return two vectors of float32s as bfloat16s, one after the other. NaN stays NaN if it is the processor's."""
        b = self.b
        if not self.instructions.emulated:
            kind = ir.VectorType(_BFloat(), 2 * self.lanes)
            pairs = self.call(f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * self.lanes}", kind, high, low)
            return b.bitcast(pairs, self.ints)
        rounded = []
        for value in (low, high):
            bits = b.bitcast(value, self.ints)
            even = b.and_(b.lshr(bits, self.constant(16)), self.constant(1))
            up = b.lshr(b.add(bits, b.add(even, self.constant(0x7FFF))), self.constant(16))
            rounded.append(b.trunc(up, ir.VectorType(I16, self.lanes)))
        order = ir.Constant(ir.VectorType(I32, 2 * self.lanes), list(range(2 * self.lanes)))
        return b.bitcast(b.shuffle_vector(*rounded, order), self.ints)

    def loop(
        self, begin: Any, end: Any, values: Sequence[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """Repeat `body` for an index from `begin` to `end` > `begin`; it gets and returns the values of a round."""
        b = self.b
        before, block, after = b.block, b.append_basic_block("loop"), b.append_basic_block("after")
        b.branch(block)
        b.position_at_end(block)
        index = b.phi(I64)
        index.add_incoming(begin, before)
        phis = [b.phi(value.type) for value in values]
        for phi, value in zip(phis, values, strict=True):
            phi.add_incoming(value, before)
        results = body(index, list(phis))
        following = b.add(index, I64(1))
        index.add_incoming(following, b.block)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, b.block)
        b.cbranch(b.icmp_signed("<", following, end), block, after)
        b.position_at_end(after)
        return results

    def vector_offsets(self, panel_bytes: Any, size: int) -> list[Any]:
        """Return the offsets of all vectors with lanes of `size` bytes, behind those of a step in each panel."""
        per_panel = self.instructions.vectors
        inside = [I64(index * self.lanes * size) for index in range(per_panel)]
        return [
            self.b.add(self.b.mul(panel_bytes, I64(panel)), offset) if panel else offset
            for panel in range(self.num_panels)
            for offset in inside
        ]


def load_half(tile: Tile, base: Any, offset: Any) -> Any:
    """Load finite float16s as float32s."""
    b = tile.b
    if tile.instructions.has_half:
        return b.fpext(tile.load(base, offset, ir.VectorType(F16, tile.lanes), 2), tile.floats)
    bits = b.zext(tile.load(base, offset, ir.VectorType(I16, tile.lanes), 2), tile.ints)
    # The exponents' biases, 15 and 127, differ by a factor that makes subnormals good too.
    magnitude = b.bitcast(b.shl(b.and_(bits, tile.constant(0x7FFF)), tile.constant(13)), tile.floats)
    value = b.bitcast(b.fmul(magnitude, ir.Constant(tile.floats, [2.0**112] * tile.lanes)), tile.ints)
    return b.bitcast(b.or_(value, b.shl(b.and_(bits, tile.constant(0x8000)), tile.constant(16))), tile.floats)
