"""A linear layer of ggml's block formats, kept in the bytes of its file, for CPUs. An embedding may be one too.

Legend: T tokens, V vocabulary, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from ....kernels.cpu.products.block_formats import BLOCK_FORMATS
from ..linear import Destination, bias_destination

if TYPE_CHECKING:
    from ....kernels.cpu.products.packed_matrix import PackedMatrix

STORED_BLOCKS = "blocks"  # last part of a tensor's name where its rows are read as they are stored


class BlockLinear:
    """A linear layer of one or several parts below each other, each with a format of its own.

    It is filled with the stored rows. `finish` packs them for the compiled loops, which multiply them by rows rounded
    to int8 by group of 32.
    """

    def __init__(
        self, formats: Sequence[str], sizes: Sequence[int], inputs: int, bias: bool, *, dtype: torch.dtype
    ) -> None:
        """`sizes` are the parts' outputs."""
        merged = [
            (name, sum(size for _, size in run))
            for name, run in groupby(zip(formats, sizes, strict=True), lambda part: part[0])
        ]
        self._parts = [
            (name, torch.empty((size, BLOCK_FORMATS[name].row_bytes(inputs)), dtype=torch.uint8))
            for name, size in merged
        ]
        self.outputs = sum(sizes)
        self._dtype = dtype
        self._bias = torch.empty(self.outputs, dtype=dtype) if bias else None
        self.matrix: PackedMatrix | None = None  # the whole layer, packed

    @staticmethod
    def fits(formats: Sequence[str], sizes: Sequence[int], inputs: int) -> bool:
        """Return True if there is such a layer: blocks fill its rows, and parts of one format fill their panels."""
        from ....kernels.cpu.products.packed_matrix import WIDTH

        ends, end = [], 0
        for index, size in enumerate(sizes):
            end += size
            if index + 1 < len(sizes) and formats[index] != formats[index + 1]:
                ends.append(end)
        return all(inputs % BLOCK_FORMATS[name].block == 0 for name in formats) and all(e % WIDTH == 0 for e in ends)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from ....kernels.cpu.products.matmul import packed_matmul  # here, because it imports numba

        assert self.matrix is not None, "not finished"
        return packed_matmul(x, self.matrix)

    def rows(self, ids_T: torch.Tensor) -> torch.Tensor:
        """Return rows of the weight, those of an embedding, in the model's dtype."""
        assert self.matrix is not None, "not finished"
        return self.matrix.weights(ids_T).to(self._dtype)

    def dense(self) -> torch.Tensor:
        """Return the whole weight."""
        every = torch.arange(self.outputs)
        return torch.cat([self.rows(some) for some in every.split(4096)])

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        first, rows = 0, None
        for _, stored in self._parts:
            if first <= start and start + size <= first + len(stored):
                rows = stored[start - first : start - first + size]
            first += len(stored)
        assert rows is not None, "rows of several formats"
        pieces = {STORED_BLOCKS: Destination(tuple(rows.shape), rows.copy_, (torch.uint8,))}
        return {**pieces, **bias_destination(self._bias, start, size)}

    def finish(self) -> None:
        if self.matrix is not None:  # an embedding that is the head too
            return
        from ....kernels.cpu.products.packed_matrix import PackedMatrix

        self.matrix = PackedMatrix.of_blocks(self._parts, self._bias)
        self._parts = []

    @property
    def nbytes(self) -> int:
        assert self.matrix is not None, "not finished"
        return self.matrix.nbytes
