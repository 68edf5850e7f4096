"""Connects to a runtime: at a ZMQ address, or at an HTTP address by ZMQ if it runs on this machine, else over HTTP.

Over ZMQ a program's states live in the runtime and messages have the model's chat template, so that is tried first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from urllib.parse import urlsplit

from ....runtime.protocol.client import Connection
from ....runtime.protocol.errors import RequestError
from ....runtime.protocol.keys import keys_for
from ....runtime.protocol.version import __version__
from .http_channel import HttpChannel
from .http_runtime import HttpRuntime
from .movable import MovableChannel

_SCHEME = "ipc://"
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def connect(address: str, keys: str | os.PathLike[str] | None = None) -> Connection:
    """Return a connection to the runtime that listens at a ZMQ address, whose programs a `MovableChannel` moves.

    Raises RuntimeFailed if none listens there.
    """
    connection = Connection(address, keys_for(address, keys), can_move=True)
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    return connection


def connect_url(url: str, api_key: str | None) -> tuple[MovableChannel | HttpChannel, Callable[[], None]]:
    """Return a channel, and the function that closes it.

    Raises RequestError for an invalid `url` or a wrong key, RuntimeFailed when nothing answers there.
    """
    over_http = HttpRuntime(url, api_key)
    try:
        address = _program_address(over_http) if urlsplit(url).hostname in _LOCAL_HOSTS else None
        if address is not None:
            channel = MovableChannel(connect(address), connect)
            over_http.close()
            return channel, channel.close
    except BaseException:
        over_http.close()
        raise
    return over_http.connection(), over_http.close


def _program_address(runtime: HttpRuntime) -> str | None:
    """Return the runtime's ZMQ address, or None.

    None if it names none, as other servers do, or one that cannot be reached: a forwarded port, a container, another
    user's runtime, another version.
    """
    try:
        facts = runtime.server_info()
    except RequestError as error:
        if error.code == "invalid_api_key":
            raise
        return None
    address = facts.get("program_address")
    if not isinstance(address, str) or not address.startswith(_SCHEME) or facts.get("version") != __version__:
        return None
    path = address.removeprefix(_SCHEME)
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return None
    return address if is_socket and os.access(path, os.R_OK | os.W_OK) else None
