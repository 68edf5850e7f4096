"""Messages to bytes and back, and the sockets they travel on. msgpack by msgspec; typed, validated, size-limited."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq

from .errors import RequestError

MAX_MESSAGE_BYTES = 64 << 20

_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Raises RequestError for text that is no Unicode, a number beyond 64 bits, and more bytes than a peer takes."""
    try:
        data = _encoder.encode(message)
    except UnicodeEncodeError as error:
        text = error.object[max(0, error.start - 20) : error.end + 20]
        raise RequestError(f"text that is not valid Unicode: {text!r}", param="text", code="invalid_text") from None
    except OverflowError as error:
        raise RequestError(f"a number is out of range: {error}") from None
    if len(data) > MAX_MESSAGE_BYTES:  # it would be dropped without a word, and the connection with it
        raise RequestError(f"one message of {len(data)} bytes; the most is {MAX_MESSAGE_BYTES}", code="too_long")
    return data


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
    """What every socket of ours has: a size limit, no lingering at close, no dropped messages.

    No heartbeats: the system tells when a peer has died, and one that was only stopped for a while (Ctrl-Z, a frozen
    container) must not find its connection gone, and what it waited for with it.
    """
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
