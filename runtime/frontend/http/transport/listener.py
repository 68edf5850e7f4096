"""Bind the socket for HTTP, a TCP port or a Unix socket, which all frontends share."""

from __future__ import annotations

import os
import socket
import stat

from ....protocol.config import ServeConfig
from ....protocol.errors import RamiformError

BACKLOG = 2048  # connections that the kernel queues until they are accepted


def listen(config: ServeConfig) -> socket.socket | None:
    """Return a listening socket, or None when HTTP is off. Raises RamiformError when it cannot be bound.

    It listens before anybody accepts. So a client that connects while the model loads waits instead of being refused.
    """
    if config.uds is not None:
        return _listen_unix(config.uds)
    if config.port is None:
        return None
    host = config.host
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit this option. Without it, a response's second part waits 40 ms for an acknowledgement.
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
            os.unlink(path)  # left over from a killed process
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
    """Remove the file of the Unix socket that `listen` created."""
    if config.uds is not None and os.path.exists(config.uds):
        os.unlink(config.uds)
