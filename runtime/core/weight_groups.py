"""Groups over which a trainer broadcasts tensors to a core: torch.distributed's gloo, as SGLang's trainers make them.

The trainer is rank 0 and hosts the store where all meet. A runtime of several ranks has as many members, as trainers
expect; all are in this process, and the first one's tensors count. Threads join and receive while the core serves on.
Each wait ends after a time, so a trainer that dies holds nothing up.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import TypeVar

import torch
import torch.distributed as dist

from ..protocol.errors import RequestError
from ..protocol.sampling import InitWeightsGroup, ReceiveWeights

SECONDS = 120.0  # until a trainer that does not come, or does not send the next tensor, is given up
MAX_GROUPS = 8
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
T = TypeVar("T")


class WeightGroups:
    """The groups that one core has joined, by name. A transfer that fails ends its group: what it holds back would be
    taken for the next one's tensors."""

    def __init__(self, num_members: int, *, seconds: float = SECONDS) -> None:
        self._num_members, self._timeout = num_members, timedelta(seconds=seconds)
        self._joined: dict[str, list[dist.ProcessGroup]] = {}

    def join(self, message: InitWeightsGroup) -> Future[None]:
        """Begin to join a group. Raises RequestError; so does the future, when the trainer does not come."""
        name, last = message.group, message.rank_offset + self._num_members
        if name in self._joined:
            raise RequestError(f"the group {name!r} is joined already: destroy it first", param="group_name")
        if len(self._joined) >= MAX_GROUPS:
            raise RequestError(f"{MAX_GROUPS} groups are joined: destroy one first", param="group_name")
        if message.rank_offset < 1 or last > message.world_size:
            raise RequestError(
                f"world_size {message.world_size} has no place for the ranks {message.rank_offset} to {last - 1}: the "
                f"trainer is rank 0, and this runtime has {self._num_members}",
                param="world_size",
            )
        self._joined[name] = []  # its name is taken
        return _in_thread(partial(self._join, message))

    def receive(self, message: ReceiveWeights) -> Future[dict[str, torch.Tensor]]:
        """Begin to receive tensors in the order of their names. Raises RequestError; so does the future, when the
        trainer does not send them all."""
        if not self._joined.get(message.group):
            raise RequestError(f"no group {message.group!r} is joined", param="group_name")
        return _in_thread(partial(self._receive, message))

    def leave(self, name: str) -> None:
        """Leave a group. Raises RequestError if there is none."""
        if self._joined.pop(name, None) is None:
            raise RequestError(f"no group {name!r} is joined", param="group_name")

    def _join(self, message: InitWeightsGroup) -> None:
        ranks = range(message.rank_offset, message.rank_offset + self._num_members)
        try:
            begun = [_in_thread(partial(self._member, message, rank)) for rank in ranks]  # each waits for all others
            members = [member.result() for member in begun]
        except (RuntimeError, OSError, ValueError) as error:
            self._joined.pop(message.group, None)
            raise RequestError(
                f"the group {message.group!r} did not come together at {message.address}:{message.port}: {error}",
                param="master_address",
            ) from None
        self._joined[message.group] = members

    def _member(self, message: InitWeightsGroup, rank: int) -> dist.ProcessGroup:
        name, size = message.group, message.world_size
        store: dist.Store = dist.TCPStore(message.address, message.port, size, False, self._timeout)
        for prefix in (name, f"{name}/", "cpu/"):  # those of torch, for a group of this name
            store = dist.PrefixStore(prefix, store)
        options = dist.ProcessGroupGloo._Options()
        own = _own_address(message.address, message.port)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=own, lazy_init=False)]
        options._timeout = self._timeout
        return dist.ProcessGroupGloo(store, rank, size, options)

    def _receive(self, message: ReceiveWeights) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        try:
            for name, dtype, shape in zip(message.names, message.dtypes, message.shapes, strict=True):
                copies = [torch.empty(shape, dtype=DTYPES[dtype]) for _ in self._joined[message.group]]
                sent = [
                    member.broadcast([copy], _from_trainer())
                    for member, copy in zip(self._joined[message.group], copies, strict=True)
                ]
                for work in sent:
                    work.wait(self._timeout)
                found[name] = copies[0]
        except (RuntimeError, KeyError) as error:
            self._joined.pop(message.group, None)
            raise RequestError(
                f"{len(found)} of {len(message.names)} tensors came over the group {message.group!r}, which has ended: "
                f"{error}",
                param="group_name",
            ) from None
        return found


def _from_trainer() -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    return options


def _own_address(address: str, port: int) -> str:
    """Return the address of this machine from which it reaches another. Raises OSError if there is none."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Begin work in a thread that ends with the process: a pool's would hold up its end until the trainer comes."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # `result` raises it
            future.set_exception(error)

    Thread(target=run, name="weights group", daemon=True).start()
    return future
