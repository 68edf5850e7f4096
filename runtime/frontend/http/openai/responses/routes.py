"""`/v1/responses`: responses that are stored and continued; whole, streamed, in the background, or over a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, WebSocket
from starlette.responses import Response

from .....protocol.errors import RamiformError, RequestError, RuntimeFailed
from ....api.validation import NotFoundError
from ....chat.request import ChatRequest
from ....chat.service import ChatService
from ....core.frontend_peers import FrontendPeers
from ...dialects import OPENAI_NAMED
from ...errors import internal_error_message
from ...transport.body_route import BodyRoute
from ...transport.streaming import STREAM_RESPONSES, EventStream, cancel_on_disconnect, json_response
from .body import ResponseBody
from .compact import CompactBody, Compactor
from .conversation_routes import ConversationsApi
from .items import DEFAULT_LISTED, MAX_LISTED, listed_items
from .service import ResponseService, mark_failed
from .store import StoredResponse
from .websocket import ResponseWebSocket

logger = logging.getLogger("ramiform.frontend")


class ResponsesApi:
    """Routes of stored responses."""

    def __init__(self, service: ChatService, peers: FrontendPeers) -> None:
        self._core = service.generator.core
        self._responses = ResponseService(service, peers)
        self._store = self._responses.store
        self._shared = self._responses.shared
        self._compactor = Compactor(service, self._responses)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        path = "/v1/responses"
        router.add_api_route(path, self.create, methods=["POST"], response_model=None, responses=STREAM_RESPONSES)
        router.add_api_websocket_route(path, self.connect)
        router.add_api_route(f"{path}/compact", self.compact, methods=["POST"], response_model=None)
        router.add_api_route(f"{path}/input_tokens", self.input_tokens, methods=["POST"], response_model=None)
        one = f"{path}/{{response_id}}"
        router.add_api_route(one, self.retrieve, methods=["GET"], response_model=None)
        router.add_api_route(one, self.delete, methods=["DELETE"], response_model=None)
        router.add_api_route(f"{one}/cancel", self.cancel, methods=["POST"], response_model=None)
        router.add_api_route(f"{one}/input_items", self.input_items, methods=["GET"], response_model=None)
        router.include_router(ConversationsApi(self._responses).router)
        return router

    async def create(self, body: ResponseBody, request: Request) -> Response:
        """Answer an input: text or items."""
        if not body.background and not body.stream:
            return json_response(await cancel_on_disconnect(request, self.answer(body)))
        await self._shared.copy_here(body.previous_response_id)
        entry, chat = await cancel_on_disconnect(request, self._prepare(body))
        if body.background:
            self._store.put(entry)
            entry.task = asyncio.create_task(self._in_background(body, chat, entry), name="response")
            if entry.events is None:
                return json_response(entry.response)
            entry.task.add_done_callback(lambda _, events=entry.events: events.end())
            return EventStream(None, entry.events.follow(-1), dialect=OPENAI_NAMED)
        events = self._responses.events(body, chat, entry)
        return EventStream(await cancel_on_disconnect(request, anext(events)), events, dialect=OPENAI_NAMED)

    async def answer(self, body: ResponseBody) -> dict[str, Any]:
        """Return the whole response, as JSON values. Raises RamiformError."""
        await self._shared.copy_here(body.previous_response_id)
        entry, chat = await self._prepare(body)
        async with aclosing(self._responses.events(body, chat, entry)) as events:
            async for _ in events:
                pass
        return entry.response

    async def prompt(self, body: ResponseBody) -> tuple[list[int], int]:
        """Return the token ids of the prompt, and how many the output may have. Raises RamiformError."""
        _, chat = await self._prepare(body)
        return chat.prompt.tokens, chat.prompt.sampling.max_new_tokens

    async def connect(self, websocket: WebSocket) -> None:
        await ResponseWebSocket(self._responses, self._shared, websocket).serve()

    async def compact(self, body: CompactBody, request: Request) -> Response:
        """Shorten a conversation to the users' messages and a summary."""
        info = self._core.require_info()
        body.check(info)
        await self._shared.copy_here(body.previous_response_id)
        return json_response(await cancel_on_disconnect(request, self._compactor.compact(body, info)))

    async def input_tokens(self, body: ResponseBody, request: Request) -> Response:
        """Count the tokens of the input."""
        await self._shared.copy_here(body.previous_response_id)
        _, chat = await cancel_on_disconnect(request, self._prepare(body))
        return json_response({"object": "response.input_tokens", "input_tokens": len(chat.prompt.tokens)})

    async def retrieve(
        self, response_id: str, stream: bool = False, starting_after: Annotated[int | None, Query(ge=0)] = None
    ) -> Response:
        """Return a stored response in its current state, or the events of one that is streamed in the background."""
        entry = await self._stored(response_id)
        if not stream:
            if starting_after is not None:
                raise RequestError("starting_after is the number of an event: set stream", param="starting_after")
            return json_response(entry.response)
        if entry.events is None:
            message = "only a response that was created with background and stream can be streamed again"
            raise RequestError(message, param="stream")
        events = self._shared.follow(response_id, -1 if starting_after is None else starting_after)
        return EventStream(None, events, dialect=OPENAI_NAMED)

    async def delete(self, response_id: str) -> Response:
        """Delete a stored response, and end it if it still runs."""
        await self._stored(response_id)
        await self._shared.remove(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, response_id: str) -> Response:
        """End a response that runs in the background."""
        entry = await self._stored(response_id)
        if not entry.response["background"]:
            raise RequestError("only responses in the background can be cancelled", param="response_id")
        await self._shared.cancel(response_id)
        return json_response((await self._stored(response_id)).response)

    async def input_items(
        self,
        response_id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = DEFAULT_LISTED,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """Return the input of a stored response."""
        return json_response(listed_items((await self._stored(response_id)).input, after, limit, order))

    async def _prepare(self, body: ResponseBody) -> tuple[StoredResponse, ChatRequest]:
        entry = await self._responses.entry(body)
        return entry, await self._responses.chat_request(body, entry)

    async def _stored(self, response_id: str) -> StoredResponse:
        entry = await self._shared.find(response_id)
        if entry is None:
            raise NotFoundError(f"there is no response {response_id!r}", param="response_id", code="not_found")
        return entry

    async def _in_background(self, body: ResponseBody, chat: ChatRequest, entry: StoredResponse) -> None:
        try:
            async with aclosing(self._responses.events(body, chat, entry)) as events:
                async for event in events:
                    if entry.events is not None:
                        entry.events.add(event)
            if entry.events is not None and self._store.get(entry.id, entry.owner) is entry:
                self._store.put(entry)  # its size is known now
        except asyncio.CancelledError:
            entry.response |= {"status": "cancelled"}
            raise
        except RamiformError:
            return  # recorded in the entry
        except Exception as bug:
            logger.exception("a background response failed with an internal error")
            mark_failed(entry, RuntimeFailed(internal_error_message(bug)))
