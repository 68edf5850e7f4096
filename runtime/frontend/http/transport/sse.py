"""Encode server-sent events as bytes."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(value: Any) -> bytes:
    """Encode an event with an `event:` line, the value's "type"."""
    kind: str = value["type"]
    return b"event: " + kind.encode() + b"\n" + event(value)
