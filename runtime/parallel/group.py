"""What the ranks of a model ask of each other while they compute.

Those of a stage hold parts of the same layers. Every one of them calls `sum` and `gather` in the same order, and every
rank of all stages `decide`. `send` and `receive` are between ranks of the same number in two stages.

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
WaitSent = Callable[[], None]  # waits until a tensor that was sent may be given up


class Group(Protocol):
    @property
    def shard(self) -> Shard:
        """This rank's part of its layers."""
        ...

    @property
    def stage(self) -> Stage:
        """Its layers."""
        ...

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Of the `x` of all ranks of the stage, the same bits on each. `x` is given up: it may be written to."""
        ...

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[N, ...]: the `x` of every rank of the stage, on each."""
        ...

    def decide(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's `x`, on every rank; the others' has its shape and type, and is given up."""
        ...

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
        """Begin to hand `x` to that stage. What one stage sends another arrives in order."""
        ...

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        """The next that that stage sends, when it is there; `x` has its shape and type, and is given up."""
        ...


def is_rank_zero(group: Group) -> bool:
    """Whether this is rank 0, which decides."""
    return group.stage.index == 0 and group.shard.rank == 0


@dataclass(frozen=True)
class SingleRank:
    """The only rank."""

    shard: Shard
    stage: Stage = WHOLE_MODEL

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        return x[None]

    def decide(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
        raise AssertionError("there is no other stage")

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        raise AssertionError("there is no other stage")


SINGLE_RANK = SingleRank(Shard())


def tree_sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Neighbours first, then neighbouring sums, and so on: ((a + b) + (c + d)). Ranks that hold neighbours may begin
    by themselves, when each has the same power of two of them."""
    sums = list(parts)
    while len(sums) > 1:
        sums = [sums[i] + sums[i + 1] if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return sums[0]
