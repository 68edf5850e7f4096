"""Pages through NIXL: the receiver reads them from the sender's registered memory, by UCX over shared memory, TCP, RDMA
or NVLink. On a CUDA device both memories are the device's.

Messages still go through the sockets: they name the slots. A slot is one whole page.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..protocol.errors import RequestError, RuntimeFailed
from .messages import NixlMemory

logger = logging.getLogger("ramiform.transfer")

STAGING_BYTES = {"cuda": 256 << 20, "cpu": 64 << 20}  # of each direction
MIN_SLOTS = 8


def is_installed() -> bool:
    """Return True if the extra `nixl` is there."""
    return importlib.util.find_spec("nixl_cu12") is not None or importlib.util.find_spec("nixl_cu13") is not None


class StagingSlots:
    """Slots of registered memory, each free or in use."""

    def __init__(self, page_bytes: int, device: torch.device) -> None:
        self.memory_SB = torch.zeros(
            (max(MIN_SLOTS, STAGING_BYTES[device.type] // page_bytes), page_bytes), dtype=torch.uint8
        )
        self.memory_SB = self.memory_SB.to(device)
        self._free = list(range(len(self.memory_SB)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take free slots, of which the caller knows there are enough."""
        assert count <= len(self._free)
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def fill(self, bytes_PB: torch.Tensor) -> list[int]:
        """Copy pages into free slots, and return these."""
        slots = self.take(len(bytes_PB))
        self.memory_SB[torch.tensor(slots, device=self.memory_SB.device)] = bytes_PB.to(self.memory_SB.device)
        if self.memory_SB.device.type == "cuda":
            torch.cuda.current_stream(self.memory_SB.device).synchronize()  # the receiver does not wait for the stream
        return slots

    def free(self, slots: list[int]) -> None:
        self._free += slots


@dataclass
class _Read:
    peer: int
    order: int
    tag: Any
    slots: list[int]  # of the peer
    own: list[int] = field(default_factory=list)
    handle: Any = None  # None until there is room
    has_failed: bool = False


class NixlAgent:
    """The agent of one runtime: memory that others read, and reads of theirs."""

    def __init__(self, page_bytes: int, device: torch.device) -> None:
        """Raises RequestError if the extra is not installed, or UCX does not start."""
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        if not is_installed():
            raise RequestError("transfer 'nixl' needs the package nixl: install ramiform[nixl]", param="transfer")
        name = "nixl_cu12" if importlib.util.find_spec("nixl_cu12") is not None else "nixl_cu13"
        api = importlib.import_module(f"{name}._api")
        try:
            self._agent = api.nixl_agent(uuid.uuid4().hex, api.nixl_agent_config(backends=["UCX"]))
            self.outgoing = StagingSlots(page_bytes, device)
            self._incoming = StagingSlots(page_bytes, device)
            self._registered = [self._agent.register_memory(s.memory_SB) for s in (self.outgoing, self._incoming)]
        except Exception as error:  # of NIXL's own classes
            raise RequestError(f"NIXL does not start: {error}", param="transfer") from None
        self._kind = "VRAM" if device.type == "cuda" else "DRAM"
        self._device = (device.index or 0) if device.type == "cuda" else 0
        self._own = self._agent.prep_xfer_dlist("", self._descriptors(self.memory(self._incoming)), self._kind)
        self._remote: dict[int, tuple[str, Any, int]] = {}  # by peer: its agent, its slots, their number
        self._reads: list[_Read] = []

    def memory(self, slots: StagingSlots | None = None) -> NixlMemory:
        """Describe the memory that other runtimes read."""
        memory_SB = (slots or self.outgoing).memory_SB
        return NixlMemory(
            metadata=self._agent.get_agent_metadata(),
            address=memory_SB.data_ptr(),
            page_bytes=memory_SB.shape[1],
            num_slots=memory_SB.shape[0],
            device=self._device,
            kind=self._kind,
        )

    def connect(self, peer: int, memory: NixlMemory) -> None:
        """Prepare to read from a peer's memory, in place of an earlier one. Raises RuntimeFailed if that fails."""
        self.forget(peer)
        try:
            agent = self._agent.add_remote_agent(memory.metadata)
            agent = agent.decode() if isinstance(agent, bytes) else agent
            slots = self._agent.prep_xfer_dlist(agent, self._descriptors(memory), memory.kind)
        except Exception as error:  # of NIXL's own classes
            raise RuntimeFailed(f"NIXL cannot read its memory: {error}") from None
        self._remote[peer] = agent, slots, memory.num_slots

    def forget(self, peer: int) -> None:
        """Drop a peer that is gone, and its reads."""
        for read in [read for read in self._reads if read.peer == peer]:
            self._reads.remove(read)
            self._release(read)
            self._incoming.free(read.own)
        if (remote := self._remote.pop(peer, None)) is not None:
            with contextlib.suppress(Exception):  # it may be gone already
                self._agent.release_dlist_handle(remote[1])
                self._agent.remove_remote_agent(remote[0])

    @property
    def is_reading(self) -> bool:
        return bool(self._reads)

    def read(self, peer: int, slots: list[int], order: int, tag: Any) -> bool:
        """Begin to read a peer's slots, when there is room for them. Returns False for unknown slots.

        Reads of one peer and `order` end in the order in which they began.
        """
        remote = self._remote.get(peer)
        if remote is None or not 0 < len(slots) <= len(self._incoming.memory_SB):
            return False
        if not all(slot < remote[2] for slot in slots):
            return False
        self._reads.append(_Read(peer, order, tag, slots))
        self._start_reads()
        return True

    def finished(self) -> Iterator[tuple[int, Any, torch.Tensor | None]]:
        """Iterate over the reads that have ended since: peer, tag, pages [P, page_bytes], None where one failed."""
        pending: set[tuple[int, int]] = set()
        for read in list(self._reads):
            state = self._state(read)
            if state == "PROC" or (read.peer, read.order) in pending:
                pending.add((read.peer, read.order))
                continue
            self._reads.remove(read)
            self._release(read)
            yield read.peer, read.tag, None if state == "ERR" else self._incoming.memory_SB[read.own]
            self._incoming.free(read.own)
        self._start_reads()

    def _start_reads(self) -> None:
        for read in self._reads:
            if read.handle is not None or read.has_failed:
                continue
            if len(read.slots) > self._incoming.num_free:
                return
            read.own = self._incoming.take(len(read.slots))
            _, remote, _ = self._remote[read.peer]
            own, theirs = np.array(read.own, np.int32), np.array(read.slots, np.int32)
            try:
                read.handle = self._agent.make_prepped_xfer("READ", self._own, own, remote, theirs)
                self._agent.transfer(read.handle)
            except Exception as error:  # of NIXL's own classes: the peer may be gone
                logger.warning("NIXL cannot read: %s", error)
                read.has_failed = True

    def _state(self, read: _Read) -> str:
        """Return "PROC" while a read goes on, "DONE" or "ERR"."""
        if read.has_failed:
            return "ERR"
        try:
            return "PROC" if read.handle is None else self._agent.check_xfer_state(read.handle)
        except Exception as error:  # of NIXL's own classes: the peer is gone
            logger.warning("NIXL cannot read: %s", error)
            return "ERR"

    def _release(self, read: _Read) -> None:
        if read.handle is not None:
            with contextlib.suppress(Exception):  # it may have failed
                self._agent.release_xfer_handle(read.handle)

    def _descriptors(self, memory: NixlMemory) -> Any:
        """Return address, length and device of every slot."""
        addresses = memory.address + np.arange(memory.num_slots, dtype=np.int64) * memory.page_bytes
        columns = [addresses, np.full_like(addresses, memory.page_bytes), np.full_like(addresses, memory.device)]
        return np.stack(columns, axis=1).astype(np.uint64)
