"""A request's connection: work that ends when the client leaves, and server-sent events. Knows no routes."""

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
from ..errors import error_event
from ..scope import SCOPE_SEND_BODY
from .sse import DONE, event, named_event

logger = logging.getLogger("ramiform.frontend")

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


class ClientDisconnectedError(Exception):
    """The client closed the connection before its answer was ready."""


def json_response(value: Any) -> Response:
    return Response(_encoder.encode(value), media_type="application/json")


async def cancel_on_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeftError then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnectedError
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        # Until it has let go of what it holds: the request in the core is aborted by now.
        await asyncio.wait({working, leaving})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """`data:` events: a value that is there already, those that follow, `[DONE]`. An error on the way is an event too.

    The first value is waited for outside, so that an early error can still be a status. `named`: an event has a line
    with its value's "type" too.
    """

    media_type = "text/event-stream"

    def __init__(self, first: T, rest: AsyncGenerator[T], *, named: bool = False) -> None:
        super().__init__(headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._event = named_event if named else event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send, scope.get(SCOPE_SEND_BODY, send)))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
            await self._rest.aclose()  # now, not when it is collected: the client may have left

    async def _send(self, send: Send, send_part: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events():
            await send_part({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            yield self._event(self._first)
            async for value in self._rest:
                yield self._event(value)
        except Exception as error:
            if not isinstance(error, RamiformError):
                logger.exception("a stream failed on an error of ours")
            yield event(error_event(error))
        yield DONE
