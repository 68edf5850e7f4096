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

from ..models.parallel.group import WaitSent, tree_sum
from ..models.parallel.shard import Shard
from ..models.parallel.stage import Stage
from ..protocol.config import CoreConfig, RuntimeConfig
from .master_address import MasterAddress, interface_name
from .placement import RankPlacement
from .rendezvous import meeting_file, read_rendezvous
from .symmetric_memory import SymmetricAllReduce, connect_symmetric

# Seconds without an answer until a collective fails. A first step may compile kernels.
COLLECTIVE_TIMEOUT = 300


@dataclass(frozen=True)
class DistributedGroup:
    """A `Group` of torch.distributed ranks."""

    shard: Shard
    stage: Stage
    stage_group: dist.ProcessGroup | None  # the ranks of the stage; None: all ranks
    # A group of its own for tensors to the first stage, so that they do not wait for tensors from it.
    to_first_stage: dist.ProcessGroup | None
    symmetric: SymmetricAllReduce | None = None  # None: all sums go by NCCL or gloo
    device: torch.device | None = None  # of `least`; None: the CPU

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.size == 1:
            return x
        if self.shard.ordered:
            return tree_sum(self.all_gather(x).unbind())
        x = x.contiguous()
        if self.symmetric is not None and (summed := self.symmetric(x)) is not None:
            return summed
        dist.all_reduce(x, group=self.stage_group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        if self.shard.size == 1:
            return x[None]
        x = x.contiguous()
        gathered = x.new_empty((self.shard.size, *x.shape))
        dist.all_gather(list(gathered.unbind()), x, group=self.stage_group)
        return gathered

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        dist.broadcast(x, src=0)
        return x

    def least(self, value: int) -> int:
        least = torch.tensor([value], device=self.device)
        dist.all_reduce(least, dist.ReduceOp.MIN)
        return int(least.item())

    def send(self, x: torch.Tensor, stage: int) -> WaitSent:
        x = x.contiguous()
        # NCCL orders batches among themselves; a lone isend would be ordered with all collectives of its group.
        sends = [dist.P2POp(dist.isend, x, self._peer_rank(stage), self._group_to(stage))]
        works = dist.batch_isend_irecv(sends)

        def wait_sent(kept: torch.Tensor = x) -> None:
            for work in works:
                work.wait()

        return wait_sent

    def receive(self, x: torch.Tensor, stage: int) -> torch.Tensor:
        receives = [dist.P2POp(dist.irecv, x, self._peer_rank(stage), self._group_to(self.stage.index))]
        for work in dist.batch_isend_irecv(receives):
            work.wait()
        return x

    def _peer_rank(self, stage: int) -> int:
        """Return the rank of the same number in `stage`."""
        return stage * self.shard.size + self.shard.rank

    def _group_to(self, to: int) -> dist.ProcessGroup | None:
        return self.to_first_stage if to == 0 else None


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
    rendezvous = read_rendezvous(config.serve.socket_dir)
    store = dist.TCPStore(
        rendezvous.ip, rendezvous.port, is_master=False, timeout=timedelta(seconds=COLLECTIVE_TIMEOUT)
    )
    return dist.PrefixStore(rendezvous.prefix, store)


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
    stage_group = to_first_stage = None
    if stage.size > 1:
        # Every rank makes all groups, in the same order.
        stages = [dist.new_group(list(range(i * shard.size, (i + 1) * shard.size))) for i in range(stage.size)]
        stage_group, to_first_stage = stages[stage.index], dist.new_group()
    symmetric = None
    if device.type == "cuda" and shard.size > 1 and not shard.ordered and _on_one_host(place, config.core):
        symmetric = connect_symmetric(device, shard.rank, shard.size, stage_group)
    return DistributedGroup(shard, stage, stage_group, to_first_stage, symmetric, device)


def _on_one_host(place: RankPlacement, core: CoreConfig) -> bool:
    """Return True when all ranks of this rank's stage are on one host."""
    first, each = place.stage.index * core.tp, len(core.own_ranks)
    return first // each == (first + core.tp - 1) // each
