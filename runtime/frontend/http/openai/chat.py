"""`/v1/chat/completions`: generate the assistant's next message."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...api.chat import ChatAnswers
from ...api.chat_body import ChatBody
from ...chat.service import ChatService
from ..transport.body_route import BodyRoute
from ..transport.streaming import STREAM_RESPONSES, EventStream, cancel_on_disconnect, json_response

CHAT_ALIASES = ("/chat/completions", "/invocations")  # llama-server's, and SageMaker's as SGLang has it


class ChatApi:
    """Route for chat completions."""

    def __init__(self, service: ChatService) -> None:
        self.answers = ChatAnswers(service)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"], route_class=BodyRoute)
        for path in ("/v1/chat/completions", *CHAT_ALIASES):
            router.add_api_route(
                path,
                self.create,
                methods=["POST"],
                response_model=None,
                responses=STREAM_RESPONSES,
                include_in_schema=path not in CHAT_ALIASES,
            )
        counts = "/chat/completions/input_tokens"
        for path in (f"/v1{counts}", counts):  # llama-server's
            router.add_api_route(
                path, self.input_tokens, methods=["POST"], response_model=None, include_in_schema=path != counts
            )
        router.add_api_route("/v1/chat/completions/render", self.render, methods=["POST"], response_model=None)
        return router

    async def input_tokens(self, body: ChatBody, request: Request) -> Response:
        """Count the tokens of a chat's prompt."""
        tokens, _ = await cancel_on_disconnect(request, self.answers.prompt(body))
        return json_response({"object": "response.input_tokens", "input_tokens": len(tokens)})

    async def render(self, body: ChatBody, request: Request) -> Response:
        """Return a chat's prompt and its sampling parameters, without an answer."""
        return json_response(await cancel_on_disconnect(request, self.answers.rendered(body)))

    async def create(self, body: ChatBody, request: Request) -> Response:
        """Generate the assistant's next message, or `n` alternatives."""
        if body.stream:
            chunks = self.answers.chunks(body)
            return EventStream(await cancel_on_disconnect(request, anext(chunks)), chunks)
        return json_response(await cancel_on_disconnect(request, self.answers.answer(body)))
