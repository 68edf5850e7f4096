"""Machine code of product kernels: some rows times one panel of outputs, all sums in registers.

Compilers do not keep that many sums in registers by themselves, so the kernels are written in LLVM IR. `emit_tile`
knows llvmlite only, so that code for any processor can be made anywhere; `tile_kernels` makes a function for numba's
loops.

A vector's lanes are outputs of a panel, and nothing is added up across lanes. An output's sum runs over the inputs in
their order: through the steps of a block of inputs, and on from the sums in `y` where the block before stopped. So a
row's numbers are the same, bit for bit, however many rows and blocks there are. Of float32 rows, each `SUM_STEPS` steps
are summed by themselves, and blocks begin with one of these: one sum over all inputs of a wide layer would lose four
times as much to rounding.

A step of float weights takes the inputs of one 32-bit lane: one float32 or two bfloat16. A step of integers takes a
group of inputs: products with the rows' int8 codes are summed exactly in int32, then scaled and added by operations
that are written as fused or not, so that all instruction sets return the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..instructions import Instructions
from .tile import F32, I8, I16, I32, I64, Tile, TileArguments, emit_choice, load_half

INTEGERS = ("int8", "int8_groups", "int4")
SUM_STEPS = 128  # of float32 rows, after which a sum is added to that of the steps before


class Weights(Protocol):
    """Weights of another module's format, named by `str`."""

    def add_products(self, tile: Tile, arguments: TileArguments, sums: list[Any]) -> list[Any]:
        """Emit code that adds the products of the steps [begin, end) to the sums; return them."""
        ...


def emit_tile(
    builder: Any,
    instructions: Instructions,
    weights: str | Weights,
    num_rows: int,
    num_panels: int,
    arguments: TileArguments,
) -> None:
    """Emit a kernel that writes the sums of `num_rows` rows and `num_panels` adjacent panels to y.

    `weights` is "float32"; "bfloat16" with float32 rows; "bfloat16_dot" with rows of bfloat16 pairs for dot products;
    "int8" (scaled by output), "int8_groups" (and by group), "int4" (and with a base by group) with rows of int8.
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
    is_integer = isinstance(weights, str) and weights in INTEGERS
    bias = [tile.load(tile.pointer(a.bias), offset, tile.floats, 4) for offset in offsets]
    start = [ir.Constant(tile.floats, None)] * count if is_integer else bias
    # Lines of y may be far from the cache: fetched while sums are taken, and not read before they have any.
    for row in rows:
        tile.fetch_to_write(row, -(-4 * width // 64))
    before, going_on, ready = b.block, b.append_basic_block("going_on"), b.append_basic_block("ready")
    b.cbranch(is_first, ready, going_on)
    b.position_at_end(going_on)
    stored = [tile.load(row, offset, tile.floats, 4) for row in rows for offset in offsets]
    b.branch(ready)
    b.position_at_end(ready)
    sums = []
    for place, value in enumerate(stored):
        total = b.phi(tile.floats)
        total.add_incoming(start[place % count], before)
        total.add_incoming(value, going_on)
        sums.append(total)
    if not isinstance(weights, str):
        sums = weights.add_products(tile, a, sums)
    elif is_integer:
        sums = _integer_sums(tile, a, weights, sums)
        is_last = b.icmp_signed("==", a.end, a.steps)
        scales = [tile.load(tile.pointer(a.scales), offset, tile.floats, 4) for offset in offsets]
        for index, total in enumerate(sums):
            scaled = b.fadd(b.fmul(total, scales[index % count]), bias[index % count])
            sums[index] = b.select(is_last, scaled, total)
    else:
        sums = _float_sums(tile, a, weights, sums)
    for index, total in enumerate(sums):
        tile.store(total, rows[index // count], offsets[index % count])
    with b.if_then(b.not_(is_whole), likely=False):
        for own, row in zip(own_rows, rows, strict=True):
            _copy(tile, own, row, partial_bytes)


def _float_sums(tile: Tile, a: TileArguments, weights: str, sums: list[Any]) -> list[Any]:
    """Add the products of all steps to the sums."""
    b, count = tile.b, tile.num_vectors
    codes, ahead = tile.pointer(a.codes), tile.pointer(a.ahead)
    x_rows = [tile.pointer(b.add(a.x, b.mul(a.x_bytes, I64(row)))) for row in range(tile.num_rows)]
    in_tiles = weights == "bfloat16_dot" and tile.instructions.tiles
    offsets = tile.tile_offsets(a.panel_bytes) if in_tiles else tile.vector_offsets(a.panel_bytes, 4)

    def step(index: Any, sums: list[Any]) -> list[Any]:
        step_bytes = 2 * 64 if in_tiles else 4 * tile.instructions.width
        coming = here = b.gep(codes, [b.mul(index, I64(step_bytes))])
        if in_tiles:  # of 16 steps
            here = b.gep(here, [b.mul(b.and_(index, I64(15)), I64(64 - step_bytes))])
        kind = tile.floats if weights == "float32" else tile.ints
        w = [tile.load(here, offset, kind, 4) for offset in offsets]
        if tile.num_panels > 1:
            tile.prefetch(coming, [*offsets[:: 2 if in_tiles else tile.instructions.vectors]], step_bytes)
        else:
            tile.fetch(b.gep(ahead, [b.mul(index, a.ahead_bytes)]), tile.instructions.ahead_lines)
        new = list(sums)

        def add_products(factors: Sequence[Any], inputs: list[Any]) -> None:
            for row, value in enumerate(inputs):
                for vector, factor in enumerate(factors):
                    place = row * count + vector
                    new[place] = tile.multiply_add(factor, value, new[place])

        def floats_of_rows(per_step: int, number: int) -> list[Any]:
            offset = b.add(b.mul(index, I64(4 * per_step)), I64(4 * number))
            return [tile.broadcast(tile.load(x, offset, F32, 4)) for x in x_rows]

        if weights == "float32":
            add_products(w, floats_of_rows(1, 0))
        elif weights == "bfloat16":
            low, high = zip(*map(tile.halves, w), strict=True)
            add_products(low, floats_of_rows(2, 0))
            add_products(high, floats_of_rows(2, 1))
        else:
            offset = b.mul(index, I64(4))
            for row, x in enumerate(x_rows):
                pairs = tile.broadcast(tile.load(x, offset, I32, 4))
                for vector, weight in enumerate(w):
                    place = row * count + vector
                    new[place] = tile.add_pairs(new[place], weight, pairs)
        return new

    if weights == "bfloat16_dot":
        return tile.loop(a.begin, a.end, sums, step)

    # On the stack: the registers are for the sums that are taken.
    totals, size = _buffer(b, len(sums) * tile.lanes), 4 * tile.lanes
    nothing = ir.Constant(tile.floats, None)
    for place, value in enumerate(sums):
        tile.store(value, totals, I64(size * place))

    def with_totals(values: list[Any]) -> list[Any]:
        return [b.fadd(tile.load(totals, I64(size * p), tile.floats, 4), value) for p, value in enumerate(values)]

    def step_of_some(index: Any, sums: list[Any]) -> list[Any]:
        new = step(index, sums)
        before, full, after = b.block, b.append_basic_block("full"), b.append_basic_block("added")
        is_last = b.icmp_signed("==", b.and_(index, I64(SUM_STEPS - 1)), I64(SUM_STEPS - 1))
        b.cbranch(is_last, full, after)
        b.position_at_end(full)
        for place, value in enumerate(with_totals(new)):
            tile.store(value, totals, I64(size * place))
        b.branch(after)
        b.position_at_end(after)
        found = []
        for value in new:
            merged = b.phi(tile.floats)
            merged.add_incoming(value, before)
            merged.add_incoming(nothing, full)
            found.append(merged)
        return found

    return with_totals(tile.loop(a.begin, a.end, [nothing] * len(sums), step_of_some))


def _integer_sums(tile: Tile, a: TileArguments, weights: str, sums: list[Any]) -> list[Any]:
    """Add the scaled products of all groups to the sums.

    A row has its int8 codes, then a float32 scale and then an int32 sum of codes of each group. Weights of int8 are
    stored as code + 128, those of int4 as code + 8. A panel's scales are a float32 by output, then float16 by group and
    output; its bases are float16.
    """
    b, count, width = tile.b, tile.num_vectors, tile.instructions.width
    codes, scales, bases, ahead = (tile.pointer(address) for address in (a.codes, a.scales, a.bases, a.ahead))
    rows = [tile.pointer(b.add(a.x, b.mul(a.x_bytes, I64(row)))) for row in range(tile.num_rows)]
    row_scales_offset = b.mul(a.steps, a.group)
    row_sums_offset = b.add(row_scales_offset, b.mul(a.steps, I64(4)))
    is_int4 = weights == "int4"
    num_steps = _steps_of_block(tile, is_int4)
    block_inputs = num_steps * (8 if is_int4 else 4)
    num_blocks = b.sdiv(a.group, I64(block_inputs))
    block_bytes = num_steps * 4 * width

    def group(index: Any, sums: list[Any]) -> list[Any]:
        group_offset = b.mul(index, I64(4))
        row_scales = [tile.load(row, b.add(row_scales_offset, group_offset), F32, 4) for row in rows]
        row_sums = [tile.load(row, b.add(row_sums_offset, group_offset), I32, 4) for row in rows]
        excess = 8 if is_int4 else 0 if tile.instructions.byte_dot == "avx2" else 128
        first = [tile.broadcast(b.mul(total, I32(-excess))) for total in row_sums for _ in range(count)]
        first_block = b.mul(index, num_blocks)

        def block(number: Any, totals: list[Any]) -> list[Any]:
            here = b.gep(codes, [b.mul(number, I64(block_bytes))])
            first_step = b.mul(number, I64(num_steps))
            for step in range(num_steps):
                place = b.mul(b.add(first_step, I64(step)), a.ahead_bytes)
                tile.fetch(b.gep(ahead, [place]), tile.instructions.ahead_lines)
            inputs = [b.gep(row, [b.mul(number, I64(block_inputs))]) for row in rows]
            return add_block(tile, here, inputs, totals, num_steps, is_int4)

        totals = tile.loop(first_block, b.add(first_block, num_blocks), first, block)
        first_half = b.mul(index, I64(2 * width))
        places = [b.add(first_half, I64(2 * tile.lanes * vector)) for vector in range(count)]
        new = list(sums)
        if weights != "int8":
            by_group = b.gep(scales, [I64(4 * width)])
            w_scales = [load_half(tile, by_group, place) for place in places]
        if is_int4:
            w_bases = [load_half(tile, bases, place) for place in places]
        for row in range(tile.num_rows):
            x_scale = tile.broadcast(row_scales[row])
            x_sum = tile.broadcast(b.sitofp(row_sums[row], F32))
            for vector in range(count):
                place = row * count + vector
                product = b.sitofp(totals[place], tile.floats)
                if weights != "int8":
                    product = b.fmul(product, w_scales[vector])
                if is_int4:
                    product = tile.fused(x_sum, w_bases[vector], product)
                if weights == "int8":
                    new[place] = b.fadd(new[place], b.fmul(product, x_scale))
                else:
                    new[place] = tile.fused(product, x_scale, new[place])
        return new

    return tile.loop(a.begin, a.end, sums, group)


def _steps_of_block(tile: Tile, is_int4: bool) -> int:
    """Return how many 32-bit lanes of an output a round of the inner loop takes, of the 8 or 4 of 32 inputs."""
    if tile.instructions.emulated:
        return 1
    if is_int4:
        return 4
    return 8 if tile.num_rows == 1 else 4 if tile.num_rows <= 3 else 2


def add_block(tile: Tile, codes: Any, inputs: list[Any], totals: list[Any], num_steps: int, is_int4: bool) -> list[Any]:
    """Add the products of a round's inputs to the int32 sums."""
    b, count, instructions = tile.b, tile.num_vectors, tile.instructions
    size = 4 * tile.lanes
    totals = list(totals)
    if instructions.byte_dot == "avx2":
        pairs_of_bytes, pairs_of_words = (
            ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")
            if tile.lanes == 8
            else ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512")
        )
        words = ir.VectorType(I16, 2 * tile.lanes)
        ones = ir.Constant(words, [1] * 2 * tile.lanes)

        def widened(pairs: Any) -> Any:
            return tile.call(pairs_of_words, tile.ints, pairs, ones)

    if is_int4:
        nibbles = tile.constant(0x0F0F0F0F)
        # Sums of eight pairs of products, 8 * 2 * 15 * 127, fit sixteen bits.
        short: list[Any] = [None] * len(totals)
        for step in range(num_steps):
            both = [tile.load(codes, I64((step * count + vector) * size), tile.ints, 4) for vector in range(count)]
            low = [b.and_(value, nibbles) for value in both]
            high = [b.and_(b.lshr(value, tile.constant(4)), nibbles) for value in both]
            for half, weights in enumerate((low, high)):
                for row, data in enumerate(inputs):
                    x = tile.broadcast(tile.load(data, I64(8 * step + 4 * half), I32, 4))
                    for vector, w in enumerate(weights):
                        place = row * count + vector
                        if instructions.byte_dot == "avx2":
                            pairs = tile.call(pairs_of_bytes, words, b.bitcast(w, tile.bytes), b.bitcast(x, tile.bytes))
                            short[place] = pairs if short[place] is None else b.add(short[place], pairs)
                        else:
                            totals[place] = add_dot(tile, totals[place], w, x)
        if instructions.byte_dot == "avx2":
            totals = [b.add(total, widened(pairs)) for total, pairs in zip(totals, short, strict=True)]
        return totals

    for step in range(num_steps):
        w = [tile.load(codes, I64((step * count + vector) * size), tile.ints, 4) for vector in range(count)]
        xs = [tile.broadcast(tile.load(data, I64(4 * step), I32, 4)) for data in inputs]
        if instructions.byte_dot != "avx2":
            for place in range(len(totals)):
                totals[place] = add_dot(tile, totals[place], w[place % count], xs[place // count])
            continue
        # |w| |x| <= 128 * 127, so the sums of two products fit sixteen bits.
        signed = [b.bitcast(b.xor(value, tile.constant(-0x7F7F7F80)), tile.bytes) for value in w]
        zero = ir.Constant(tile.bytes, None)
        is_negative = [b.icmp_signed("<", value, zero) for value in signed]
        magnitudes = [b.select(sign, b.sub(zero, v), v) for sign, v in zip(is_negative, signed, strict=True)]
        for row, data in enumerate(xs):
            x = b.bitcast(data, tile.bytes)
            for vector in range(count):
                if tile.lanes == 8:
                    factor = tile.call("llvm.x86.avx2.psign.b", tile.bytes, x, signed[vector])
                else:
                    factor = b.select(is_negative[vector], b.sub(zero, x), x)
                pairs = tile.call(pairs_of_bytes, words, magnitudes[vector], factor)
                totals[row * count + vector] = b.add(totals[row * count + vector], widened(pairs))
    return totals


def add_dot(tile: Tile, total: Any, w: Any, x: Any) -> Any:
    """Add the products of four unsigned with four signed bytes in each lane."""
    b = tile.b
    if tile.instructions.byte_dot == "vnni" and not tile.instructions.emulated:
        return tile.call(f"llvm.x86.avx512.vpdpbusd.{32 * tile.lanes}", tile.ints, total, w, x)
    for number in range(4):
        weight = b.and_(b.lshr(w, tile.constant(8 * number)), tile.constant(255))
        factor = b.ashr(b.shl(x, tile.constant(24 - 8 * number)), tile.constant(24))
        total = b.add(total, b.mul(weight, factor))
    return total


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


def emit_function(
    module: Any, instructions: Instructions, weights: str | Weights, num_rows: int, num_panels: int
) -> Any:
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

    most, kinds = max(map(len, sizes.values())), list(sizes.items())

    def emit(builder: Any, place: int, arguments: Sequence[Any]) -> None:
        weights, blocks = kinds[place // most]
        if place % most < len(blocks):
            builder.call(emit_function(builder.module, instructions, weights, *blocks[place % most]), arguments)

    kernels = emit_choice(most * len(kinds), emit)

    def generate(context: Any, builder: Any, signature: Any, arguments: Sequence[Any]) -> Any:
        number, size, *rest = arguments
        return kernels(context, builder, signature, [builder.add(builder.mul(number, I64(most)), size), *rest])

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
        group: Any,
        outputs: Any,
        ahead: Any,
        ahead_bytes: Any,
    ) -> Any:
        return types.void(*[types.int64] * (2 + len(TileArguments._fields))), generate

    return multiply_tile  # type: ignore[no-any-return]
