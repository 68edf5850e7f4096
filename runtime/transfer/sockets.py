"""ZMQ sockets between runtimes: TCP with CURVE keys and heartbeats, or ipc between runtimes of one machine.

A message is one frame of msgpack; pages follow it as a second frame of raw bytes. Sending never waits: ZMQ's own
threads move the bytes while the core computes, and the windows of transfers bound what is queued.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import zmq
from zmq.utils.monitor import recv_monitor_message

from ..parallel.node_sockets import KeyAuthenticator
from ..protocol import wire
from ..protocol.errors import RequestError
from ..protocol.keys import program_keys, server_keys
from ..protocol.transport import bind_leaving_no_file, check_bind, secure_program_socket, secure_server_socket
from .messages import MAX_PAYLOAD_BYTES, ToClient, ToServer

logger = logging.getLogger("ramiform.transfer")

_MESSAGES_PER_TURN = 32  # read from one socket before the core goes on
_CONNECTED, _LOST = zmq.Event.HANDSHAKE_SUCCEEDED, zmq.Event.DISCONNECTED


def check_address(address: str, keys: str | None, param: str) -> None:
    """Raise RequestError unless the address is tcp://HOST:PORT, with keys, or ipc://PATH."""
    scheme, _, place = address.partition("://")
    if scheme == "ipc" and place:
        return
    try:
        check_bind(address, keys)
    except RequestError as error:
        if error.param == "bind":
            message = f"{param} must be tcp://HOST:PORT or ipc://PATH, got {address!r}"
            raise RequestError(message, param=param) from None
        message = f"runtimes exchange KV over TCP with keys: make them with `ramiform keys FOLDER` ({error})"
        raise RequestError(message, param="transfer_keys") from None


def is_local(address: str) -> bool:
    """Return True for addresses that other machines cannot reach."""
    return address.startswith(("ipc://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:"))


class ServerSocket:
    """Bound ROUTER socket, to which other runtimes connect. Raises RequestError when it cannot be bound."""

    def __init__(self, context: zmq.Context[Any], address: str, keys: str | None, *, max_bytes: int) -> None:
        self.socket = context.socket(zmq.ROUTER)
        _set_options(self.socket, max_bytes)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a receiver that is gone fails, which shows it
        self._authenticator: KeyAuthenticator | None = None
        if not address.startswith("ipc://"):
            assert keys is not None
            known = server_keys(Path(keys))
            self._authenticator = KeyAuthenticator(context, known.programs.__contains__)
            secure_server_socket(self.socket, known)
        try:
            bind_leaving_no_file(self.socket, address)
        except zmq.ZMQError as error:
            raise RequestError(f"cannot serve KV at {address!r}: {error}", param="transfer_bind") from None
        self._decoder = msgspec.msgpack.Decoder(ToServer)

    @property
    def address(self) -> str:
        """The address it is bound to, with the port that the system chose."""
        return self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self) -> Iterator[tuple[bytes, ToServer, bytes]]:
        """Iterate over the messages that are there: sender, message, payload."""
        for sender, *frames in _received(self.socket):
            if (decoded := _decoded(self._decoder, frames)) is not None:
                yield sender, *decoded

    def close(self) -> None:
        self.socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.stop()

    def send(self, receiver: bytes, message: ToClient, bytes_PB: torch.Tensor | None = None) -> bool:
        """Send a message, and pages after it. Returns False if the receiver is gone."""
        try:
            _send(self.socket, [receiver, wire.encode(message)], bytes_PB)
        except zmq.ZMQError:
            return False
        return True


class PeerSocket:
    """DEALER socket that stays connected to another runtime's server.

    Raises RequestError for wrong keys, ZMQError for an address that ZMQ cannot connect to.
    """

    def __init__(self, context: zmq.Context[Any], address: str, keys: str | None, *, max_bytes: int) -> None:
        self.address = address
        self.socket = context.socket(zmq.DEALER)
        _set_options(self.socket, max_bytes)
        self.socket.setsockopt(
            zmq.IMMEDIATE, 1
        )  # what was not sent when a connection ends is not sent to its successor
        if not address.startswith("ipc://"):
            assert keys is not None
            secure_program_socket(self.socket, program_keys(Path(keys)))
        self.monitor = self.socket.get_monitor_socket(_CONNECTED | _LOST)
        try:
            self.socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise
        self._decoder = msgspec.msgpack.Decoder(ToClient)

    def changes(self) -> Iterator[bool]:
        """Iterate over what happened to the connection: True where it was made, False where it was lost."""
        while not self.monitor.closed and self.monitor.poll(0):
            is_connected = zmq.Event(recv_monitor_message(self.monitor)["event"]) == _CONNECTED
            # ZMQ takes up a new connection here; sending may put that off by a millisecond, and then finds none.
            self.socket.getsockopt(zmq.EVENTS)
            yield is_connected

    def receive(self) -> Iterator[tuple[ToClient, bytes]]:
        """Iterate over the messages that are there, with their payloads."""
        for frames in _received(self.socket):
            if (decoded := _decoded(self._decoder, frames)) is not None:
                yield decoded

    def send(self, message: ToServer, bytes_PB: torch.Tensor | None = None) -> None:
        """Send a message, and pages after it, unless there is no connection."""
        try:
            _send(self.socket, [wire.encode(message)], bytes_PB)
        except zmq.Again:
            logger.debug("not connected to %s", self.address)

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(linger=0)
            self.socket.close(linger=0)


def _set_options(socket: zmq.Socket[Any], max_bytes: int) -> None:
    wire.set_options(socket)
    socket.setsockopt(zmq.MAXMSGSIZE, max(wire.MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, max_bytes))


def _received(socket: zmq.Socket[Any]) -> Iterator[list[bytes]]:
    for _ in range(_MESSAGES_PER_TURN):
        # Closed: what was read last ended the connection. Asked first, since zmq's error for "no message" is slow.
        if socket.closed or not int(socket.getsockopt(zmq.EVENTS)) & int(zmq.POLLIN):
            return
        yield socket.recv_multipart(zmq.NOBLOCK)


def _send(socket: zmq.Socket[Any], frames: list[bytes], bytes_PB: torch.Tensor | None) -> None:
    if bytes_PB is None:
        socket.send_multipart(frames, zmq.NOBLOCK)
    else:
        data = bytes_PB.cpu().contiguous().numpy().reshape(-1)
        socket.send_multipart([*frames, memoryview(data)], zmq.NOBLOCK, copy=False)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frames: list[bytes]) -> tuple[Any, bytes] | None:
    if len(frames) not in (1, 2):
        return None
    try:
        return wire.decode(decoder, frames[0]), frames[1] if len(frames) == 2 else b""
    except RequestError as error:
        logger.warning("dropped a message: %s", error)
        return None
