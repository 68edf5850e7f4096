"""The collectives that the ranks of a model use while they compute.

The ranks of a stage hold parts of the same layers. All of them call `all_reduce` and `all_gather` in the same order;
all ranks of all stages call `broadcast`. `send` and `receive` are between ranks of the same number in two stages.

Legend: N ranks of a stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from .shard import Shard
from .stage import Stage

WHOLE_MODEL = Stage()
WaitSent = Callable[[], None]  # waits until the sent tensor may be overwritten


class Group(Protocol):
    """A rank's place among the ranks of a model, and its collectives."""

    @property
    def shard(self) -> Shard:
        """Part of the stage's layers that this rank holds."""
        ...

    @property
    def stage(self) -> Stage:
        """The layers of this rank."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Add up the `x` of all ranks of the stage, with the same bits on each. `x` may be overwritten."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return the `x` of every rank of the stage, [N, ...], on each."""
        ...

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Return rank 0's `x` on every rank. The other ranks' `x` has its shape and type, and may be overwritten."""
        ...

    def least(self, value: int) -> int:
        """Return the smallest `value` of all ranks of all stages, on each."""
        ...

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
        """Start sending `x` to a stage. Tensors between two stages arrive in order."""
        ...

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        """Wait for the next tensor from a stage. `x` has its shape and type, and may be overwritten."""
        ...


def is_rank_zero(group: Group) -> bool:
    """Return True on rank 0, which samples."""
    return group.stage.index == 0 and group.shard.rank == 0


@dataclass(frozen=True)
class SingleRank:
    """The group of a model on one rank."""

    shard: Shard
    stage: Stage = WHOLE_MODEL

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x[None]

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def least(self, value: int) -> int:
        return value

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
        raise AssertionError("there is no other stage")

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        raise AssertionError("there is no other stage")


SINGLE_RANK = SingleRank(Shard())


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Add neighbours first, then neighbouring sums, and so on: ((a + b) + (c + d)).

    Ranks that hold neighbours may add them first, when each has the same power of two of them.
    """
    sums = list(parts)
    while len(sums) > 1:
        sums = [sums[i] + sums[i + 1] if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return sums[0]
