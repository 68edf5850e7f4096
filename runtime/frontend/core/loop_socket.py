"""A ZMQ socket that the event loop reads without futures, which cost as much as handling a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
import zmq.asyncio

from ...protocol import wire

MESSAGES_PER_TURN = 256  # read before other callbacks of the event loop run

_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE | zmq.NOBLOCK)  # int: enums are slow
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)


class LoopSocket:
    """A socket of `kind` in a context of asyncio. `raw` is asyncio's socket of it, for all but messages.

    From `start` on, `on_message(frames)` is called for each message, and `on_pause()` after those that are there.
    Neither may raise.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        kind: int,
        on_message: Callable[[list[bytes]], None],
        on_pause: Callable[[], None] = lambda: None,
    ) -> None:
        self.raw = context.socket(kind)
        wire.set_options(self.raw)
        self._socket: zmq.Socket[bytes] = zmq.Socket.shadow(self.raw.underlying)
        self._on_message = on_message
        self._on_pause = on_pause
        self._will_read = False
        self._is_closed = False  # the shadow does not know, and ZMQ gives its address to another socket
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Read in the running loop."""
        loop = self._loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.fileno(), self._read)
        self._read_soon()

    def send(self, first: bytes, *others: bytes) -> None:
        """Queue a message of these frames. The socket has no high-water mark. Raises ZMQError as ZMQ does: when it is
        closed, or the peer of a ROUTER is gone."""
        if self._is_closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        for frame in others:
            self._socket.send(first, _MORE)
            first = frame
        self._socket.send(first, _NOBLOCK)
        self._read_soon()

    def close(self, linger: int) -> None:
        """Close it, within `linger` milliseconds if messages are left to send. Calling it again does nothing."""
        if not self._is_closed:
            if self._loop is not None:
                self._loop.remove_reader(self._socket.fileno())
            self._is_closed = True
            self.raw.close(linger=linger)

    def _read_soon(self) -> None:
        # The descriptor signals a change once, and sending may have consumed the signal.
        if not self._will_read and self._loop is not None:
            self._will_read = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._will_read = False
        self._read()

    def _read(self) -> None:
        if self._is_closed:
            return
        socket = self._socket
        for num_read in range(MESSAGES_PER_TURN):
            # Asked first: ZMQ's error for "no message" is slow to raise.
            if not socket.getsockopt(_EVENTS) & _POLLIN:  # type: ignore[operator]
                if num_read:
                    self._on_pause()
                return
            self._on_message(socket.recv_multipart(_NOBLOCK))
            if self._is_closed:
                return
        self._on_pause()
        self._read_soon()
