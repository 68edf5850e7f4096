"""Linear layers: their interface, the dense layer, and the destinations of their checkpoint tensors.

A layer is filled tensor by tensor. A `Destination` says which shape and type a stored tensor must have, and copies it
into place. No tensor is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F


class Destination(NamedTuple):
    """Target of one stored tensor. `put` copies it, and raises ValueError when its values cannot be used.

    A dimension of -1 has any size. `outputs` and `inputs` name the axis of the stored tensor that grows with the
    layer's, along which it may be cut.
    """

    shape: tuple[int, ...]
    put: Callable[[torch.Tensor], object]
    dtypes: tuple[torch.dtype, ...] | None = None  # None: any floating point, converted
    part: tuple[slice, ...] | None = None  # the part of the stored tensor to read; None: all
    outputs: int | None = 0
    inputs: int | None = 1
    other_shape: tuple[int, ...] | None = None  # that the tensor may have as well


class Loadable(Protocol):
    """A layer that is filled tensor by tensor."""

    def finish(self) -> None:
        """Prepare for the first product; called once when all tensors are in place."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that the products read."""
        ...


class Linear(Loadable, Protocol):
    """A linear layer, y = x W^T + b, in any weight format."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply [T, in] to [T, out], in the type of `x`."""
        ...

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        """Return the destinations of the rows [start, start + size), by the last part of the tensors' names."""
        ...


@dataclass(frozen=True, slots=True)
class DenseLinear:
    """A linear layer with a dense weight."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        part = self.weight[start : start + size]
        return {"weight": Destination(tuple(part.shape), part.copy_), **bias_destination(self.bias, start, size)}

    def finish(self) -> None:
        """Do nothing: dense weights are ready."""

    @property
    def nbytes(self) -> int:
        return total_bytes(self.weight, self.bias)


def bias_destination(bias: torch.Tensor | None, start: int, size: int) -> dict[str, Destination]:
    """Return the destination of some rows of a bias; empty without a bias."""
    if bias is None:
        return {}
    part = bias[start : start + size]
    return {"bias": Destination((size,), part.copy_, inputs=None)}


def stacked_destinations(prefix: str, names_sizes: Sequence[tuple[str, int]], linear: Linear) -> dict[str, Destination]:
    """Return the destinations of checkpoint modules that are one layer here, one below the other, by full tensor
    name."""
    parts: dict[str, Destination] = {}
    start = 0
    for name, size in names_sizes:
        parts |= {f"{prefix}.{name}.{last}": piece for last, piece in linear.row_destinations(start, size).items()}
        start += size
    return parts


def total_bytes(*tensors: torch.Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
