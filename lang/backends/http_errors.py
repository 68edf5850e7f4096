"""Failures of HTTP calls: what a server's answer, an error event or a broken connection says, as one value.

It reads the formats of OpenAI's, Anthropic's and Google's APIs.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import math
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ...runtime.protocol.errors import BusyError, RamiformError, RequestError, RuntimeFailed

_REPEATABLE = frozenset({408, 409, 429})  # and those from 500 on
_NO_CREDIT = frozenset({"insufficient_quota", "billing_hard_limit_reached"})  # 429s that no waiting helps
_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id")
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
_BUSY = (429, 529)


@dataclass(eq=False)
class HttpFailure(Exception):
    """A call that failed. `status` None: no answer came. `may_repeat`: the same call may succeed later.

    `retry_after`: the seconds that the server asks to wait.
    """

    message: str
    _: KW_ONLY
    status: int | None = None
    param: str | None = None
    code: str | None = None
    request_id: str | None = None
    retry_after: float | None = None
    may_repeat: bool = False

    def __str__(self) -> str:
        return self.message

    def to_error(self, message: str | None = None) -> RamiformError:
        """Return the error for the program: by the status, whose mistake it is."""
        message = self.message if message is None else message
        if self.status in _BUSY or (self.status == 503 and "loading" in self.message.lower()):  # the model, as here
            return BusyError(message)
        if self.status is not None and self.status < 500:
            return RequestError(message, param=self.param, code=str(self.code or f"http_{self.status}"))
        return RuntimeFailed(message)


def failure_of_connection(error: BaseException) -> HttpFailure:
    """Return the failure of a connection that could not be made, or broke."""
    if isinstance(error, ConnectionRefusedError):
        return HttpFailure("nothing listens there", may_repeat=True)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return HttpFailure(text, may_repeat=True)


def failure_of_answer(status: int, headers: Mapping[str, str], data: bytes) -> HttpFailure:
    """Return the failure that an answer with an error status reports."""
    message, found, request_id = _read(data)
    code = _text(found.get("code"))
    if found.get("type") == "invalid_request_error":
        status = min(status, 400) if status != 401 else status
    asked = headers.get("x-should-retry")
    return HttpFailure(
        message,
        status=status,
        param=_text(found.get("param")),
        code=code,
        request_id=next((headers[name] for name in _REQUEST_IDS if headers.get(name)), request_id),
        retry_after=_retry_after(headers),
        may_repeat=asked == "true" if asked in ("true", "false") else _may_repeat(status, code),
    )


def failure_of_event(data: bytes) -> HttpFailure:
    """Return the failure that an event of a stream reports, whose status was 200."""
    message, found, request_id = _read(data)
    kind, code = found.get("type"), found.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else _STATUS_OF_TYPE.get(str(kind), 500)
    return HttpFailure(
        message,
        status=status,
        param=_text(found.get("param")),
        code=_text(code),
        request_id=request_id,
        may_repeat=_may_repeat(status, _text(code)),
    )


def _may_repeat(status: int, code: str | None) -> bool:
    return (status in _REPEATABLE or status >= 500) and code not in _NO_CREDIT


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _read(data: bytes) -> tuple[str, dict[str, Any], str | None]:
    """Return the message of an error's body, the error object, and the id of the request if it is there."""
    message, found, request_id = data[:500].decode("utf-8", "replace"), {}, None
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(data)
        body = body[0] if isinstance(body, list) and body else body  # Google's: a list of one
        inner = body.get("error", body) if isinstance(body, dict) else None
        if isinstance(inner, dict):
            found = inner
            message = str(inner.get("message") or message)
            request_id = body.get("request_id")
    return message, found, _text(request_id)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After, which has seconds or a date, or of OpenAI's retry-after-ms."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return _not_negative(float(milliseconds) / 1000)
    value = headers.get("retry-after")
    if value is None:
        return None
    with contextlib.suppress(ValueError, OverflowError):
        return _not_negative(float(value))
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return _not_negative(email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None


def _not_negative(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise ValueError(f"not a time: {seconds}")
    return max(0.0, seconds)
