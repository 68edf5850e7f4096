"""Machine code of product kernels: some rows times one panel of outputs, all sums in registers.

Compilers do not keep that many sums in registers by themselves, so the kernels are written in LLVM IR. `emit_tile`
knows llvmlite only, so that code for any processor can be made anywhere; `tile_kernels` makes a function for numba's
loops.

A vector's lanes are outputs of a panel, and nothing is added up across lanes. An output's sum runs over the inputs in
their order: through the steps of a block of inputs, and on from the sums in `y` where the block before stopped. So a
row's numbers are the same, bit for bit, however many rows and blocks there are.

A step takes the inputs of one 32-bit lane of weights: one float32, two bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .instructions import Instructions

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()


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
    outputs: Any  # of the panel that exist; others are not written


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


def emit_tile(
    builder: Any, instructions: Instructions, weights: str, num_rows: int, num_panels: int, arguments: TileArguments
) -> None:
    """Emit a kernel that writes the sums of `num_rows` rows and `num_panels` adjacent panels to y.

    `weights` is "float32", or "bfloat16" with float32 rows or, where the instructions have a dot product, rows of
    bfloat16 pairs ("bfloat16_dot").
    """
    tile = Tile(builder, instructions, num_rows, num_panels)
    b, a = builder, arguments
    width, count = instructions.width * num_panels, tile.num_vectors
    is_first = b.icmp_signed("==", a.begin, I64(0))
    is_whole = b.icmp_signed(">=", a.outputs, I64(width))

    # Rows of y, or of a buffer where y lacks outputs of the last panel.
    buffer = _buffer(b, num_rows * width)
    own_rows = [tile.pointer(b.add(a.y, b.mul(a.y_bytes, I64(row)))) for row in range(num_rows)]
    rows = [b.select(is_whole, own, b.gep(buffer, [I64(4 * width * row)])) for row, own in enumerate(own_rows)]
    partial_bytes = b.mul(a.outputs, I64(4))
    with b.if_then(b.not_(is_whole), likely=False):
        for own, row in zip(own_rows, rows, strict=True):
            _copy(tile, row, own, partial_bytes)

    offsets = [I64(4 * tile.lanes * index) for index in range(count)]
    bias = tile.pointer(a.bias)
    first = [tile.load(bias, offset, tile.floats, 4) for offset in offsets]
    sums = [
        b.select(is_first, start, tile.load(row, offset, tile.floats, 4))
        for row in rows
        for offset, start in zip(offsets, first, strict=True)
    ]
    sums = _float_sums(tile, a, weights, sums)
    for index, total in enumerate(sums):
        tile.store(total, rows[index // count], offsets[index % count])
    with b.if_then(b.not_(is_whole), likely=False):
        for own, row in zip(own_rows, rows, strict=True):
            _copy(tile, own, row, partial_bytes)


def _float_sums(tile: Tile, a: TileArguments, weights: str, sums: list[Any]) -> list[Any]:
    """Add the products of all steps to the sums."""
    b, count = tile.b, tile.num_vectors
    codes = tile.pointer(a.codes)
    x_rows = [tile.pointer(b.add(a.x, b.mul(a.x_bytes, I64(row)))) for row in range(tile.num_rows)]
    offsets = tile.vector_offsets(a.panel_bytes, 4)

    def step(index: Any, sums: list[Any]) -> list[Any]:
        here = b.gep(codes, [b.mul(index, I64(4 * tile.instructions.width))])
        kind = tile.floats if weights == "float32" else tile.ints
        w = [tile.load(here, offset, kind, 4) for offset in offsets]
        new = list(sums)

        def add_products(factors: list[Any], inputs: list[Any]) -> None:
            for row, value in enumerate(inputs):
                for vector, factor in enumerate(factors):
                    place = row * count + vector
                    new[place] = tile.multiply_add(factor, value, new[place])

        def floats_of_rows(per_step: int, number: int) -> list[Any]:
            offset = b.add(b.mul(index, I64(4 * per_step)), I64(4 * number))
            return [tile.broadcast(tile.load(x, offset, F32, 4)) for x in x_rows]

        def halves(pairs: list[Any]) -> tuple[list[Any], list[Any]]:
            low = [b.bitcast(b.shl(pair, tile.constant(16)), tile.floats) for pair in pairs]
            high = [b.bitcast(b.and_(pair, tile.constant(-65536)), tile.floats) for pair in pairs]
            return low, high

        if weights == "float32":
            add_products(w, floats_of_rows(1, 0))
        elif weights == "bfloat16":
            low, high = halves(w)
            add_products(low, floats_of_rows(2, 0))
            add_products(high, floats_of_rows(2, 1))
        else:
            offset = b.mul(index, I64(4))
            pairs = [tile.broadcast(tile.load(x, offset, I32, 4)) for x in x_rows]
            if tile.instructions.emulated:
                for factors, inputs in zip(halves(w), halves(pairs), strict=True):
                    add_products(factors, inputs)
            else:
                dots = ir.VectorType(_BFloat(), 2 * tile.lanes)
                for row, pair in enumerate(pairs):
                    for vector, weight in enumerate(w):
                        place = row * count + vector
                        new[place] = tile.call(
                            f"llvm.x86.avx512bf16.dpbf16ps.{32 * tile.lanes}",
                            tile.floats,
                            new[place],
                            b.bitcast(weight, dots),
                            b.bitcast(pair, dots),
                        )
        return new

    return tile.loop(a.begin, a.end, sums, step)


def _buffer(builder: Any, num_floats: int) -> Any:
    """Reserve floats on the stack, once for all calls of the function."""
    with builder.goto_entry_block():
        buffer = builder.alloca(ir.ArrayType(F32, num_floats))
    return builder.bitcast(buffer, I8.as_pointer())


def _copy(tile: Tile, to: Any, source: Any, num_bytes: Any) -> None:
    """Copy some floats one by one: they are few, and memcpy may not be there to call."""
    b = tile.b

    def body(index: Any, _: list[Any]) -> list[Any]:
        offset = b.mul(index, I64(4))
        tile.store(tile.load(source, offset, F32, 4), to, offset)
        return []

    tile.loop(I64(0), b.sdiv(num_bytes, I64(4)), [], body)


def emit_function(module: Any, instructions: Instructions, weights: str, num_rows: int, num_panels: int) -> Any:
    """Return the module's function of a kernel, which takes `TileArguments`; it is emitted by the first call."""
    name = f"ramiform.{weights}.{num_rows}x{num_panels}"
    if (function := module.globals.get(name)) is None:
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(TileArguments._fields))
        function = ir.Function(module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block())
        emit_tile(builder, instructions, weights, num_rows, num_panels, TileArguments(*function.args))
        builder.ret_void()
    return function


def tile_kernels(instructions: Instructions, sizes: dict[str, list[tuple[int, int]]]) -> Callable[..., None]:
    """Return a function for compiled loops that runs one of several kernels.

    `sizes` has the kernels' numbers of rows and of panels by kind of weights. The function takes the number of the
    kind, the kernel's number within the kind, and `TileArguments`.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        number, size, *rest = arguments
        most = max(map(len, sizes.values()))
        after, nowhere = builder.append_basic_block("done"), builder.append_basic_block("unreachable")
        choice = builder.switch(builder.add(builder.mul(number, I64(most)), size), nowhere)
        for kind, (weights, blocks) in enumerate(sizes.items()):
            for place, (num_rows, num_panels) in enumerate(blocks):
                block = builder.append_basic_block()
                choice.add_case(I64(kind * most + place), block)
                builder.position_at_end(block)
                builder.call(emit_function(builder.module, instructions, weights, num_rows, num_panels), rest)
                builder.branch(after)
        builder.position_at_end(nowhere)
        builder.unreachable()
        builder.position_at_end(after)
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply_tile(
        _: Any,
        kind: Any,
        kernel: Any,
        codes: Any,
        panel_bytes: Any,
        scales: Any,
        bases: Any,
        bias: Any,
        x: Any,
        x_bytes: Any,
        y: Any,
        y_bytes: Any,
        begin: Any,
        end: Any,
        steps: Any,
        outputs: Any,
    ) -> Any:
        return types.void(*[types.int64] * (2 + len(TileArguments._fields))), generate

    return multiply_tile  # type: ignore[no-any-return]
