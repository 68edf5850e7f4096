"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API on the chat service."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ....protocol.errors import RequestError
from ....tokenizer.chat_template import ChatTemplate
from ...api.chat_body import ChatBody
from ...api.chat_messages import template_messages
from ...api.fields import require_model
from ...api.finish import stop_reason
from ...chat.completion import ChatCompletion
from ...chat.request import ChatDelta, ChatRequest
from ...chat.service import ChatService
from ...core.client import new_rid
from ...text.offload import offload_if_large
from ..dialects import ANTHROPIC
from ..errors import error_responses
from ..transport.body_route import BodyRoute
from ..transport.streaming import EventStream, cancel_on_disconnect, json_response
from .body import CountBody, MessagesBody, SystemRole

Event = dict[str, Any]
BlockKind = Literal["thinking", "text", "tool_use"]

_PROBE_TEXT = "probe of a late message"
_LATE_SYSTEM_PROBES: list[list[dict[str, str]]] = [
    [{"role": role, "content": _PROBE_TEXT if role == "system" else "a"} for role in roles]
    for roles in (("user", "system"), ("user", "system", "assistant", "user"))
]


def late_system_role(template: ChatTemplate | None) -> SystemRole:
    """Return the role of system messages within a conversation: "user" if the template refuses or drops them there."""
    try:
        rendered = [] if template is None else [template.render(probe) for probe in _LATE_SYSTEM_PROBES]
    except RequestError:
        return "user"
    return "system" if all(_PROBE_TEXT in text for text in rendered) else "user"


class MessagesErrorDetail(BaseModel):
    type: str
    message: str


class MessagesErrorAnswer(BaseModel):
    type: Literal["error"]
    error: MessagesErrorDetail


RESPONSES = error_responses(MessagesErrorAnswer)
_STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The message; with `stream`, its events.", "content": {"text/event-stream": {}}},
    **RESPONSES,
}


class MessagesApi:
    """Routes of Anthropic's Messages API."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._late_system_role = late_system_role(service.generator.tokenizer.chat)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["anthropic"], route_class=BodyRoute)
        router.add_api_route(
            "/v1/messages", self.create, methods=["POST"], response_model=None, responses=_STREAM_RESPONSES
        )
        router.add_api_route(
            "/v1/messages/count_tokens", self.count_tokens, methods=["POST"], response_model=None, responses=RESPONSES
        )
        return router

    async def create(self, body: MessagesBody, request: Request) -> Response:
        """Generate the assistant's next message."""
        if not body.stream:
            return json_response(await cancel_on_disconnect(request, self.answer(body)))
        events = self._events(body, await cancel_on_disconnect(request, self._request(body, body.max_tokens)))
        return EventStream(await cancel_on_disconnect(request, anext(events)), events, dialect=ANTHROPIC)

    async def answer(self, body: MessagesBody) -> dict[str, Any]:
        """Return the whole message, as JSON values. Raises RamiformError."""
        return await _collect(self._events(body, await self._request(body, body.max_tokens)))

    async def prompt(self, body: MessagesBody) -> tuple[list[int], int]:
        """Return the token ids of the prompt, and how many the output may have. Raises RamiformError."""
        prompt = (await self._request(body, body.max_tokens)).prompt
        return prompt.tokens, prompt.sampling.max_new_tokens

    async def count_tokens(self, body: CountBody, request: Request) -> Response:
        """Count the tokens of the prompt that the messages make."""
        chat = await cancel_on_disconnect(request, self._request(body, 1))
        return json_response({"input_tokens": len(chat.prompt.tokens)})

    async def _request(self, body: CountBody, max_tokens: int) -> ChatRequest:
        info = self._service.generator.core.require_info()
        require_model(info, body.model)

        def convert(_: Any) -> tuple[ChatBody, list[dict[str, Any]]]:
            chat = body.chat(late_system_role=self._late_system_role)
            return chat, template_messages(chat.messages)

        chat, messages = await offload_if_large(convert, body.messages)
        return await self._service.request(
            replace(
                chat.chat_input_of(messages, info),
                chat=body.chat_options(),
                default_limit=max_tokens,  # as many as fit, as the API's stop reason for a full context says
                retain=body.retention_hints(),
            )
        )

    async def _events(self, body: MessagesBody, chat: ChatRequest) -> AsyncGenerator[Event]:
        """Yield the events of the message's stream."""
        async with self._service.completions(chat) as [completion]:
            blocks = _Blocks()
            deltas = completion.deltas()
            has_begun = False
            try:
                async for delta in deltas:
                    if not has_begun:
                        has_begun = True
                        yield self._start(chat, completion)
                        yield {"type": "ping"}
                    for event in blocks.add(delta):
                        yield event
            finally:
                await deltas.aclose()
            if not has_begun:
                yield self._start(chat, completion)
            for event in blocks.close():
                yield event
            reason, sequence = _stop(body, chat, completion)
            yield {
                "type": "message_delta",
                "delta": {"stop_reason": reason, "stop_sequence": sequence},
                "usage": _usage(chat, completion),
            }
            yield {"type": "message_stop"}

    def _start(self, chat: ChatRequest, completion: ChatCompletion) -> Event:
        message = {
            "id": f"msg_{new_rid()}",
            "type": "message",
            "role": "assistant",
            "model": chat.prompt.options.adapter or self._service.generator.core.require_info().name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**_usage(chat, completion), "output_tokens": 0},
        }
        return {"type": "message_start", "message": message}


class _Blocks:
    """Makes events of content blocks: a new block begins where the kind of the output changes, or a call begins."""

    def __init__(self) -> None:
        self._index = -1
        self._open: BlockKind | None = None

    def add(self, delta: ChatDelta) -> list[Event]:
        events: list[Event] = []
        if delta.reasoning:
            events += self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            events.append(self._delta({"type": "thinking_delta", "thinking": delta.reasoning}))
        if delta.content:
            events += self._begin("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": delta.content}))
        for call in delta.calls:
            if call.id is not None:
                events += self.close()
                use = {
                    "type": "tool_use",
                    "id": f"toolu_{call.id.removeprefix('call_')}",
                    "name": call.name,
                    "input": {},
                }
                events += self._begin("tool_use", use)
            if call.arguments:
                events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return events

    def close(self) -> list[Event]:
        """Return the events that end the open block."""
        if self._open is None:
            return []
        events = [{"type": "content_block_stop", "index": self._index}]
        if self._open == "thinking":  # clients keep it with the block; nothing here checks it
            events.insert(0, self._delta({"type": "signature_delta", "signature": "unsigned"}))
        self._open = None
        return events

    def _begin(self, kind: BlockKind, block: dict[str, Any]) -> list[Event]:
        if self._open == kind:
            return []
        events = self.close()
        self._open = kind
        self._index += 1
        return [*events, {"type": "content_block_start", "index": self._index, "content_block": block}]

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


async def _collect(events: AsyncGenerator[Event]) -> dict[str, Any]:
    """Return the message that a stream of events describes."""
    message: dict[str, Any] = {}
    parts: list[list[str]] = []
    async for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
                parts.append([])
            case "content_block_delta":
                block, delta = message["content"][-1], event["delta"]
                if delta["type"] == "signature_delta":
                    block["signature"] = delta["signature"]
                else:
                    parts[-1].append(delta.get("text") or delta.get("thinking") or delta.get("partial_json") or "")
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    for block, texts in zip(message["content"], parts, strict=True):
        text = "".join(texts)
        if block["type"] == "tool_use":
            block["input"] = _arguments(text)
        else:
            block[block["type"]] = text
    return message


def _arguments(text: str) -> Any:
    """Return a call's arguments; of a call that was cut off there are none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {}


def _stop(body: MessagesBody, chat: ChatRequest, completion: ChatCompletion) -> tuple[str, str | None]:
    """Return the stop reason and the stop sequence."""
    finish = completion.finish
    assert finish is not None
    if finish.type == "length":
        is_full = chat.prompt.sampling.max_new_tokens < body.max_tokens
        return ("model_context_window_exceeded" if is_full else "max_tokens"), None
    if completion.num_calls:
        return "tool_use", None
    matched = stop_reason(finish, chat.prompt.sampling)
    return ("stop_sequence", matched) if isinstance(matched, str) else ("end_turn", None)


def _usage(chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    """Return the usage. `input_tokens` were not in the cache, and lie behind the last breakpoint (`cache_control`)."""
    num_cached = completion.num_cached_tokens
    num_kept = max((each.num_tokens for each in chat.prompt.options.retain), default=0)
    num_created = max(0, min(num_kept, len(chat.prompt.tokens)) - num_cached)
    return {
        "input_tokens": len(chat.prompt.tokens) - num_cached - num_created,
        "cache_creation_input_tokens": num_created,
        "cache_read_input_tokens": num_cached,
        "remembered_input_tokens": chat.num_remembered,
        "output_tokens": completion.num_completion_tokens,
    }
