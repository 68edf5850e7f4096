"""A dense linear layer with its weight in oneDNN's memory layout, for CPUs.

torch's product of a few rows rearranges the weight in every call, or walks it in an order that memory is slow in.
Rearranged once, float32 is up to twice as fast at every number of rows, bfloat16 two to four times at few rows
(bench/results/offline_2core-cpu_202611.md). A small float32 weight is also kept for the plain loops of
`kernels.cpu.products`: products of a few rows are two to six times as fast again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ... import loops
from .linear import DenseLinear, Destination, Linear, total_bytes

if TYPE_CHECKING:
    from ...kernels.cpu.compiled import Floats
    from ...kernels.cpu.packed_weights import PackedWeights

_SMALL_BATCH = 8, 64  # most rows for the plain loops, which use one thread: when torch has many threads, and one
_MAX_COPIED_BYTES = 4 << 20  # weights up to this size are kept twice; for larger ones oneDNN is as fast at one row
_NUM_ROWS = 32  # rows of the products that the layout is chosen for; measured, no worse for 1 or 1,024


def uses_small_batch_loop(num_rows: int) -> bool:
    """Return True when the plain loops multiply so many rows faster than oneDNN."""
    most, alone = _SMALL_BATCH
    return num_rows <= most or (num_rows <= alone and torch.get_num_threads() == 1)


def can_pack(device: torch.device | str, dtype: torch.dtype) -> bool:
    """Return True when weights of `dtype` on `device` can be packed, and gain by it."""
    if torch.device(device).type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack_linear(linear: DenseLinear) -> Linear:
    """Return the layer with a packed copy of its weight; `linear` itself where packing is not possible."""
    if not can_pack(linear.weight.device, linear.weight.dtype):
        return linear
    packed = PackedLinear(linear)
    packed.finish()
    return packed


class PackedLinear:
    """A packed linear layer. It is filled as the dense layer that it is made of, which is freed when it is packed."""

    def __init__(self, dense: DenseLinear) -> None:
        self._dense: DenseLinear | None = dense
        self._bias = dense.bias
        self._packed = torch.empty(0)
        self.loop_weights: tuple[PackedWeights, Floats] | None = (
            None  # weight and bias for the plain loops, of small weights
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.loop_weights is not None and uses_small_batch_loop(len(x)):
            return self._multiply(x, *self.loop_weights)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return y

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        assert self._dense is not None, "weights must be loaded before packing"
        return self._dense.row_destinations(start, size)

    def finish(self) -> None:
        assert self._dense is not None, "packed twice"
        weight = self._dense.weight.detach()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _NUM_ROWS)
        if loops.ready("ramiform.kernels"):
            self._pack_for_loops(weight)
        self._dense = None

    def use_loops(self) -> None:
        """Compute with the plain loops from now on, where they are faster."""
        if self.loop_weights is None:
            self._pack_for_loops(self.dense().weight.detach())

    def _pack_for_loops(self, weight: torch.Tensor) -> None:
        if weight.dtype == torch.float32 and weight.nbytes <= _MAX_COPIED_BYTES:
            from ...kernels.cpu.matmul import packed_matmul  # here, because these import numba
            from ...kernels.cpu.packed_weights import pack_weights

            self._multiply = packed_matmul
            bias = weight.new_zeros(len(weight)) if self._bias is None else self._bias.detach().contiguous()
            self.loop_weights = pack_weights(weight), bias.numpy()

    def dense(self) -> DenseLinear:
        """Return a dense layer with the same weights, which may be changed."""
        return DenseLinear(self._packed.to_dense(), self._bias) if self._dense is None else self._dense

    @property
    def nbytes(self) -> int:
        return total_bytes(self._packed if self._dense is None else self._dense.weight, self._bias)
