"""A request's connection: work that ends when the client leaves, and server-sent events. Knows no routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...protocol.errors import RamifyError
from .errors import error_event

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


class ClientLeftError(Exception):
    """The client closed the connection before its answer was ready."""


def json_response(value: Any) -> Response:
    return Response(_encoder.encode(value), media_type="application/json")


async def unless_client_leaves(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client leaves. Raises ClientLeftError then."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        # Until it has let go of what it holds: the request in the core is aborted by now.
        await asyncio.wait({working, leaving})


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """`data:` events: a value that is there already, those that follow, `[DONE]`. An error on the way is an event too.

    The first value is waited for outside, so that an early error can still be a status.
    """

    def __init__(self, first: T, rest: AsyncGenerator[T]) -> None:
        self._first = first
        self._rest = rest
        super().__init__(self._events(), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._rest.aclose()  # now, not when it is collected: the client may have left

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            yield _event(self._first)
            async for value in self._rest:
                yield _event(value)
        except RamifyError as error:
            yield _event(error_event(error))
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"
