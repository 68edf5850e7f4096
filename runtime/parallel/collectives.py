"""The group of ranks that are processes: torch.distributed, NCCL between CUDA devices and gloo otherwise; what is small
is summed between CUDA devices through memory that all of them see."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from .group import tree_sum
from .shard import Shard
from .symmetric import SymmetricSum, connect

# Seconds until a rank that neither answers nor dies is given up. A first step may compile kernels.
PATIENCE = 300


@dataclass(frozen=True)
class ProcessGroup:
    shard: Shard
    symmetric: SymmetricSum | None = None  # None: NCCL's or gloo's sums are all there are

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.ordered:
            return tree_sum(self.gather(x).unbind())
        x = x.contiguous()
        if self.symmetric is not None and (summed := self.symmetric(x)) is not None:
            return summed
        dist.all_reduce(x)
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        gathered = x.new_empty((self.shard.size, *x.shape))
        dist.all_gather(list(gathered.unbind()), x)
        return gathered

    def decide(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.broadcast(x, src=0)
        return x


def join(shard: Shard, device: torch.device, rendezvous: str) -> ProcessGroup:
    """Meet the other ranks at the file `rendezvous`, which nobody else may reach. Waits until all are there."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # or it listens where the host's name leads
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{rendezvous}",
        rank=shard.rank,
        world_size=shard.size,
        timeout=timedelta(seconds=PATIENCE),
        device_id=device if device.type == "cuda" else None,
    )
    cuda = device.type == "cuda" and shard.size > 1 and not shard.ordered
    return ProcessGroup(shard, connect(device, shard.rank, shard.size) if cuda else None)
