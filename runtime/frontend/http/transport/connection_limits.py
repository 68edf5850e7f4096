"""Limits of open connections, in total and per client address. No sockets are used here."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ....protocol.config import ServeConfig
from ....protocol.errors import RequestError

DEFAULT_MAX_CONNECTIONS = 4096  # if the limit of open files allows as many
SPARE_CONNECTIONS = 64  # connections beyond the limit, for 503 responses and /health
MAX_DESCRIPTORS = 65_536  # requested from the system at most
MIN_IDLE_SECONDS = 1.0  # idle time before a new connection may take the place; a request may be on its way

Address = str | None  # None: client of a Unix socket


@dataclass(frozen=True)
class ConnectionLimits:
    """`total`: connections served at once. `per_address`: of these, per address. `spare`: beyond these, for a 503."""

    total: int
    per_address: int
    spare: int


@dataclass(eq=False)
class ConnectionSlot:
    """Place of one connection. Its owner reports `busy` and `idle`, and releases it at the end."""

    limiter: ConnectionLimiter
    address: Address
    close: Callable[[], object] = field(default=lambda: None)  # closes the connection immediately

    def busy(self) -> None:
        self.limiter.mark_busy(self)

    def idle(self) -> None:
        self.limiter.mark_idle(self)

    def release(self) -> None:
        """Give the place back. Idempotent."""
        self.limiter.release(self)


class ConnectionLimiter:
    """Places for `total` connections, `per_address` of them per address (IPv6: per /64 network).

    A full limiter closes the longest idle connection to make room. It takes one of the new client's address when that
    address is at its limit, else one of the address with the most connections.
    """

    def __init__(self, total: int, per_address: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.per_address = per_address
        self._clock = clock
        self._slots: set[ConnectionSlot] = set()
        self._num: Counter[Address] = Counter()
        self._idle: defaultdict[Address, dict[ConnectionSlot, float]] = defaultdict(dict)  # idle since; longest first

    def admit(self, address: Address) -> ConnectionSlot | None:
        """Return a place, marked idle; None when there is none."""
        if address is not None and self._num[address] >= self.per_address:
            has_room = self._close_idle_of([address])
        else:
            has_room = len(self._slots) < self.total or self._close_idle_of(list(self._idle))
        if not has_room:
            return None
        slot = ConnectionSlot(self, address)
        self._slots.add(slot)
        self._num[address] += 1
        self.mark_idle(slot)
        return slot

    def mark_idle(self, slot: ConnectionSlot) -> None:
        if slot in self._slots:
            self._idle[slot.address].setdefault(slot, self._clock())

    def mark_busy(self, slot: ConnectionSlot) -> None:
        idle = self._idle[slot.address]
        idle.pop(slot, None)
        if not idle:
            del self._idle[slot.address]

    def release(self, slot: ConnectionSlot) -> None:
        if slot not in self._slots:
            return
        self._slots.remove(slot)
        self.mark_busy(slot)
        self._num[slot.address] -= 1
        if not self._num[slot.address]:
            del self._num[slot.address]

    def _close_idle_of(self, addresses: list[Address]) -> bool:
        """Close one idle connection of these addresses. Return False when none has been idle long enough."""
        now = self._clock()
        settled = [
            (-self._num[address], since, slot)
            for address in addresses
            if address in self._idle
            for slot, since in [next(iter(self._idle[address].items()))]
            if now - since >= MIN_IDLE_SECONDS
        ]
        if not settled:
            return False
        _, _, slot = min(settled, key=lambda entry: entry[:2])
        self.release(slot)
        slot.close()
        return True


def resolve_limits(config: ServeConfig, num_descriptors: int) -> ConnectionLimits:
    """Compute the limits of one process with `num_descriptors` descriptors left for connections. Raises RequestError
    when the configuration asks for more.
    """
    spare = min(SPARE_CONNECTIONS, max(1, num_descriptors // 4))
    requested = config.share(config.max_connections)
    if requested is None:
        total = max(1, min(-(-DEFAULT_MAX_CONNECTIONS // config.frontends), num_descriptors - spare))
    elif requested + spare <= num_descriptors:
        total = requested
    else:
        raise RequestError(
            f"max_connections {config.max_connections} is more than this process may open: its limit of open files "
            f"(ulimit -Hn) leaves room for {max(0, num_descriptors - spare) * config.frontends}",
            param="max_connections",
        )
    per_address = config.share(config.max_connections_per_address)
    return ConnectionLimits(total, -(-total // 2) if per_address is None else per_address, spare)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most to MAX_DESCRIPTORS. Children inherit it.

    Shells usually set a soft limit of 1024, or of 256 on macOS.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower, undocumented limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def free_descriptors() -> int:
    """Return the number of descriptors left for connections. An eighth of all is reserved for other files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(0, soft - len(os.listdir("/dev/fd")) - max(16, soft // 8))


def client_address(family: int, address: object) -> Address:
    """Return the address that a connection counts for: an IPv4 address, or an IPv6 /64 network, the usual share of one
    client.
    """
    if family not in (socket.AF_INET, socket.AF_INET6) or not isinstance(address, tuple):
        return None
    host = str(address[0])
    if family == socket.AF_INET:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(bytes(10) + b"\xff\xff"):  # IPv4-mapped
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return f"{socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))}/64"
