"""Message encoding (msgpack by msgspec: typed, validated, limited in size) and options of the sockets."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from .errors import RequestError

MAX_MESSAGE_BYTES = 64 << 20

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Encode a message. Raises RequestError for text that is not valid Unicode, numbers beyond 64 bits, and oversized
    messages."""
    try:
        data = _encoder.encode(message)
    except UnicodeEncodeError as error:
        text = error.object[max(0, error.start - 20) : error.end + 20]
        raise RequestError(f"text that is not valid Unicode: {text!r}", param="text", code="invalid_text") from None
    except OverflowError as error:
        raise RequestError(f"a number is out of range: {error}") from None
    if len(data) > MAX_MESSAGE_BYTES:  # ZMQ would silently drop it and the connection
        raise RequestError(f"one message of {len(data)} bytes; the most is {MAX_MESSAGE_BYTES}", code="too_long")
    return data


def decode(decoder: msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any], data: bytes) -> Any:
    """Decode a message. Raises RequestError if it is not one of the decoder's types."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        # ValidationError is a DecodeError; it wraps the RequestErrors of our own structs too.
        cause = error.__cause__
        param = cause.param if isinstance(cause, RequestError) else None
        raise RequestError(f"malformed message: {error}", param=param, code="malformed_message") from None


def set_options(socket: zmq.Socket[Any]) -> None:
    """Set the options of every socket: a size limit, no lingering at close, no dropped messages.

    No heartbeats: the system reports when a peer has died, and one that was only stopped for a while (Ctrl-Z, a frozen
    container) must not lose its connection and what it waited for.
    """
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
