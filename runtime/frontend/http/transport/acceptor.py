"""Accept HTTP connections within limits, and keep going when file descriptors run out.

asyncio's own server logs a line per failed accept, thousands of them per second.
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

RETRY_SECONDS = 1.0  # after a failed accept
SHARED_BATCH = 4  # connections in a row, if other processes accept too
SHARE_SECONDS = 0.001  # after such a batch: some thousand connections a second all the same
LOG_SECONDS = 60.0  # between two messages of a kind
HANDSHAKE_SECONDS = 20.0  # for the TLS handshake
SHUTDOWN_SECONDS = 5.0  # for the TLS shutdown

ProtocolFactory = Callable[[ConnectionSlot, bool], asyncio.Protocol]


class RateLimitedLog:
    """Log a warning at most once per LOG_SECONDS; the next one counts those left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._num_skipped = 0

    def warn(self, message: str) -> None:
        now = self._clock()
        if self._last is not None and now - self._last < LOG_SECONDS:
            self._num_skipped += 1
            return
        more = f" ({self._num_skipped} more times since the last such message)" if self._num_skipped else ""
        logger.warning("%s%s", message, more)
        self._last, self._num_skipped = now, 0


class Acceptor:
    """Accept connections on `listener`, with a protocol from `make_protocol(slot, is_spare)` for each.

    One turn of the event loop accepts one connection: each takes up to 0.4 ms, while tokens wait. With `shares`, other
    processes accept at the same socket. After SHARED_BATCH connections they have SHARE_SECONDS to accept the next ones,
    so that a burst does not go to the process that happens to run.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: ProtocolFactory,
        limits: ConnectionLimits,
        *,
        ssl: SSLContext | None,
        shares: bool = False,
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._limiter = ConnectionLimiter(limits.total, limits.per_address)
        self._spare_limiter = ConnectionLimiter(limits.spare, max(1, limits.spare // 4))
        self._ssl = ssl
        self._shares = shares
        self._num_accepted = 0
        self._accept_log, self._limit_log = RateLimitedLog(), RateLimitedLog()
        self._starting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop accepting and close the listener; open connections continue. Idempotent."""
        if self._listener.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in self._starting:
            task.cancel()

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._retry_later(error)
            return
        self._admit(connection, address)
        self._num_accepted += 1
        if self._shares and self._num_accepted % SHARED_BATCH == 0:
            self._pause(SHARE_SECONDS)

    def _retry_later(self, error: OSError) -> None:
        """Retry after RETRY_SECONDS. The listener stays readable, so without the pause the event loop would spin."""
        self._accept_log.warn(f"cannot accept HTTP connections: {error.strerror or error}; new clients wait")
        self._pause(RETRY_SECONDS)

    def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._retry = loop.call_later(seconds, self.start)

    def _admit(self, connection: socket.socket, address: object) -> None:
        client = client_address(connection.family, address)
        slot, is_spare = self._limiter.admit(client), False
        if slot is None:
            self._limit_log.warn(
                f"refusing HTTP connections, the last from {client or 'the Unix socket'}: "
                f"{self._limiter.total} are open, or {self._limiter.per_address} from one address"
            )
            slot, is_spare = self._spare_limiter.admit(client), True
        if slot is None:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._start_connection(connection, slot, is_spare))
        slot.close = task.cancel  # until the transport exists
        self._starting.add(task)
        task.add_done_callback(partial(self._on_started, connection, slot))

    async def _start_connection(self, connection: socket.socket, slot: ConnectionSlot, is_spare: bool) -> None:
        protocol = self._make_protocol(slot, is_spare)
        loop = asyncio.get_running_loop()
        times = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": SHUTDOWN_SECONDS}
        await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._ssl, **(times if self._ssl is not None else {})
        )

    def _on_started(self, connection: socket.socket, slot: ConnectionSlot, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        slot.release()
        connection.close()
        if error is not None and not isinstance(error, OSError):  # not a disconnect or a failed handshake
            logger.error("a connection could not begin", exc_info=error)
