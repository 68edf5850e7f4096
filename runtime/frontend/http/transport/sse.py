"""Server-sent events as bytes. Knows no connections."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(value: Any) -> bytes:
    """With a line of the value's "type"."""
    kind: str = value["type"]
    return b"event: " + kind.encode() + b"\n" + event(value)
