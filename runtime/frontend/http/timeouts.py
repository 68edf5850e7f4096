"""How long an HTTP request may take: to send its body, and to be answered. Plain ASGI; knows no routes."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import error_body, error_response
from .events import DONE, event

BODY_PAUSE = 30.0  # seconds that the next part of a body may take


class Timeouts:
    """`seconds`: from a request's head to its answer's end; None: any time. A WebSocket is open as long as one likes.

    Whose body does not come gets a 408; whose answer takes too long, a 504, or an event where a stream has begun. What
    was being generated is aborted.
    """

    def __init__(self, app: ASGIApp, *, seconds: float | None) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        content_type: bytes | None = None  # until the answer begins

        async def watched(message: Message) -> None:
            nonlocal content_type
            if message["type"] == "http.response.start":
                content_type = dict(message["headers"]).get(b"content-type", b"")
            await send(message)

        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                await self._app(scope, _in_time(receive), watched)
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the answer took longer than {self._seconds:g} s"
            if content_type is None:
                await error_response(504, message, code="timeout")(scope, receive, send)
            elif content_type.startswith(b"text/event-stream"):
                data = event(error_body(504, message, code="timeout")) + DONE
                await send({"type": "http.response.body", "body": data, "more_body": False})


def _in_time(receive: Receive) -> Receive:
    """Raises HTTPException while a body is awaited that does not come; a client that only listens may be silent."""
    more_body = True

    async def receive_some() -> Message:
        nonlocal more_body
        if not more_body:
            return await receive()
        try:
            async with asyncio.timeout(BODY_PAUSE):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not go on for {BODY_PAUSE:g} s") from None
        more_body = message.get("more_body", False)
        return message

    return receive_some
