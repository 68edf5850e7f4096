"""What the ranks of a model ask of each other while they compute. Every rank calls the same verbs in the same order.

Legend: N ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .shard import Shard


class Group(Protocol):
    @property
    def shard(self) -> Shard:
        """This rank's part of the model."""
        ...

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Of all ranks' `x`, the same bits on every rank. `x` is given up: it may be written to."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[N, ...]: every rank's `x`, on every rank."""
        ...

    def decide(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's `x`, on every rank; the others' has its shape and type, and is given up."""
        ...


@dataclass(frozen=True)
class Alone:
    """The only rank."""

    shard: Shard

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x[None]

    def decide(self, x: torch.Tensor) -> torch.Tensor:
        return x


ALONE = Alone(Shard())


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Neighbours first, then neighbouring sums, and so on: ((a + b) + (c + d)). Ranks that hold neighbours may begin
    by themselves, when each has the same power of two of them."""
    sums = list(parts)
    while len(sums) > 1:
        sums = [sums[i] + sums[i + 1] if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return sums[0]
