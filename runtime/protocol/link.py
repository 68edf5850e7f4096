"""A socket to a frontend and the thread that owns it; other threads queue bytes.

The thread does not poll: it sleeps until either side sends, the socket's monitor reports an event, or, while the owner
is busy, a ping is due.
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
LINGER_MS = 200  # how long a closing socket may take to deliver its last messages
_MESSAGES_PER_TURN = 256  # read before sending what is queued

_DISCONNECTED = zmq.Event.DISCONNECTED | zmq.Event.CLOSED  # CLOSED: an attempt to connect failed
_REFUSED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
_KEY_REFUSED = zmq.Event.HANDSHAKE_FAILED_AUTH
_CONNECTED = zmq.Event.HANDSHAKE_SUCCEEDED


class LinkDown(Exception):
    """Ends the link, with the reason. The owner's callbacks may raise it too."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.error = ErrorInfo(kind="runtime", message=message)


class FrontendLink:
    """A link to a frontend. `first` is sent at once, all other messages after `allow_sending`.

    The thread calls `on_message(data)` for each message, `is_busy()` when a ping is due, and `on_end(error)` once at
    the end. With `keys`, which every TCP address needs, both ends authenticate. Raises RequestError for an invalid
    address.
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
        self._closing = False
        self._woken = False
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
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="ramiform-connection", daemon=True)

    # For every thread

    def start(self) -> None:
        self._thread.start()

    def post(self, data: bytes) -> None:
        """Queue `data`. Messages are sent in order. Takes no lock and never fails: garbage collection may call it."""
        self._outbox.append(data)
        self._wake()

    def stop(self) -> None:
        """Send what is queued and a Bye, and wait for the thread to end."""
        self._closing = True
        if self._thread.is_alive():
            self._wake()
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def allow_sending(self) -> None:
        """Allow messages after the first. Call it on the thread, or before the thread starts."""
        self._may_send = True

    def move(self, address: str, first: bytes) -> None:
        """Move to another address, where `first` is sent first. Call it on the thread, before sending is allowed."""
        assert not self._may_send
        self._socket.send(wire.encode(Bye()))
        self._close_sockets()
        self._address = address
        self._open_sockets()
        self._socket.connect(address)
        self._socket.send(first)

    def _wake(self) -> None:
        # The thread clears the flag before it reads the outbox, so a message posted while it is set will be seen.
        if self._woken:
            return
        self._woken = True
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            return  # wake-ups are waiting already, or the thread has ended and called `on_end`

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
            self._wake_receiver.close()
            self._wake_sender.close()

    def _loop(self) -> None:
        poller, polled = self._make_poller(), self._socket
        next_ping = time.monotonic() + PING_SECONDS
        while not self._closing:
            wait_ms = max(0, math.ceil((next_ping - time.monotonic()) * 1000)) if self._is_busy() else None
            ready = dict(poller.poll(wait_ms))
            if self._wake_receiver.fileno() in ready:
                self._wake_receiver.recv(4096)
                self._woken = False
            self._receive(_MESSAGES_PER_TURN)
            if polled is not self._socket:  # the link has moved
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
        for source in (self._wake_receiver.fileno(), self._socket, self._monitor):
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
        """Handle an event of the monitor. All but one end the link, after the messages that came before them."""
        if event["event"] == _CONNECTED:
            self._connected = True
            return
        self._receive(math.inf)
        if event["event"] == _KEY_REFUSED:
            raise LinkDown(f"the runtime at {self._address} does not know this client's key")
        if event["event"] & _REFUSED:
            raise LinkDown(f"what answers at {self._address} does not speak the protocol of ramiform programs")
        if event["event"] == zmq.Event.CLOSED:
            raise LinkDown(f"no runtime listens at {self._address}")
        if self._keys is not None and not self._connected:
            raise LinkDown(f"what answers at {self._address} is not the runtime whose key is in server.key")
        raise LinkDown(f"the runtime at {self._address} is gone")

    def _open_sockets(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        wire.set_options(self._socket)
        if self._keys is not None:
            secure_program_socket(self._socket, self._keys)
        self._connected = False
        self._monitor = self._socket.get_monitor_socket(_DISCONNECTED | _REFUSED | _KEY_REFUSED | _CONNECTED)

    def _close_sockets(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=LINGER_MS)
