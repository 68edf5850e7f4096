"""A linear layer whose products all have the same shape, so that a token's numbers do not depend on who else is there:
libraries choose how they add up a product by its shape. Knows no architecture.

Legend: T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from ...kernels import Ops
from .linear import Destination, Filled, Linear
from .mlp import DenseMlp, Mlp
from .parameters import DecoderParameters, LayerParameters


@dataclass(frozen=True, slots=True)
class FixedRows:
    """Of so many rows at a time, the last ones zeros."""

    linear: Linear
    num_rows: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _in_fixed_rows(self.linear, x, self.num_rows)

    def pieces(self, start: int, size: int) -> dict[str, Destination]:
        return self.linear.pieces(start, size)

    def finish(self) -> None:
        self.linear.finish()

    @property
    def nbytes(self) -> int:
        return self.linear.nbytes


@dataclass(frozen=True, slots=True)
class FixedMlp:
    mlp: Mlp
    num_rows: int

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return _in_fixed_rows(lambda rows: self.mlp(rows, ops), x_TE, self.num_rows)

    def linears(self) -> Iterator[Filled]:
        return self.mlp.linears()

    def destinations(self, prefix: str) -> dict[str, Destination]:
        return self.mlp.destinations(prefix)


def _in_fixed_rows(product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, size: int) -> torch.Tensor:
    T = x.shape[0]
    x = F.pad(x, (0, 0, 0, -T % size))
    parts = [product(x[start : start + size]) for start in range(0, max(T, 1), size)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[:T]


def with_fixed_rows(parameters: DecoderParameters, num_rows: int) -> DecoderParameters:
    """The same parameters; every layer's products have `num_rows` rows. Of dense layers only."""

    def fixed(layer: LayerParameters) -> LayerParameters:
        assert isinstance(layer.mlp, DenseMlp)
        mlp = FixedMlp(layer.mlp, num_rows)
        return replace(layer, qkv=FixedRows(layer.qkv, num_rows), o=FixedRows(layer.o, num_rows), mlp=mlp)

    return replace(parameters, layers=tuple(map(fixed, parameters.layers)))
