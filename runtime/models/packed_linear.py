"""A dense linear layer whose weight is packed in panels for the loops of `kernels.cpu.products.matmul`, for CPUs.

The weight is held once. At few rows the loops read it as fast as memory allows; torch's products rearrange it in every
call or walk it in an order that memory is slow in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from ... import loops
from .linear import DenseLinear, Destination, Linear, total_bytes

if TYPE_CHECKING:
    from ...kernels.cpu.products.packed_matrix import PackedMatrix


def can_pack(device: torch.device | str, dtype: torch.dtype) -> bool:
    """Return True when weights of `dtype` on `device` can be packed."""
    return torch.device(device).type == "cpu" and dtype in (torch.float32, torch.bfloat16)


def pack_linear(linear: DenseLinear) -> Linear:
    """Return the layer with its weight packed; `linear` itself where packing is not possible."""
    if not can_pack(linear.weight.device, linear.weight.dtype):
        return linear
    packed = PackedLinear(linear)
    packed.finish()
    return packed


class PackedLinear:
    """A packed linear layer. It is filled as the dense layer that it is made of, which is freed when it is packed."""

    def __init__(self, dense: DenseLinear) -> None:
        self._dense: DenseLinear | None = dense
        self._bias, self.dtype = dense.bias, dense.weight.dtype
        self._matrix: PackedMatrix | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._matrix is None:
            assert self._dense is not None
            return self._dense(x)
        return self._multiply(x, self._matrix)

    @property
    def matrix(self) -> PackedMatrix | None:
        """The packed weight and bias, for compiled loops; None while they are not used."""
        return self._matrix

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        assert self._dense is not None, "weights must be loaded before packing"
        return self._dense.row_destinations(start, size)

    def finish(self) -> None:
        assert self._dense is not None, "packed twice"
        if loops.ready("ramiform.kernels"):
            self.use_loops()

    def use_loops(self) -> None:
        """Pack the weight, and compute with compiled loops from now on."""
        if self._dense is None:
            return
        from ...kernels.cpu.products.matmul import packed_matmul  # here, because these import numba
        from ...kernels.cpu.products.packed_matrix import PackedMatrix

        self._multiply = packed_matmul
        self._matrix = PackedMatrix.of_dense(self._dense.weight, self._bias, rows=self.dtype)
        self._dense = None

    def dense(self) -> DenseLinear:
        """Return a dense layer with the same weights, which may be changed."""
        if self._dense is not None:
            return self._dense
        assert self._matrix is not None
        return DenseLinear(self._matrix.dense().to(self.dtype), self._bias)

    @property
    def nbytes(self) -> int:
        if self._dense is not None:
            return total_bytes(self._dense.weight, self._bias)
        assert self._matrix is not None
        return self._matrix.nbytes


def use_loops(linears: Iterable[Linear]) -> None:
    """Have those of the layers that are packed compute with compiled loops from now on."""
    for linear in linears:
        if isinstance(linear, PackedLinear):
            linear.use_loops()


def packed_matrices(linears: Sequence[Linear]) -> list[PackedMatrix] | None:
    """Return the layers' packed matrices; None when the product of one of them is not computed by the packed loops."""
    matrices = [getattr(linear, "matrix", None) for linear in linears]
    packed = [matrix for matrix in matrices if matrix is not None]
    return packed if len(packed) == len(linears) else None
