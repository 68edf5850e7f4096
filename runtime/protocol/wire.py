"""Messages to bytes and back, and the sockets they travel on. msgpack by msgspec; typed, validated, size-limited."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from .errors import RequestError

MAX_MESSAGE_BYTES = 64 << 20
HEARTBEAT_MS = 1000  # between processes: a peer that hangs in the transport is noticed within 3 s

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    """The message in `data`. Raises RequestError when it is not one of the decoder's types."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # ValidationError is a DecodeError; it wraps the RequestErrors of our own structs too.
        cause = error.__cause__
        param = cause.param if isinstance(cause, RequestError) else None
        raise RequestError(f"malformed message: {error}", param=param, code="malformed_message") from None


def set_options(socket: zmq.Socket[Any]) -> None:
    """What every socket of ours has: a size limit, no lingering at close, no dropped messages, heartbeats."""
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
