"""The group of ranks that are processes: torch.distributed, NCCL between CUDA devices and gloo otherwise."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from .group import Settle, tree_sum
from .shard import Shard
from .stage import Stage
from .start import Place

# Seconds until a rank that neither answers nor dies is given up. A first step may compile kernels.
PATIENCE = 300


@dataclass(frozen=True)
class ProcessGroup:
    shard: Shard
    stage: Stage
    neighbours: dist.ProcessGroup | None  # the ranks of the stage; None: all ranks
    # What goes back to the first stage does not wait for what is on its way from it.
    back: dist.ProcessGroup | None

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.size == 1:
            return x
        if self.shard.ordered:
            return tree_sum(self.gather(x).unbind())
        x = x.contiguous()
        dist.all_reduce(x, group=self.neighbours)
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.size == 1:
            return x[None]
        x = x.contiguous()
        gathered = x.new_empty((self.shard.size, *x.shape))
        dist.all_gather(list(gathered.unbind()), x, group=self.neighbours)
        return gathered

    def decide(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.broadcast(x, src=0)
        return x

    def send(self, x: torch.Tensor, stage: int) -> Settle:
        x = x.contiguous()
        work = dist.isend(x, self._in(stage), group=self._way(stage))
        assert work is not None, "both are of the group"

        def settle(kept: torch.Tensor = x) -> None:
            work.wait()

        return settle

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        dist.recv(x, self._in(stage), group=self._way(self.stage.index))
        return x

    def _in(self, stage: int) -> int:
        """The rank of the same number there."""
        return stage * self.shard.size + self.shard.rank

    def _way(self, to: int) -> dist.ProcessGroup | None:
        return self.back if to == 0 else None


def join(place: Place, rendezvous: str) -> ProcessGroup:
    """Meet the other ranks at the file `rendezvous`, which nobody else may reach. Waits until all are there."""
    shard, stage, device = place.shard, place.stage, place.device
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # or it listens where the host's name leads
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=place.rank,
        world_size=shard.size * stage.size,
        timeout=timedelta(seconds=PATIENCE),
        device_id=device if device.type == "cuda" else None,
    )
    if stage.size == 1:
        return ProcessGroup(shard, stage, None, None)
    # Every rank makes all groups, in the same order.
    stages = [dist.new_group(list(range(i * shard.size, (i + 1) * shard.size))) for i in range(stage.size)]
    return ProcessGroup(shard, stage, stages[stage.index], dist.new_group())
