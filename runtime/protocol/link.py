"""A socket to a frontend and the one thread that owns it; other threads only hand bytes over.

Knows bytes, sockets and when the other end is gone; what the bytes mean is its owner's to know. Nothing polls: the
thread sleeps until either side sends, the socket's monitor reports, or, while the owner is busy, a ping is due.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from . import wire
from .errors import ErrorInfo, RequestError, RuntimeFailed
from .keys import ProgramKeys
from .session import Bye, Ping
from .transport import secure_program_socket

PING_SECONDS = 5.0
GOODBYE_MS = 200  # how long a closing socket may take to deliver its last messages
MESSAGES_PER_TURN = 256  # read before looking at what is to be sent

_GONE = zmq.Event.DISCONNECTED | zmq.Event.CLOSED  # CLOSED: an attempt to connect failed
_REFUSED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
_UNKNOWN = zmq.Event.HANDSHAKE_FAILED_AUTH
_MET = zmq.Event.HANDSHAKE_SUCCEEDED


class LinkDown(Exception):
    """Ends the link: why nothing more will be answered. The owner's callbacks may raise it too."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.error = ErrorInfo(kind="runtime", message=message)


class FrontendLink:
    """`first` is sent at once, everything else after `allow_sending`.

    On the thread: `on_message(data)` for each message, `is_busy()` when a ping is due, and at last `on_end(error)`,
    once. With `keys`, which every address of TCP needs, both ends prove who they are. Raises RequestError for an
    address that is none.
    """

    def __init__(
        self,
        address: str,
        first: bytes,
        *,
        keys: ProgramKeys | None = None,
        on_message: Callable[[bytes], None],
        is_busy: Callable[[], bool],
        on_end: Callable[[ErrorInfo], None],
    ) -> None:
        if keys is None and address.startswith("tcp:"):
            raise RequestError(
                f"{address} is reached over a network, which needs keys: name their folder (--keys or RAMIFORM_KEYS)",
                param="keys",
                code="keys_missing",
            )
        self._address = address
        self._keys = keys
        self._on_message = on_message
        self._is_busy = is_busy
        self._on_end = on_end
        self._outbox: deque[bytes] = deque()
        self._may_send = False
        self._leaving = False
        self._awake = False
        self._context = zmq.Context()
        self._open_sockets()
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self._close_sockets()
            self._context.term()
            raise RequestError(
                f"{address!r} is not the address of a runtime: {error}", param="address", code="invalid_address"
            ) from None
        self._socket.send(first)
        self._bell, self._ring = socket.socketpair()
        self._bell.setblocking(False)
        self._ring.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="ramiform-connection", daemon=True)

    # For every thread

    def start(self) -> None:
        self._thread.start()

    def post(self, data: bytes) -> None:
        """Send, in the order of these calls. Takes no lock and never fails: garbage collection may call it."""
        self._outbox.append(data)
        self._wake()

    def stop(self) -> None:
        """Send what was posted and a Bye, and wait for the thread's end."""
        self._leaving = True
        if self._thread.is_alive():
            self._wake()
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def allow_sending(self) -> None:
        """Call on the thread, or before it starts."""
        self._may_send = True

    def move(self, address: str, first: bytes) -> None:
        """Go on at another address, whose first message is `first`. Call on the thread, before sending is allowed."""
        assert not self._may_send
        self._socket.send(wire.encode(Bye()))
        self._close_sockets()
        self._address = address
        self._open_sockets()
        self._socket.connect(address)
        self._socket.send(first)

    def _wake(self) -> None:
        # The thread clears the flag before it looks at the outbox, so whoever finds it set has been seen.
        if self._awake:
            return
        self._awake = True
        try:
            self._ring.send(b"\0")
        except OSError:
            return  # unread rings are waiting, or the thread has ended and its owner was told why

    # For the link's own thread

    def _run(self) -> None:
        try:
            self._loop()
            self._on_end(ErrorInfo.of(RuntimeFailed("the connection to the runtime was closed")))
        except LinkDown as down:
            self._on_end(down.error)
        except BaseException as error:
            self._on_end(ErrorInfo.of(RuntimeFailed(f"the connection to the runtime failed: {error!r}")))
            raise
        finally:
            self._close_sockets()
            self._context.term()
            self._bell.close()
            self._ring.close()

    def _loop(self) -> None:
        poller, polled = self._make_poller(), self._socket
        next_ping = time.monotonic() + PING_SECONDS
        while not self._leaving:
            wait_ms = max(0, math.ceil((next_ping - time.monotonic()) * 1000)) if self._is_busy() else None
            ready = dict(poller.poll(wait_ms))
            if self._bell.fileno() in ready:
                self._bell.recv(4096)
                self._awake = False
            self._receive(MESSAGES_PER_TURN)
            if polled is not self._socket:  # it moved
                poller, polled = self._make_poller(), self._socket
                continue
            if self._monitor in ready:
                self._examine(parse_monitor_message(self._monitor.recv_multipart()))
            self._send()
            if time.monotonic() >= next_ping:
                next_ping = time.monotonic() + PING_SECONDS
                if self._is_busy():
                    self._socket.send(wire.encode(Ping()))
        self._send()
        self._socket.send(wire.encode(Bye()))

    def _make_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        for source in (self._bell.fileno(), self._socket, self._monitor):
            poller.register(source, zmq.POLLIN)
        return poller

    def _send(self) -> None:
        while self._may_send and self._outbox:
            self._socket.send(self._outbox.popleft())

    def _receive(self, limit: float) -> None:
        while limit > 0:
            limit -= 1
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._on_message(data)

    def _examine(self, event: Any) -> None:
        """But for one, the monitor reports ends. Messages sent before the end, last words among them, come first."""
        if event["event"] == _MET:
            self._met = True
            return
        self._receive(math.inf)
        if event["event"] == _UNKNOWN:
            raise LinkDown(f"the runtime at {self._address} does not know our key")
        if event["event"] & _REFUSED:
            raise LinkDown(f"what answers at {self._address} does not speak our protocol")
        if event["event"] == zmq.Event.CLOSED:
            raise LinkDown(f"no runtime listens at {self._address}")
        if self._keys is not None and not self._met:
            raise LinkDown(f"what answers at {self._address} is not the runtime whose key server.key holds")
        raise LinkDown(f"the runtime at {self._address} is gone")

    def _open_sockets(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        wire.set_options(self._socket)
        if self._keys is not None:
            secure_program_socket(self._socket, self._keys)
        self._met = False
        self._monitor = self._socket.get_monitor_socket(_GONE | _REFUSED | _UNKNOWN | _MET)

    def _close_sockets(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=GOODBYE_MS)
