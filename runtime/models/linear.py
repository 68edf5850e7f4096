"""A linear layer as one value: its weights, however stored, and their product. Knows no architecture and no file.

A layer is filled piece by piece, from what a checkpoint stores of it: a `Destination` says which shape and type a
stored tensor must have, and puts it into its place. Nothing is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F


class Destination(NamedTuple):
    """Where a stored tensor goes. `put` raises ValueError, saying why, when its values cannot be used.

    `outputs` and `inputs` say which axis of the stored tensor grows with the layer's: it may be cut along that one.
    """

    shape: tuple[int, ...]
    put: Callable[[torch.Tensor], object]
    dtypes: tuple[torch.dtype, ...] | None = None  # None: any of floating point, which is converted
    part: tuple[slice, ...] | None = None  # of what has that shape, that which is read and put; None: all
    outputs: int | None = 0
    inputs: int | None = 1


class Loadable(Protocol):
    """What is filled piece by piece."""

    def finish(self) -> None:
        """Called once, when every piece is in its place, before the first product."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of what products read."""
        ...


class Linear(Loadable, Protocol):
    """y = x W^T + b. Which numbers W is made of, only the layer knows."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in] to [T, out], in the type of `x`."""
        ...

    def pieces(self, start: int, size: int) -> dict[str, Destination]:
        """What must be stored for the rows [start, start + size), by the names' last part."""
        ...


@dataclass(frozen=True, slots=True)
class DenseLinear:
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def pieces(self, start: int, size: int) -> dict[str, Destination]:
        part = self.weight[start : start + size]
        return {"weight": Destination(tuple(part.shape), part.copy_), **bias_destination(self.bias, start, size)}

    def finish(self) -> None:
        """Nothing is left to do."""

    @property
    def nbytes(self) -> int:
        return total_bytes(self.weight, self.bias)


def bias_destination(bias: torch.Tensor | None, start: int, size: int) -> dict[str, Destination]:
    if bias is None:
        return {}
    part = bias[start : start + size]
    return {"bias": Destination((size,), part.copy_, inputs=None)}


def stacked_destinations(prefix: str, names_sizes: Sequence[tuple[str, int]], linear: Linear) -> dict[str, Destination]:
    """Of a layer that is several of the checkpoint's, one below the other: each one's pieces, by their whole names."""
    parts: dict[str, Destination] = {}
    start = 0
    for name, size in names_sizes:
        parts |= {f"{prefix}.{name}.{last}": piece for last, piece in linear.pieces(start, size).items()}
        start += size
    return parts


def total_bytes(*tensors: torch.Tensor | None) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
