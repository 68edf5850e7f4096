"""`/v1/conversations`: conversations, their metadata and their items."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from ....api.bodies import Body, Many, Text, example
from ...transport.body_route import BodyRoute
from ...transport.streaming import json_response
from .conversations import no_item
from .items import DEFAULT_LISTED, MAX_LISTED, InputItem, listed_items
from .service import ResponseService

Metadata = Annotated[
    dict[Annotated[Text, Field(max_length=64)], Annotated[Text, Field(max_length=512)]], Field(max_length=16)
]
Items = Annotated[Many[InputItem], Field(max_length=20)]


class ConversationBody(Body):
    model_config = example({"items": [{"role": "user", "content": "I am Ada."}], "metadata": {"topic": "names"}})
    items: Items = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)


class ConversationUpdate(Body):
    model_config = example({"metadata": {"topic": "names"}})
    metadata: Metadata = Field(default_factory=dict)


class ConversationItems(Body):
    model_config = example({"items": [{"role": "user", "content": "I am Ada."}]})
    items: Annotated[Items, Field(min_length=1)]


class ConversationsApi:
    """Routes of conversations."""

    def __init__(self, responses: ResponseService) -> None:
        self._responses = responses
        self._conversations = responses.conversations

    @property
    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/conversations", tags=["openai"], route_class=BodyRoute)
        one = "/{conversation_id}"
        for path, handler, method in (
            ("", self.create, "POST"),
            (one, self.retrieve, "GET"),
            (one, self.update, "POST"),
            (one, self.delete, "DELETE"),
            (f"{one}/items", self.items, "GET"),
            (f"{one}/items", self.add_items, "POST"),
            (f"{one}/items/{{item_id}}", self.item, "GET"),
            (f"{one}/items/{{item_id}}", self.delete_item, "DELETE"),
        ):
            router.add_api_route(path, handler, methods=[method], response_model=None)
        return router

    async def create(self, body: ConversationBody, request: Request) -> Response:
        """Begin a conversation, with up to 20 items."""
        return json_response(self._conversations.create(body.metadata, await self._responses.input_items(body.items)))

    async def retrieve(self, conversation_id: str) -> Response:
        """Return a conversation without its items."""
        return json_response(await self._conversations.shown(conversation_id))

    async def update(self, conversation_id: str, body: ConversationUpdate) -> Response:
        """Replace the metadata of a conversation."""
        return json_response(await self._conversations.update(conversation_id, body.metadata))

    async def delete(self, conversation_id: str) -> Response:
        """Delete a conversation with its items."""
        await self._conversations.delete(conversation_id)
        return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def items(
        self,
        conversation_id: str,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = DEFAULT_LISTED,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """Return a page of the items of a conversation."""
        return json_response(listed_items(await self._conversations.items(conversation_id), after, limit, order))

    async def add_items(self, conversation_id: str, body: ConversationItems) -> Response:
        """Append up to 20 items to a conversation."""
        added = await self._conversations.add(conversation_id, await self._responses.input_items(body.items))
        return json_response(listed_items(added, None, len(added), "asc"))

    async def item(self, conversation_id: str, item_id: str) -> Response:
        """Return one item of a conversation."""
        for item in await self._conversations.items(conversation_id):
            if item["id"] == item_id:
                return json_response(item)
        raise no_item(conversation_id, item_id)

    async def delete_item(self, conversation_id: str, item_id: str) -> Response:
        """Remove an item from a conversation, and return the conversation."""
        return json_response(await self._conversations.remove(conversation_id, item_id))
