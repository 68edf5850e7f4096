"""`/v1/responses` over a WebSocket: one response after another per connection, which remembers the last ones."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

import msgspec
from fastapi import WebSocket
from starlette.status import WS_1008_POLICY_VIOLATION
from starlette.websockets import WebSocketDisconnect

from .....protocol.errors import RamiformError, RequestError
from ....api.validation import validated
from ....text.offload import CancellationToken, offload_if_large
from ...errors import error_body, error_status
from ...transport.large_json import LARGE, read_json
from .body import ResponseBody
from .service import ResponseService
from .shared_store import SharedResponseStore
from .store import StoredResponse

MAX_RECENT = 16
MAX_QUEUED = 16
_encoder = msgspec.json.Encoder()


class ResponseWebSocket:
    """Creates and streams responses over a WebSocket connection."""

    def __init__(self, responses: ResponseService, shared: SharedResponseStore, websocket: WebSocket) -> None:
        self._responses = responses
        self._shared = shared
        self._websocket = websocket
        self._recent: deque[StoredResponse] = deque(maxlen=MAX_RECENT)
        self._messages: asyncio.Queue[str] = asyncio.Queue(MAX_QUEUED)

    async def serve(self) -> None:
        """Serve until the client disconnects, then abort what runs."""
        await self._websocket.accept()
        answering = asyncio.create_task(self._answer_all(), name="response socket")
        try:
            while True:
                receiving = asyncio.ensure_future(self._receive())
                await asyncio.wait({receiving, answering}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    receiving.cancel()
                    answering.result()
                if not await receiving:
                    return
        finally:
            answering.cancel()
            await asyncio.wait({answering})

    async def _receive(self) -> bool:
        """Queue the next message; return False when the connection has ended."""
        try:
            message = await self._websocket.receive()
        except (WebSocketDisconnect, RuntimeError):
            return False
        if message["type"] != "websocket.receive":
            return False
        try:
            self._messages.put_nowait(message.get("text") or (message.get("bytes") or b"").decode("utf-8", "replace"))
        except asyncio.QueueFull:  # waiting for room would leave the client's own close unanswered
            reason = f"more than {MAX_QUEUED} messages wait for an answer: send the next one after a response"
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._websocket.close(WS_1008_POLICY_VIOLATION, reason)
            return False
        return True

    async def _answer_all(self) -> None:
        while True:
            text = await self._messages.get()
            fields: Any = None
            try:
                fields = await offload_if_large(partial(_event, text), text)
                await self._answer(await offload_if_large(lambda _, given=fields: _body(given), fields))
            except RamiformError as error:
                self._forget(fields)
                await self._refuse(error)

    async def _answer(self, body: ResponseBody) -> None:
        if not any(entry.id == body.previous_response_id for entry in self._recent):
            await self._shared.copy_here(body.previous_response_id)
        entry = await self._responses.entry(body, self._recent)
        chat = await self._responses.chat_request(body, entry)
        async with aclosing(self._responses.events(body, chat, entry)) as events:
            async for event in events:
                await self._send(event)
        if entry.response["status"] == "failed":
            self._forget({"previous_response_id": body.previous_response_id})
        else:
            self._recent.append(entry)

    def _forget(self, fields: Any) -> None:
        """Drop the previous response of a failed continuation, so that it cannot be continued again."""
        gone = fields.get("previous_response_id") if isinstance(fields, dict) else None
        kept = [entry for entry in self._recent if entry.id != gone]
        self._recent = deque(kept, maxlen=MAX_RECENT)

    async def _refuse(self, error: RamiformError) -> None:
        status, info = error_status(error)
        body = error_body(status, info.message, param=info.param, code=info.code)
        await self._send({"type": "error", "status": status, **body})

    async def _send(self, value: Any) -> None:
        await self._websocket.send_text(_encoder.encode(value).decode())


def _event(text: str, cancellation: CancellationToken) -> dict[str, Any]:
    """Parse the fields of a `response.create` message. Raises RequestError."""
    try:
        event = json.loads(text) if len(text) <= LARGE else read_json(text, cancellation)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the message is no JSON: {error}", code="invalid_json") from None
    if not isinstance(event, dict) or event.get("type") != "response.create":
        raise RequestError('messages are objects of type "response.create"', param="type")
    return {key: value for key, value in event.items() if key != "type"}


def _body(fields: dict[str, Any]) -> ResponseBody:
    """Validate the fields. Raises RequestError."""
    body = validated(ResponseBody, fields | {"stream": True})
    if body.background:
        raise RequestError("a connection's responses are not made in the background", param="background")
    return body
