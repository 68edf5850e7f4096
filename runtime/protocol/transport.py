"""Options of ZMQ sockets over TCP: CURVE keys and heartbeats. Files of sockets over ipc, which ZMQ leaves behind.

Between processes of one machine the system reports when a peer has died, and a peer that was only stopped for a while
must keep its connection (see docs/inside/log.md). A network reports nothing, so over TCP ZMQ's heartbeats do.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from .errors import RequestError
from .keys import ProgramKeys, ServerKeys, server_keys

HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 10_000  # after which the peer is considered gone
HANDSHAKE_TIMEOUT_MS = 15_000  # for the CURVE handshake
_socket_files: dict[Path, int] = {}  # bound by this process, with their inodes


def secure_server_socket(socket: zmq.Socket[Any], keys: ServerKeys) -> None:
    """Set up a server's socket before it binds: only programs accepted by the context's authenticator are answered."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    _set_heartbeats(socket)


def secure_program_socket(socket: zmq.Socket[Any], keys: ProgramKeys) -> None:
    """Set up a program's socket before it connects: it shows its keys, and accepts only the holder of the server's."""
    socket.curve_serverkey = keys.server
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    _set_heartbeats(socket)


def _set_heartbeats(socket: zmq.Socket[Any]) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)


def bind_leaving_no_file(socket: zmq.Socket[Any], address: str) -> None:
    """Bind a socket. If the address is ipc://PATH, `remove_socket_files` removes PATH. Raises ZMQError."""
    socket.bind(address)
    path = Path(address.removeprefix("ipc://"))
    if address.startswith("ipc://") and (number := _inode(path)) is not None:
        _socket_files[path.absolute()] = number


def remove_socket_files() -> None:
    """Remove the files of sockets that this process has bound, at its end. Another runtime that was bound at the same
    path since keeps its file."""
    while _socket_files:
        path, number = _socket_files.popitem()
        if _inode(path) == number:
            with suppress(OSError):
                path.unlink()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:  # in the abstract namespace, or removed
        return None


def check_bind(bind: str, keys: str | None) -> None:
    """Raise RequestError if `bind` is not an address that other machines can use, or the keys are missing."""
    scheme, _, rest = bind.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or not host or not (port.isdecimal() and int(port) < 1 << 16):
        raise RequestError(f"bind is tcp://HOST:PORT, 0 for any free port; got {bind!r}", param="bind")
    if keys is None:
        raise RequestError(
            f"programs at {bind} must show a key: make them with `ramiform keys FOLDER`, and name it with keys",
            param="keys",
        )
    server_keys(Path(keys))
