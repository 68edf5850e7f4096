"""The same linear layer of every expert of a mixture, as one value: stacked in one tensor, or side by side.

Legend: T tokens, N experts, P pairs of a token and one of its experts, O outputs, C inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ... import kernels
from ...kernels import Ops
from .linear import DenseLinear, Linear, Loadable
from .packed_linear import can_pack
from .quantised.factory import make_linear
from .quantised.scheme import Quantisation


class ExpertLinear(Loadable, Protocol):
    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None, ops: Ops) -> torch.Tensor:
        """[P, O]: row p is expert n's product of `x[rows_P[p]]`, n the expert whose rows end behind p; of `x[p]` when
        `rows_P` is None."""
        ...

    def expert(self, index: int) -> Linear:
        """One expert's, to be filled."""
        ...

    def each(self, change: Callable[[Linear], Linear]) -> ExpertLinear:
        """With every product that is not the ops' changed so."""
        ...


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """Dense, where one launch computes all."""

    weight_NOC: torch.Tensor

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None, ops: Ops) -> torch.Tensor:
        return ops.grouped_matmul(x, self.weight_NOC, ends_N, rows_P)

    def expert(self, index: int) -> Linear:
        return DenseLinear(self.weight_NOC[index])

    def each(self, change: Callable[[Linear], Linear]) -> ExpertLinear:
        return self

    def finish(self) -> None:
        """Nothing is left to do."""

    @property
    def nbytes(self) -> int:
        return self.weight_NOC.nbytes


@dataclass(frozen=True, slots=True)
class SeparateExperts:
    """Each expert's own product: of few bits, or packed for a CPU. Which experts have tokens is read back from the
    device."""

    linears: tuple[Linear, ...]

    def __call__(self, x: torch.Tensor, ends_N: torch.Tensor, rows_P: torch.Tensor | None, ops: Ops) -> torch.Tensor:
        x_PC = x if rows_P is None else x[rows_P]
        some = list(kernels.expert_ranges(ends_N)) or [(0, 0, 0)]
        return torch.cat([self.linears[n](x_PC[start:end]) for n, start, end in some])

    def expert(self, index: int) -> Linear:
        return self.linears[index]

    def each(self, change: Callable[[Linear], Linear]) -> ExpertLinear:
        return SeparateExperts(tuple(map(change, self.linears)))

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
    grouped: bool,
) -> ExpertLinear:
    """Unfilled layers, one for each expert's `modules`; `grouped` stacks dense ones even where each could be packed.
    Raises ValueError, naming them, when a scheme does not fit."""
    dense = quantisation is None or all(quantisation.scheme_of(name) is None for names in modules for name in names)
    if dense and (grouped or not can_pack(device, dtype)):
        return StackedExperts(torch.empty((len(modules), outputs, inputs), device=device, dtype=dtype))
    return SeparateExperts(
        tuple(
            make_linear(quantisation, names, outputs, inputs, bias=False, device=device, dtype=dtype)
            for names in modules
        )
    )
