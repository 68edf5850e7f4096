"""Bind the socket for HTTP, a TCP port or a Unix socket, which all frontends share; check the files of its TLS."""

from __future__ import annotations

import os
import socket
import ssl
import stat

from ....protocol.config import ServeConfig
from ....protocol.errors import RamiformError, RequestError

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


def check_certificate(certificate: str | None, key: str | None) -> None:
    """Raise RequestError for TLS files that cannot be read or used, or whose key is not the certificate's.

    Called before a process starts: else the model would be loaded first.
    """
    if certificate is None:
        raise RequestError("ssl_keyfile without ssl_certfile", param="ssl_certfile")
    for param, file in (("ssl_certfile", certificate), ("ssl_keyfile", key)):
        try:
            if file is not None:
                open(file, "rb").close()
        except OSError as error:
            raise RequestError(f"cannot read {param} {file}: {error.strerror}", param=param) from None

    def refuse_password() -> str:
        raise RequestError(
            f"the key in {key or certificate} has a password, which no frontend can ask for; "
            f"write it without: openssl pkey -in {key or certificate} -out FILE",
            param="ssl_certfile" if key is None else "ssl_keyfile",
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, refuse_password)
    except ssl.SSLError as error:
        files = certificate if key is None else f"{certificate} with the key {key}"
        raise RequestError(
            f"cannot use the TLS certificate {files}: {error.reason or error}; "
            "ssl_certfile and ssl_keyfile need PEM files of one pair",
            param="ssl_certfile",
        ) from None


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
