"""Product loops of ggml's block formats. The loop of a format is compiled, or loaded, when a matrix first has it.

Other loops call it by its address (`matmul`), so that they are compiled without the formats.

Legend: T rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from numba import types
from numba.extending import intrinsic

from ... import loops
from .block_formats import BLOCK_FORMATS
from .block_tiles import BlockWeights
from .instructions import HOST
from .tile import I64
from .tile_kernels import emit_function

_MOST_ROWS = 4  # of a kernel
_WIDTH = HOST.width
_FEW_ROWS = 64  # up to here a panel is read once, all units at a time
_BLOCK_ROWS, _BLOCK_INPUTS = 192, 1024
_FORMATS = list(BLOCK_FORMATS.values())


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
