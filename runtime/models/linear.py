"""Linear layers: their interface, the dense layer, and the destinations of their checkpoint tensors.

A layer is filled tensor by tensor. A `Destination` says which shape and type a stored tensor must have, and copies it
into place. No tensor is held twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


@dataclass(frozen=True, slots=True)
class _LinearOfParts:
    """Finishes and measures a linear layer of several parts, each in its own weight format."""

    parts: tuple[Linear, ...]
    sizes: tuple[int, ...]  # outputs of each part, or inputs

    def finish(self) -> None:
        for part in self.parts:
            part.finish()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


class JoinedLinear(_LinearOfParts):
    """A linear layer of several parts, one below the other; `sizes` are their outputs."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        """Return the destinations of rows, which must be those of one part."""
        for part, outputs in zip(self.parts, self.sizes, strict=True):
            if start < outputs:
                assert start + size <= outputs
                return part.row_destinations(start, size)
            start -= outputs
        raise AssertionError("the layer has fewer rows")


class SummedLinear(_LinearOfParts):
    """A linear layer of several parts, side by side; `sizes` are their inputs, and their outputs are added."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = x.split(self.sizes, dim=-1)
        y = self.parts[0](first.contiguous())
        for part, own in zip(self.parts[1:], others, strict=True):
            y = y + part(own.contiguous())
        return y

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        raise AssertionError("tensors belong to the parts")


@dataclass(frozen=True, slots=True)
class WrappedLinear:
    """Loads, finishes and measures the linear layer that a subclass computes in its own way."""

    linear: Linear

    def row_destinations(self, start: int, size: int) -> dict[str, Destination]:
        return self.linear.row_destinations(start, size)

    def finish(self) -> None:
        self.linear.finish()

    @property
    def nbytes(self) -> int:
        return self.linear.nbytes


@dataclass(frozen=True, slots=True)
class ScaledLinear(WrappedLinear):
    """A linear layer whose outputs, bias included, have factors."""

    factors_O: torch.Tensor | float  # float32: 16 bits would change all of an output's numbers by up to 0.4 %
    input_factor: float | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x if self.input_factor is None else x * self.input_factor)
        return (y * self.factors_O).to(y.dtype)


def linear_parts(linear: Linear) -> Iterator[Linear]:
    """Iterate over the layers that hold the weights of a layer."""
    match linear:
        case JoinedLinear(parts=parts) | SummedLinear(parts=parts):
            for part in parts:
                yield from linear_parts(part)
        case ScaledLinear(linear=inner):
            yield from linear_parts(inner)
        case _:
            yield linear


def in_order_of(to: Destination, order: torch.Tensor, name: str) -> Callable[[torch.Tensor], object]:
    """Return `to.put` for a tensor whose row `order[i]`, along the outputs, is the row i here.

    A tensor of fewer outputs has one for each block of rows, as the scales of FP8 by block. Raises ValueError, naming
    the tensor, when the blocks are not kept together.
    """
    if to.outputs is None or torch.equal(order, torch.arange(len(order))):
        return to.put
    axis, count = to.outputs, to.shape[to.outputs]
    if count != len(order):
        size = len(order) // count if count > 0 and len(order) % count == 0 else 1
        first = order[::size]
        if size == 1 or not torch.equal(order, (first[:, None] + torch.arange(size)).flatten()) or (first % size).any():
            raise ValueError(f"{name}: its rows are stored in another order than its format allows")
        order = first // size
    return lambda stored: to.put(stored.index_select(axis, order.to(stored.device)))


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
