"""ASGI middleware for concurrent requests per API key, and for the time of a request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..dialects import dialect_of
from ..errors import error_body, error_response
from ..scope import HEALTH_PATHS, LIVE_PATH, SCOPE_API_KEY

BODY_STALL_SECONDS = 30.0  # maximum seconds between two parts of a body
MIN_BODY_RATE = 1024  # bytes per second; a slower body may lag BODY_STALL_SECONDS behind this rate


class RequestLimitsMiddleware:
    """Limit concurrent requests per key to `max_requests`, and each request to `seconds`. None: no limit.

    Too many requests get a 429. A stalled body gets a 408. A response over time gets a 504, or an error event in a
    stream; its generation is aborted.
    """

    def __init__(self, app: ASGIApp, *, max_requests: int | None, seconds: float | None) -> None:
        self._app = app
        self._max_requests = max_requests
        self._seconds = seconds
        self._running: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Viewers are no requests; LIVE_PATH has a bound of its own.
        if scope["type"] not in ("http", "websocket") or scope["path"] in HEALTH_PATHS | {LIVE_PATH}:
            await self._app(scope, receive, send)
            return
        key = scope.get(SCOPE_API_KEY)
        if self._max_requests is not None and self._running[key] >= self._max_requests:
            await _reject(scope, receive, send, self._max_requests)
            return
        self._running[key] += 1
        is_counted = True

        def release() -> None:
            nonlocal is_counted
            self._running[key] -= is_counted
            is_counted = False

        async def send_releasing(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                release()  # before the client has the whole response and sends its next request
            await send(message)

        try:
            if scope["type"] == "websocket":  # has no time limit
                await self._app(scope, receive, send)
            else:
                await self._run_with_timeout(scope, _receive_in_time(receive), send_releasing)
        finally:
            release()

    async def _run_with_timeout(self, scope: Scope, receive: Receive, send: Send) -> None:
        content_type: bytes | None = None  # None until the response starts

        async def send_noting_type(message: Message) -> None:
            nonlocal content_type
            if message["type"] == "http.response.start":
                content_type = dict(message["headers"]).get(b"content-type", b"")
            await send(message)

        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                await self._app(scope, receive, send_noting_type)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the answer took longer than {self._seconds:g} s"
            if content_type is None:
                await error_response(504, message, code="timeout")(scope, receive, send)
            elif content_type.startswith(b"text/event-stream"):
                dialect = dialect_of(scope["path"])
                data = dialect.error_frame(dialect.error(504, error_body(504, message, code="timeout"))) + dialect.end
                await send({"type": "http.response.body", "body": data, "more_body": False})


async def _reject(scope: Scope, receive: Receive, send: Send, limit: int) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": "too many requests of this API key"})
        return
    message = f"{limit} requests of this API key are running already"
    await error_response(429, message, code="too_many_requests")(scope, receive, send)


def _receive_in_time(receive: Receive) -> Receive:
    """Raise HTTPException (408) while a body stalls. After the body, a client may be silent."""
    more_body = True
    seconds_left = BODY_STALL_SECONDS  # waiting time left; each byte adds its share

    async def receive_timed() -> Message:
        nonlocal more_body, seconds_left
        if not more_body:
            return await receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(min(seconds_left, BODY_STALL_SECONDS)):
                message = await receive()
        except TimeoutError:
            fault = (
                f"came at less than {MIN_BODY_RATE} bytes a second"
                if seconds_left < BODY_STALL_SECONDS
                else "did not go on"
            )
            raise HTTPException(408, f"the body {fault} for {BODY_STALL_SECONDS:g} s") from None
        seconds_left += len(message.get("body", b"")) / MIN_BODY_RATE - (time.monotonic() - began)
        more_body = message.get("more_body", False)
        return message

    return receive_timed
