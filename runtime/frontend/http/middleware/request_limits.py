"""How much one HTTP client may have: so many requests at once, so much time for each. Plain ASGI; knows no routes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import error_body, error_response
from ..scope import HEALTH_PATH, SCOPE_API_KEY
from ..transport.sse import DONE, event

BODY_PAUSE = 30.0  # seconds that the next part of a body may take
BODY_RATE = 1024  # bytes of a body a second; one that comes more slowly may take BODY_PAUSE longer in all


class RequestLimitsMiddleware:
    """`max_requests`: at once, of one key; `seconds`: from a request's head to its answer's end. None: no limit.

    Who has too many gets a 429; whose body does not come, a 408; whose answer takes too long, a 504, or an event where
    a stream has begun. What was being generated is aborted.
    """

    def __init__(self, app: ASGIApp, *, max_requests: int | None, seconds: float | None) -> None:
        self._app = app
        self._max_requests = max_requests
        self._seconds = seconds
        self._running: Counter[str | None] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] == HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        key = scope.get(SCOPE_API_KEY)
        if self._max_requests is not None and self._running[key] >= self._max_requests:
            await _refuse(scope, receive, send, self._max_requests)
            return
        self._running[key] += 1
        counted = True

        def leave() -> None:
            nonlocal counted
            self._running[key] -= counted
            counted = False

        async def send_leaving(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                leave()  # before the client has it all, and comes back
            await send(message)

        try:
            if scope["type"] == "websocket":  # open as long as the client likes
                await self._app(scope, receive, send)
            else:
                await self._timed(scope, _in_time(receive), send_leaving)
        finally:
            leave()

    async def _timed(self, scope: Scope, receive: Receive, send: Send) -> None:
        content_type: bytes | None = None  # until the answer begins

        async def watched(message: Message) -> None:
            nonlocal content_type
            if message["type"] == "http.response.start":
                content_type = dict(message["headers"]).get(b"content-type", b"")
            await send(message)

        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                await self._app(scope, receive, watched)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the answer took longer than {self._seconds:g} s"
            if content_type is None:
                await error_response(504, message, code="timeout")(scope, receive, send)
            elif content_type.startswith(b"text/event-stream"):
                data = event(error_body(504, message, code="timeout")) + DONE
                await send({"type": "http.response.body", "body": data, "more_body": False})


async def _refuse(scope: Scope, receive: Receive, send: Send, most: int) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013, "reason": "too many requests of this API key"})
        return
    message = f"{most} requests of this API key are running already"
    await error_response(429, message, code="too_many_requests")(scope, receive, send)


def _in_time(receive: Receive) -> Receive:
    """Raises HTTPException while a body is awaited that does not come; a client that only listens may be silent."""
    more_body = True
    spare = BODY_PAUSE  # seconds that are left to wait; each byte adds its share

    async def receive_some() -> Message:
        nonlocal more_body, spare
        if not more_body:
            return await receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(min(spare, BODY_PAUSE)):
                message = await receive()
        except TimeoutError:
            slow = f"came at less than {BODY_RATE} bytes a second" if spare < BODY_PAUSE else "did not go on"
            raise HTTPException(408, f"the body {slow} for {BODY_PAUSE:g} s") from None
        spare += len(message.get("body", b"")) / BODY_RATE - (time.monotonic() - began)
        more_body = message.get("more_body", False)
        return message

    return receive_some
