"""Weights packed in panels for products of few rows, and the inner kernel: some rows times one panel of outputs.

A panel holds the weights of WIDTH outputs side by side, input by input. So a vector's lanes are outputs, and nothing is
added up across lanes. An output's sum runs over the inputs in their order, however many rows there are, so a row's
numbers are the same, bit for bit, alone and in a batch.

All sums of the inner kernel stay in registers. Compilers do not do that by themselves, so it is written in LLVM IR.

Legend: P panels, C inputs, W outputs of a panel, T rows, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

# [P, C, W]; uint16: the upper sixteen bits of float32s whose lower sixteen are zero.
PackedWeights = NDArray[np.float32] | NDArray[np.uint16]

_features = binding.get_host_cpu_features()
# Lanes of a vector, vectors of a panel, and the most rows at once. Rows times vectors is the number of sums; they leave
# a few of the 32 or 16 registers for weights and inputs.
LANES, VECTORS = (16, 4) if _features.get("avx512f") else (8, 2) if _features.get("avx2") else (4, 2)
WIDTH = LANES * VECTORS
MAX_ROWS = 6


def pack_weights(weight: torch.Tensor) -> PackedWeights:
    """Pack a float32 matrix [N, C]; zeros fill the last panel. Numbers that are bfloat16s take half of the memory."""
    N, C = weight.shape
    bits = np.zeros((-(-N // WIDTH) * WIDTH, C), dtype=np.uint32)
    bits[:N] = weight.detach().contiguous().numpy().view(np.uint32)
    panels = bits.reshape(-1, WIDTH, C).transpose(0, 2, 1)
    if np.bitwise_and(bits, 0xFFFF).any():
        return np.ascontiguousarray(panels).view(np.float32)
    return np.ascontiguousarray((panels >> 16).astype(np.uint16))


def with_same_dtype(weights: Sequence[PackedWeights]) -> list[PackedWeights]:
    """Widen the matrices to float32 if their dtypes differ, because a compiled loop takes one dtype for all."""
    if len({weight.dtype for weight in weights}) == 1:
        return list(weights)
    return [
        (weight.astype(np.uint32) << 16).view(np.float32) if weight.dtype == np.uint16 else weight for weight in weights
    ]


def for_both_weight_dtypes(signature: str) -> tuple[str, str]:
    """Return a loop's signatures for either dtype of packed weights; `signature` spells their type {}."""
    return signature.replace("{}", "float32[:,:,::1]"), signature.replace("{}", "uint16[:,:,::1]")


_FLOAT, _INDEX, _LANE = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_FLOATS = ir.VectorType(_FLOAT, LANES)


def panel_matmul(num_rows: int) -> Callable[..., None]:
    """Return a function for compiled loops that writes `y = x w^T + bias` for `num_rows` rows and one panel's outputs.

    Its arguments are weights [P, C, W], panel, bias [N], x [T, C], first row, y [T, N] and first output. Arrays are
    contiguous; `bias` and `y` have all outputs of the panel.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        def array(index: int) -> Any:
            return context.make_array(signature.args[index])(context, builder, args[index])

        def vector_at(data: Any, index: int, element: Any) -> Any:
            place = builder.gep(data, [_INDEX(index * LANES)])
            return builder.bitcast(place, ir.VectorType(element, LANES).as_pointer())

        def read(data: Any, index: int, element: Any) -> Any:
            found = builder.load(vector_at(data, index, element))
            found.align = 2 if element is not _FLOAT else 4
            return found

        weights, bias, x, y = array(0), array(2), array(3), array(5)
        _, panel, _, _, first_row, _, first_output = args
        num_inputs, x_stride, y_stride = (builder.extract_value(operand.shape, 1) for operand in (weights, x, y))
        rows = [builder.add(first_row, _INDEX(row)) for row in range(num_rows)]
        panel_data = builder.gep(weights.data, [builder.mul(panel, builder.mul(num_inputs, _INDEX(WIDTH)))])
        x_data = [builder.gep(x.data, [builder.mul(row, x_stride)]) for row in rows]
        bias_data = builder.gep(bias.data, [first_output])
        add_product = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fmuladd.v{LANES}f32"
        )

        first_sums = [read(bias_data, index, _FLOAT) for index in range(VECTORS)] * num_rows
        before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
        builder.branch(loop)
        builder.position_at_end(loop)
        c = builder.phi(_INDEX)
        c.add_incoming(_INDEX(0), before)
        sums = [builder.phi(_FLOATS) for _ in first_sums]
        for phi, value in zip(sums, first_sums, strict=True):
            phi.add_incoming(value, before)

        input_data = builder.gep(panel_data, [builder.mul(c, _INDEX(WIDTH))])
        if signature.args[0].dtype == types.uint16:
            bits = [read(input_data, index, ir.IntType(16)) for index in range(VECTORS)]
            w = [_widen(builder, half) for half in bits]
        else:
            w = [read(input_data, index, _FLOAT) for index in range(VECTORS)]
        new_sums = []
        for row, data in enumerate(x_data):
            broadcast = _broadcast(builder, builder.load(builder.gep(data, [c])))
            for index in range(VECTORS):
                new_sums.append(builder.call(add_product, [w[index], broadcast, sums[row * VECTORS + index]]))

        next_c = builder.add(c, _INDEX(1))
        c.add_incoming(next_c, loop)
        for phi, value in zip(sums, new_sums, strict=True):
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", next_c, num_inputs), loop, after)
        builder.position_at_end(after)
        for number, row in enumerate(rows):
            y_data = builder.gep(y.data, [builder.add(builder.mul(row, y_stride), first_output)])
            for index in range(VECTORS):
                store = builder.store(new_sums[number * VECTORS + index], vector_at(y_data, index, _FLOAT))
                store.align = 4
        return context.get_dummy_value()

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply_panel(_: Any, weights: Any, panel: Any, bias: Any, x: Any, row: Any, y: Any, output: Any) -> Any:
        return types.void(weights, types.int64, bias, x, types.int64, y, types.int64), generate

    return multiply_panel  # type: ignore[no-any-return]


def _widen(builder: Any, bits: Any) -> Any:
    """Return float32 lanes from their upper sixteen bits."""
    wide = ir.VectorType(_LANE, LANES)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), ir.Constant(wide, [16] * LANES)), _FLOATS)


def _broadcast(builder: Any, value: Any) -> Any:
    """Return a vector with the value in every lane."""
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(_LANE, LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(nothing, value, _LANE(0)), nothing, lanes)
