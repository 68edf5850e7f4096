"""Collectives of ranks that are processes: torch.distributed over NCCL between CUDA devices, gloo otherwise.

Small sums between CUDA devices of one host go through symmetric memory.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from ..protocol.config import CoreConfig, RuntimeConfig
from .group import WaitSent, tree_sum
from .master_address import MasterAddress, interface_name
from .placement import RankPlacement
from .rendezvous import meeting_file, read_rendezvous
from .shard import Shard
from .stage import Stage
from .symmetric_memory import SymmetricAllReduce, connect_symmetric

# Seconds until a rank that neither answers nor dies is given up. A first step may compile kernels.
COLLECTIVE_TIMEOUT = 300


@dataclass(frozen=True)
class DistributedGroup:
    """A `Group` of torch.distributed ranks."""

    shard: Shard
    stage: Stage
    neighbours: dist.ProcessGroup | None  # the ranks of the stage; None: all ranks
    # What goes back to the first stage does not wait for what is on its way from it.
    back: dist.ProcessGroup | None
    symmetric: SymmetricAllReduce | None = None  # None: NCCL's or gloo's sums are all there are

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.size == 1:
            return x
        if self.shard.ordered:
            return tree_sum(self.gather(x).unbind())
        x = x.contiguous()
        if self.symmetric is not None and (summed := self.symmetric(x)) is not None:
            return summed
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

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
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


def host_store(ip: str) -> dist.TCPStore:
    """Start a store where the ranks of all nodes meet, on any free port of this address and nowhere else.

    The store authenticates nobody: its keys have a prefix that only the nodes know.
    """
    with socket.create_server((ip, 0)) as listening:
        port = listening.getsockname()[1]
        return dist.TCPStore(ip, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def _open_store(config: RuntimeConfig) -> dist.Store:
    if config.core.nnodes == 1:
        return dist.FileStore(str(meeting_file(config.serve.socket_dir)), config.core.num_ranks)
    found = read_rendezvous(config.serve.socket_dir)
    store = dist.TCPStore(found.ip, found.port, is_master=False, timeout=timedelta(seconds=COLLECTIVE_TIMEOUT))
    return dist.PrefixStore(found.prefix, store)


def _choose_interface(core: CoreConfig) -> None:
    """Set the network interface of NCCL and gloo; the default is where the host's name resolves to."""
    if core.nnodes > 1:
        name = interface_name(MasterAddress.of(core).own_ip())
    else:
        name = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if core.nnodes > 1:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def join_group(place: RankPlacement, config: RuntimeConfig) -> DistributedGroup:
    """Join the other ranks' process group. Blocks until all ranks have joined."""
    shard, stage, device = place.shard, place.stage, place.device
    _choose_interface(config.core)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=_open_store(config),
        rank=place.rank,
        world_size=shard.size * stage.size,
        timeout=timedelta(seconds=COLLECTIVE_TIMEOUT),
        device_id=device if device.type == "cuda" else None,
    )
    neighbours = back = None
    if stage.size > 1:
        # Every rank makes all groups, in the same order.
        stages = [dist.new_group(list(range(i * shard.size, (i + 1) * shard.size))) for i in range(stage.size)]
        neighbours, back = stages[stage.index], dist.new_group()
    symmetric = None
    if device.type == "cuda" and shard.size > 1 and not shard.ordered and _on_one_host(place, config.core):
        symmetric = connect_symmetric(device, shard.rank, shard.size, neighbours)
    return DistributedGroup(shard, stage, neighbours, back, symmetric)


def _on_one_host(place: RankPlacement, core: CoreConfig) -> bool:
    """Return True when all ranks of this rank's stage are on one host."""
    first, each = place.stage.index * core.tp, len(core.own_ranks)
    return first // each == (first + core.tp - 1) // each
