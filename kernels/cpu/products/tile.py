"""Emitters of kernels' instructions in LLVM IR: of products, with their arguments, and of vectors at addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from ..instructions import HOST, Instructions

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
FLOATS = ir.VectorType(F32, HOST.lanes)

FETCH_BYTES = 512  # of a slot that are read at once: the processor fetches the neighbours of what it reads
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

    def fetch(self, base: Any, num_lines: int, *, to_first: bool = False) -> None:
        """Fetch cache lines from an address on, to the second cache, or to the first, where they replace others."""
        for line in range(num_lines):
            place = self.b.gep(base, [I64(64 * line)])
            self.call("llvm.prefetch.p0i8", ir.VoidType(), place, I32(0), I32(3 if to_first else 2), I32(1))

    def fetch_to_write(self, base: Any, num_lines: int) -> None:
        """Fetch cache lines that are written soon, to the first cache."""
        for line in range(num_lines):
            place = self.b.gep(base, [I64(64 * line)])
            self.call("llvm.prefetch.p0i8", ir.VoidType(), place, I32(1), I32(3), I32(1))

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

    def fused(self, a: Any, b: Any, total: Any) -> Any:
        """Return `a b + total`, rounded once by any instructions."""
        return self.call(f"llvm.fma.v{self.lanes}f32", self.floats, a, b, total)

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
        """Return two vectors of float32s as bfloat16s, one after the other. NaN stays NaN."""
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
            up = b.select(b.fcmp_unordered("uno", value, value), self.constant(0x7FC0), up)
            rounded.append(b.trunc(up, ir.VectorType(I16, self.lanes)))
        order = ir.Constant(ir.VectorType(I32, 2 * self.lanes), list(range(2 * self.lanes)))
        return b.bitcast(b.shuffle_vector(*rounded, order), self.ints)

    def paired(self, first: Any, second: Any) -> Any:
        """Return two vectors of float32s as bfloat16s, those of a lane side by side."""
        b = self.b
        halves = b.bitcast(self.round_to_pairs(first, second), ir.VectorType(I16, 2 * self.lanes))
        order = [lane + part for lane in range(self.lanes) for part in (0, self.lanes)]
        both = b.shuffle_vector(halves, halves, ir.Constant(ir.VectorType(I32, 2 * self.lanes), order))
        return b.bitcast(both, self.ints)

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

    def tile_offsets(self, panel_bytes: Any) -> list[Any]:
        """Return the offsets of all vectors of a step in panels that consist of tiles of 1 KiB (`amx`)."""
        half = self.b.sdiv(panel_bytes, I64(2))
        offsets = []
        for panel in range(self.num_panels):
            for vector in range(self.instructions.vectors):
                first = self.b.add(self.b.mul(panel_bytes, I64(panel)), self.b.mul(half, I64(vector // 2)))
                offsets.append(self.b.add(first, I64(vector % 2 * 1024)))
        return offsets


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


def emit_choice(count: int, emit: Callable[[Any, int, Sequence[Any]], None]) -> Callable[..., Any]:
    """Return the generator of an intrinsic without a result that runs the code of its first argument's number.

    `emit(builder, number, arguments)` emits that of each number below `count`, for the other arguments.
    """

    def generate(context: Any, builder: Any, _signature: Any, arguments: Sequence[Any]) -> Any:
        number, *rest = arguments
        after, nowhere = builder.append_basic_block("done"), builder.append_basic_block("unreachable")
        choice = builder.switch(number, nowhere)
        for place in range(count):
            block = builder.append_basic_block()
            choice.add_case(I64(place), block)
            builder.position_at_end(block)
            emit(builder, place, rest)
            builder.branch(after)
        builder.position_at_end(nowhere)
        builder.unreachable()
        builder.position_at_end(after)
        return context.get_dummy_value()

    return generate


class FloatBuilder:
    """Shorthands for IR of float32 vectors at addresses."""

    def __init__(self, builder: Any) -> None:
        self.ir = builder

    def address(self, base: Any, *offsets: Any) -> Any:
        """Return a sum of byte offsets, which are values or ints."""
        for offset in offsets:
            if isinstance(offset, int):
                if offset == 0:
                    continue
                offset = I64(offset)
            base = self.ir.add(base, offset)
        return base

    def load(self, address: Any, kind: Any = FLOATS) -> Any:
        found = self.ir.load(self.ir.inttoptr(address, kind.as_pointer()))
        found.align = 8 if kind is I64 else 4
        return found

    def store(self, value: Any, address: Any) -> None:
        stored = self.ir.store(value, self.ir.inttoptr(address, value.type.as_pointer()))
        stored.align = 4

    def call(self, name: str, *operands: Any) -> Any:
        kind = operands[0].type
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        function = cgutils.get_or_insert_function(
            self.ir.module, ir.FunctionType(kind, [kind] * len(operands)), f"llvm.{name}.{suffix}"
        )
        return self.ir.call(function, operands)

    def function(self, name: str, *operands: Any, result: Any = None) -> Any:
        """Call an instruction's function. Its result has the type of the first operand, or `result`."""
        kind = ir.FunctionType(result or operands[0].type, [operand.type for operand in operands])
        return self.ir.call(cgutils.get_or_insert_function(self.ir.module, kind, name), operands)

    def fetch(self, address: Any) -> None:
        """Fetch a cache line to the second cache."""
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(self.ir.module, kind, "llvm.prefetch.p0i8")
        place = self.ir.inttoptr(address, I8.as_pointer())
        self.ir.call(function, (place, I32(0), I32(2), I32(1)))

    def larger(self, x: Any, y: Any) -> Any:
        """Return the larger lanes; those of `y` where one is NaN."""
        return self.ir.select(self.ir.fcmp_ordered(">", x, y), x, y)

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        return self.ir.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def splat(self, value: Any) -> Any:
        nothing = ir.Constant(FLOATS, ir.Undefined)
        return self.shuffle(self.ir.insert_element(nothing, value, I32(0)), nothing, [0] * HOST.lanes)

    def constant(self, value: float) -> Any:
        return ir.Constant(FLOATS, [value] * HOST.lanes)

    def fold(self, value: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Combine a vector's lanes into one number, halves first."""
        lanes = HOST.lanes
        while lanes > 1:
            lanes //= 2
            value = combine(
                self.shuffle(value, value, list(range(lanes))),
                self.shuffle(value, value, list(range(lanes, 2 * lanes))),
            )
        return self.ir.extract_element(value, I32(0))

    def loop(self, count: Any, step: int, carried: Sequence[Any], body: Callable[..., Sequence[Any]]) -> list[Any]:
        """Append a loop of `body(index, *values)` for the indices 0, step, ... below `count`, at least one."""
        before, block = self.ir.block, self.ir.append_basic_block("loop")
        self.ir.branch(block)
        self.ir.position_at_end(block)
        index = self.ir.phi(I64)
        index.add_incoming(I64(0), before)
        phis = [self.ir.phi(value.type) for value in carried]
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        results = list(body(index, *phis))
        end = self.ir.block  # the body may have loops of its own
        following = self.ir.add(index, I64(step))
        index.add_incoming(following, end)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, end)
        after = self.ir.append_basic_block("after")
        self.ir.cbranch(self.ir.icmp_signed("<", following, count), block, after)
        self.ir.position_at_end(after)
        return results
