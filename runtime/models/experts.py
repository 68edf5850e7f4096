"""The same linear layer of every expert of a mixture, as one value: stacked when dense, side by side when quantised.

Legend: T tokens, N experts, P pairs of a token and one of its experts, O outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ... import kernels
from .linear import DenseLinear, Filled, Linear
from .quantised.factory import make_linear
from .quantised.scheme import Quantisation


class ExpertLinear(Filled, Protocol):
    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None) -> torch.Tensor:
        """[P, O]: row p is expert n's product of `x[rows_P[p]]`, n the expert whose rows end behind p; of `x[p]` when
        `rows_P` is None."""
        ...

    def expert(self, index: int) -> Linear:
        """One expert's, to be filled."""
        ...


@dataclass(frozen=True, slots=True)
class StackedExperts:
    weight_NOC: torch.Tensor

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None) -> torch.Tensor:
        return kernels.grouped_matmul(x, self.weight_NOC, ends_N, rows_P)

    def expert(self, index: int) -> Linear:
        return DenseLinear(self.weight_NOC[index])

    def finish(self) -> None:
        """Nothing is left to do."""

    @property
    def nbytes(self) -> int:
        return self.weight_NOC.nbytes


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """Of few bits: each expert's own product. Which experts have tokens is read back from the device."""

    linears: tuple[Linear, ...]

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None) -> torch.Tensor:
        x_PC = x if rows_P is None else x[rows_P]
        starts_ends = kernels.groups(ends_N)
        return torch.cat([self.linears[n](x_PC[start:end]) for n, start, end in starts_ends])

    def expert(self, index: int) -> Linear:
        return self.linears[index]

    def finish(self) -> None:
        for linear in self.linears:
            linear.finish()

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in self.linears)


def make_experts(
    quantisation: Quantisation | None,
    modules: Sequence[Sequence[str]],
    outputs: int,
    inputs: int,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> ExpertLinear:
    """Unfilled layers, one for each expert's `modules`. Raises ValueError, naming them, when a scheme does not fit."""
    if quantisation is None or all(quantisation.scheme_of(name) is None for names in modules for name in names):
        return StackedExperts(torch.empty((len(modules), outputs, inputs), device=device, dtype=dtype))
    return SeparateExperts(
        tuple(
            make_linear(quantisation, names, outputs, inputs, bias=False, device=device, dtype=dtype)
            for names in modules
        )
    )
