"""Shapes of errors and streams by API: OpenAI's everywhere but under the paths of Anthropic's and Ollama's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
ANTHROPIC_PATH = "/v1/messages"
OLLAMA_PATH = "/api"
THREAD_UNSUPPORTED = "thread_unsupported_request"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@dataclass(frozen=True)
class Dialect:
    """An API's shape of errors, and its frames of a stream.

    `error` makes an error's JSON from OpenAI's and the status. `frame` encodes a value of a stream, `error_frame` an
    error in it; `end` follows the last. `media_type` is the stream's.
    """

    error: Callable[[int, dict[str, Any]], dict[str, Any]]
    frame: Callable[[Any], bytes]
    error_frame: Callable[[Any], bytes]
    end: bytes
    media_type: str = "text/event-stream"


def _event(value: Any) -> bytes:
    """Encode a server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def _named_event(value: Any) -> bytes:
    """Encode an event with an `event:` line, the value's "type"."""
    kind: str = value["type"]
    return b"event: " + kind.encode() + b"\n" + _event(value)


def _anthropic_error(status: int, body: dict[str, Any]) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error: dict[str, Any] = {"type": kind, "message": body["error"]["message"]}
    if (code := body["error"]["code"]) == THREAD_UNSUPPORTED:  # the SDK's tool runner then sends whole conversations
        error["details"] = {"error_code": code, "unsupported": ["thread"]}
    return {"type": "error", "error": error}


def _line(value: Any) -> bytes:
    """Encode a line of newline-delimited JSON."""
    return _encoder.encode(value) + b"\n"


OPENAI = Dialect(lambda _, body: body, _event, _event, b"data: [DONE]\n\n")
OPENAI_NAMED = Dialect(
    lambda _, body: body, _named_event, _event, b"data: [DONE]\n\n"
)  # each event has its type in a line of its own
ANTHROPIC = Dialect(_anthropic_error, _named_event, _named_event, b"")
LLAMA_CPP = Dialect(lambda _, body: body, _event, _event, b"")
OLLAMA = Dialect(lambda _, body: {"error": body["error"]["message"]}, _line, _line, b"", "application/x-ndjson")
_DIALECTS = {ANTHROPIC_PATH: ANTHROPIC, OLLAMA_PATH: OLLAMA}


def dialect_of(path: str) -> Dialect:
    """Return the dialect in which the route at `path` reports errors."""
    for prefix, dialect in _DIALECTS.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            return dialect
    return OPENAI
