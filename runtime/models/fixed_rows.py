"""A linear layer whose products all have the same shape, so that a token's numbers do not depend on who else is there:
libraries choose how they add up a product by its shape. Knows no architecture.

Legend: T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from ..parallel.linears import ColumnLinear, RowLinear
from .linear import Destination, Linear
from .mlp import DenseMlp
from .parameters import DecoderParameters, LayerParameters


@dataclass(frozen=True, slots=True)
class FixedRows:
    """Of so many rows at a time, the last ones zeros."""

    linear: Linear
    num_rows: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        T, size = x.shape[0], self.num_rows
        x = F.pad(x, (0, 0, 0, -T % size))
        parts = [self.linear(x[start : start + size]) for start in range(0, max(T, 1), size)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:T]

    def pieces(self, start: int, size: int) -> dict[str, Destination]:
        return self.linear.pieces(start, size)

    def finish(self) -> None:
        self.linear.finish()

    @property
    def nbytes(self) -> int:
        return self.linear.nbytes


def with_fixed_rows(parameters: DecoderParameters, num_rows: int) -> DecoderParameters:
    """The same parameters; every layer's products have `num_rows` rows. Of dense layers only."""

    def with_rows(linear: Linear) -> Linear:
        if isinstance(linear, ColumnLinear | RowLinear):
            return linear.mapped(with_rows)
        return FixedRows(linear, num_rows)

    def fixed(layer: LayerParameters) -> LayerParameters:
        assert isinstance(layer.mlp, DenseMlp)
        mlp = replace(layer.mlp, gate_up=with_rows(layer.mlp.gate_up), down=with_rows(layer.mlp.down))
        return replace(layer, qkv=with_rows(layer.qkv), o=with_rows(layer.o), mlp=mlp)

    return replace(parameters, layers=tuple(map(fixed, parameters.layers)))
