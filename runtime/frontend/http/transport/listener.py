"""The socket that HTTP is accepted at: a TCP port or a Unix socket. Bound once, then shared by all frontends."""

from __future__ import annotations

import os
import socket
import stat

from ....protocol.config import ServeConfig
from ....protocol.errors import RamiformError

BACKLOG = 2048  # connections that the system keeps until we accept them


def listen(config: ServeConfig) -> socket.socket | None:
    """Bound and listening, or None when no HTTP is to be served. Raises RamiformError when it cannot be had.

    It listens before anybody accepts: a client that comes while the model loads waits, and is not refused.
    """
    if config.uds is not None:
        return _listen_unix(config.uds)
    if config.port is None:
        return None
    host = config.host
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it. Without, an answer's second part waits 40 ms for an acknowledgement.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, config.port))
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise RamiformError(f"cannot serve HTTP at {host}:{config.port}: {error.strerror or error}") from None
    return bound


def _listen_unix(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
            os.unlink(path)  # left behind by a process that was killed
        bound.bind(path)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise RamiformError(f"cannot serve HTTP at the Unix socket {path}: {error.strerror or error}") from None
    return bound


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        return True


def remove_socket_file(config: ServeConfig) -> None:
    """Remove the file of a Unix socket that `listen` made, once nobody accepts there."""
    if config.uds is not None and os.path.exists(config.uds):
        os.unlink(config.uds)
