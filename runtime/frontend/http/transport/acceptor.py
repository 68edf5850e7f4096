"""Accepts HTTP connections within bounds, and survives a process that has run out of file descriptors.

asyncio's own server logs a line for each failed accept, thousands of them in a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from functools import partial
from ssl import SSLContext

from .connection_limits import ConnectionLimiter, ConnectionLimits, ConnectionSlot, client_address

logger = logging.getLogger("ramiform.frontend")

RETRY_SECONDS = 1.0  # until the next attempt after an accept that failed
LOG_SECONDS = 60.0  # between two messages of one kind
HANDSHAKE_SECONDS = 20.0  # that TLS may take to begin
SHUTDOWN_SECONDS = 5.0  # that TLS may take to end

ProtocolFactory = Callable[[ConnectionSlot, bool], asyncio.Protocol]


class RateLimitedLog:
    """A warning at most once in LOG_SECONDS; the next one says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._num_left_out = 0

    def warn(self, message: str) -> None:
        now = self._clock()
        if self._last is not None and now - self._last < LOG_SECONDS:
            self._num_left_out += 1
            return
        more = f" ({self._num_left_out} more times since the last such message)" if self._num_left_out else ""
        logger.warning("%s%s", message, more)
        self._last, self._num_left_out = now, 0


class Acceptor:
    """Serves what connects to `listener` by `make_protocol(slot, is_spare)`. At most `at_once` are taken in a row."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: ProtocolFactory,
        bounds: ConnectionLimits,
        *,
        ssl: SSLContext | None,
        at_once: int,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._pool = ConnectionLimiter(bounds.most, bounds.per_address)
        self._spare = ConnectionLimiter(bounds.spare, max(1, bounds.spare // 4))
        self._ssl = ssl
        self._at_once = at_once
        self._failed, self._full = RateLimitedLog(), RateLimitedLog()
        self._beginning: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accept no more, and close the listener; connections go on. Calling it again does nothing."""
        if self._listener.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._beginning:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._welcome(connection, address)

    def _pause(self, error: OSError) -> None:
        """The listener stays readable, so without a pause the loop would do nothing but try."""
        self._failed.warn(f"cannot accept HTTP connections: {error.strerror or error}; those who come wait")
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._retry = loop.call_later(RETRY_SECONDS, self.start)

    def _welcome(self, connection: socket.socket, address: object) -> None:
        client = client_address(connection.family, address)
        slot, is_spare = self._pool.admit(client), False
        if slot is None:
            self._full.warn(
                f"refusing HTTP connections, the last from {client or 'the Unix socket'}: {self._pool.most} are open, "
                f"or {self._pool.per_address} from one address"
            )
            slot, is_spare = self._spare.admit(client), True
        if slot is None:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._begin(connection, slot, is_spare))
        slot.end = task.cancel  # until there is a transport
        self._beginning.add(task)
        task.add_done_callback(partial(self._begun, connection, slot))

    async def _begin(self, connection: socket.socket, slot: ConnectionSlot, is_spare: bool) -> None:
        protocol = self._make_protocol(slot, is_spare)
        loop = asyncio.get_running_loop()
        times = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": SHUTDOWN_SECONDS}
        await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._ssl, **(times if self._ssl is not None else {})
        )

    def _begun(self, connection: socket.socket, slot: ConnectionSlot, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        slot.release()
        connection.close()
        if error is not None and not isinstance(error, OSError):  # not a client that left, or spoke no TLS
            logger.error("a connection could not begin", exc_info=error)
