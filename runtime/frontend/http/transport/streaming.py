"""Responses bound to a client connection: server-sent events, and work that a disconnect cancels."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ....protocol.errors import RamiformError
from ..dialects import OPENAI, Dialect
from ..errors import error_event
from ..scope import SCOPE_SEND_BODY

logger = logging.getLogger("ramiform.frontend")

T = TypeVar("T")
_encoder = msgspec.json.Encoder()

# The OpenAPI description of a route that may answer with an EventStream.
STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, server-sent events that end with `[DONE]`.",
        "content": {"text/event-stream": {}},
    }
}


class ClientDisconnectedError(Exception):
    """The client closed the connection before its response was ready."""


def json_response(value: Any) -> Response:
    return Response(_encoder.encode(value), media_type="application/json")


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`; cancel it when the client disconnects. Raises ClientDisconnectedError then."""
    running = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({running, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientDisconnectedError
        return running.result()
    finally:
        for task in (running, disconnect):
            task.cancel()
        # Wait for the cleanup, so that the request in the core is aborted by now.
        await asyncio.wait({running, disconnect})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Streamed response: `first` and the values of `rest`, in the frames of `dialect`.

    An error on the way is sent as a frame. The caller awaits `first`, so an early error can still be a status. It is
    None where no early error may come.
    """

    def __init__(self, first: T | None, rest: AsyncGenerator[T], *, dialect: Dialect = OPENAI) -> None:
        super().__init__(headers={"cache-control": "no-cache"}, media_type=dialect.media_type)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send, scope.get(SCOPE_SEND_BODY, send)))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, disconnect):
                task.cancel()
            await asyncio.wait({sending, disconnect})
            await self._rest.aclose()  # now, not at garbage collection: the client may have disconnected

    async def _send(self, send: Send, send_part: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events():
            await send_part({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            if self._first is not None:
                yield self._dialect.frame(self._first)
            async for value in self._rest:
                yield self._dialect.frame(value)
        except Exception as error:
            if not isinstance(error, RamiformError):
                logger.exception("a stream failed with an internal error")
            yield self._dialect.error_frame(self._dialect.error(*error_event(error)))
        yield self._dialect.end
