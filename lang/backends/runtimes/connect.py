"""Connecting to a runtime at a ZMQ address."""

from __future__ import annotations

import os

from ....runtime.protocol.client import Connection
from ....runtime.protocol.keys import keys_for


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
