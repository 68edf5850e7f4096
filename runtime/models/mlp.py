"""The MLP of a layer as one value: what every kind offers, and the dense one. The decoder does not know which it has.

Legend: T tokens, E hidden size, I intermediate size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...kernels import Ops
from .linear import Destination, Linear, Loadable, stacked_destinations


class Mlp(Protocol):
    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, E]: the total of its parts."""
        ...

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        """[T, E] of each slice of the model that this rank holds: what adds up to the MLP's output over all ranks."""
        ...

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        """What comes out when the slices gave `parts_TE`."""
        ...

    def linears(self) -> Iterator[Loadable]:
        """The layers that may be quantised."""
        ...

    def destinations(self, prefix: str) -> dict[str, Destination]:
        """Every checkpoint tensor of the layer whose names begin with `prefix`."""
        ...


@dataclass(frozen=True, slots=True)
class DenseMlp:
    gate_up: Linear  # E -> 2I
    down: Linear  # I -> E
    intermediate_size: int
    hidden_size: int
    block: str = "mlp"

    def __call__(self, x_TE: torch.Tensor, ops: Ops) -> torch.Tensor:
        return self.total(self.parts(x_TE, ops))

    def parts(self, x_TE: torch.Tensor, ops: Ops) -> Sequence[torch.Tensor]:
        return [self.down(ops.silu_and_mul(self.gate_up(x_TE)))]

    def total(self, parts_TE: Sequence[torch.Tensor]) -> torch.Tensor:
        [y_TE] = parts_TE
        return y_TE

    def linears(self) -> Iterator[Loadable]:
        yield from (self.gate_up, self.down)

    def destinations(self, prefix: str) -> dict[str, Destination]:
        prefix, size = f"{prefix}.{self.block}", self.intermediate_size
        return {
            **stacked_destinations(prefix, [("gate_proj", size), ("up_proj", size)], self.gate_up),
            **stacked_destinations(prefix, [("down_proj", self.hidden_size)], self.down),
        }
