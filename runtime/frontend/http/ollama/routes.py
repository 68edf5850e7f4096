"""`/api/chat` and `/api/generate`: Ollama's answers on the chat service."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from ....protocol.core import ModelInfo
from ....protocol.errors import RequestError, context_exceeded
from ...api.chat_body import ChatBody
from ...api.chat_messages import template_messages
from ...api.fields import require_model
from ...api.logprobs import TokenTexts, chat_logprobs
from ...chat.completion import ChatCompletion
from ...chat.request import ChatRequest, ToolCallDelta
from ...chat.service import ChatService
from ...text.offload import offload_if_large
from ..dialects import OLLAMA
from ..errors import error_responses
from ..transport.body_route import BodyRoute
from ..transport.streaming import EventStream, cancel_on_disconnect, json_response
from .body import AnswerBody, OllamaChatBody, OllamaGenerateBody, ServedModelBody

Line = dict[str, Any]


class OllamaErrorAnswer(BaseModel):
    error: str


OLLAMA_RESPONSES = error_responses(OllamaErrorAnswer)
OLLAMA_STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; with `stream`, its parts, one JSON object a line.",
        "content": {"application/x-ndjson": {}},
    },
    **OLLAMA_RESPONSES,
}


def require_ollama_model(info: ModelInfo, body: ServedModelBody) -> tuple[str, str | None]:
    """Return the model's name as the client wrote it, or the served name, and the LoRA adapter that it is, if it is
    one. Raises NotFoundError for another model.

    Ollama's clients may append the tag ":latest".
    """
    name = body.asked_model
    is_known = name is None or name in (*info.names, *(adapter.name for adapter in info.adapters))
    adapter = require_model(info, name if name is None or is_known else name.removesuffix(":latest"))
    return name or info.name, adapter


@dataclass
class AnswerPart:
    """Part of an answer. `end` is set on the last one: its reason, counts and durations."""

    content: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    end: Line | None = None

    def add(self, other: AnswerPart) -> None:
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls
        self.logprobs += other.logprobs
        self.end = other.end

    def chat_line(self) -> Line:
        """Return the members of a line of `/api/chat`."""
        message: Line = {"role": "assistant", "content": self.content}
        if self.thinking:
            message["thinking"] = self.thinking
        if self.calls:
            message["tool_calls"] = self.calls
        return {"message": message} | self._rest()

    def generate_line(self) -> Line:
        """Return the members of a line of `/api/generate`."""
        thinking = {"thinking": self.thinking} if self.thinking else {}
        return {"response": self.content} | thinking | self._rest()

    def _rest(self) -> Line:
        return ({"logprobs": self.logprobs} if self.logprobs else {}) | (self.end or {"done": False})


class OllamaApi:
    """Routes that generate answers in Ollama's API."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._generator = service.generator
        self._texts = TokenTexts(service.generator.tokenizer)

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["ollama"], route_class=BodyRoute)
        for path, endpoint in (("/api/chat", self.chat), ("/api/generate", self.generate)):
            router.add_api_route(
                path, endpoint, methods=["POST"], response_model=None, responses=OLLAMA_STREAM_RESPONSES
            )
        return router

    async def chat(self, body: OllamaChatBody, request: Request) -> Response:
        """Generate the assistant's next message."""
        is_empty = not body.messages
        return await self._answer(body, request, is_empty=is_empty, context=[], line=AnswerPart.chat_line)

    async def generate(self, body: OllamaGenerateBody, request: Request) -> Response:
        """Generate the answer to a prompt."""
        is_empty = not body.prompt
        return await self._answer(body, request, is_empty=is_empty, context=body.context, line=AnswerPart.generate_line)

    async def _answer(
        self,
        body: OllamaChatBody | OllamaGenerateBody,
        request: Request,
        *,
        is_empty: bool,
        context: list[int],
        line: Callable[[AnswerPart], Line],
    ) -> Response:
        began = time.monotonic_ns()
        info = self._generator.core.require_info()
        model, adapter = require_ollama_model(info, body)

        def written(part: AnswerPart) -> Line:
            return {"model": model, "created_at": timestamp()} | line(part)

        if is_empty:
            reason = "unload" if body.unloads else "load"
            return json_response(written(AnswerPart(end={"done": True, "done_reason": reason})))
        if body.think not in (None, False) and not self._service.can_reason:
            raise RequestError(f"{model!r} does not support thinking", param="think")
        prepared = await cancel_on_disconnect(request, self._request(body, info, context, adapter))
        parts = self._parts(body, prepared, began)
        if not body.stream:
            return json_response(written(await cancel_on_disconnect(request, _whole(parts))))
        lines = _written(parts, written)
        return EventStream(await cancel_on_disconnect(request, anext(lines)), lines, dialect=OLLAMA)

    async def _request(
        self, body: OllamaChatBody | OllamaGenerateBody, info: ModelInfo, context: list[int], adapter: str | None
    ) -> ChatRequest:
        def convert(_: Any) -> tuple[ChatBody, list[dict[str, Any]]]:
            chat = body.chat()
            return chat, template_messages(chat.messages)

        chat, messages = await offload_if_large(
            convert, body.messages if isinstance(body, OllamaChatBody) else body.prompt
        )
        asked = chat.chat_input_of(messages, info)
        asked = replace(
            asked,
            prompt_field="prompt" if isinstance(body, OllamaGenerateBody) else "messages",
            constraint=None if asked.constraint is None else (asked.constraint[0], "format"),
            limit=(None, "options.num_predict"),
            default_limit=body.options.num_predict if body.options.num_predict > 0 else None,
            options=msgspec.structs.replace(asked.options, adapter=adapter),
            chat=body.chat_options(),
        )
        if isinstance(body, OllamaGenerateBody) and (body.raw or self._generator.tokenizer.chat is None):
            prompt = f"{body.system}\n{body.prompt}" if body.system else body.prompt
            request = await self._service.plain_request(prompt, asked)
        else:
            request = await self._service.request(asked)
        return self._in_context(request, info, context, body.options.num_ctx)

    def _in_context(
        self, request: ChatRequest, info: ModelInfo, context: list[int], num_ctx: int | None
    ) -> ChatRequest:
        """Put `context` before the prompt, and limit the answer to what `num_ctx` leaves. Raises RequestError."""
        tokens, sampling = request.prompt.tokens, request.prompt.sampling
        if context:
            has_bos = tokens[:1] == [self._generator.tokenizer.bos_id]
            tokens = [*context, *tokens[has_bos:]]
        most = info.max_request_tokens
        if len(tokens) >= most:
            raise context_exceeded(most, len(tokens), 1, prompt="context", limit="options.num_predict")
        if num_ctx is not None and len(tokens) >= num_ctx:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens, and options.num_ctx is {num_ctx}", param="options.num_ctx"
            )
        room = min(most, num_ctx or most) - len(tokens)
        sampling = msgspec.structs.replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room))
        return replace(request, prompt=replace(request.prompt, tokens=tokens, sampling=sampling))

    async def _parts(self, body: AnswerBody, request: ChatRequest, began: int) -> AsyncGenerator[AnswerPart]:
        """Yield the parts of the answer; `began` is the request's arrival in nanoseconds."""
        async with self._service.completions(request) as [completion]:
            calls = _WholeCalls()
            deltas = completion.deltas()
            try:
                async for delta in deltas:
                    logprobs = chat_logprobs(self._texts, delta.logprobs)["content"] if delta.logprobs else []
                    part = AnswerPart(delta.content, delta.reasoning, calls.add(delta.calls), logprobs)
                    if part != AnswerPart():
                        yield part
            finally:
                await deltas.aclose()
            now = time.monotonic_ns()
            first = now if completion.first_at is None else round(1e9 * completion.first_at)
            end = _end(request, completion, began, first, now)
            if isinstance(body, OllamaGenerateBody) and not body.raw:
                end["context"] = completion.tokens
            yield AnswerPart(calls=calls.finish(), end=end)


class _WholeCalls:
    """Assembles tool calls, which Ollama's clients get whole, with arguments as an object."""

    def __init__(self) -> None:
        self._number = 0
        self._id: str | None = None
        self._name: str | None = None
        self._arguments: list[str] = []

    def add(self, deltas: list[ToolCallDelta]) -> list[dict[str, Any]]:
        """Return the calls that are complete because another one begins."""
        done: list[dict[str, Any]] = []
        for delta in deltas:
            if delta.id is not None:
                done += self.finish()
                self._id, self._name = delta.id, delta.name
            self._arguments.append(delta.arguments)
        return done

    def finish(self) -> list[dict[str, Any]]:
        """Return the open call, if there is one and it was not cut off."""
        call_id, text = self._id, "".join(self._arguments)
        self._id, self._arguments = None, []
        if call_id is None:
            return []
        try:
            arguments = json.loads(text or "{}")
        except (ValueError, RecursionError):
            return []  # cut off: the end's reason says so
        number, self._number = self._number, self._number + 1
        return [{"id": call_id, "function": {"index": number, "name": self._name, "arguments": arguments}}]


def timestamp(seconds: float | None = None) -> str:
    """Return a time, by default the present, in RFC 3339."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat().replace("+00:00", "Z")


async def _written(parts: AsyncGenerator[AnswerPart], written: Callable[[AnswerPart], Line]) -> AsyncGenerator[Line]:
    try:
        async for part in parts:
            yield written(part)
    finally:
        await parts.aclose()


async def _whole(parts: AsyncGenerator[AnswerPart]) -> AnswerPart:
    whole = AnswerPart()
    async for part in parts:
        whole.add(part)
    return whole


def _end(request: ChatRequest, completion: ChatCompletion, began: int, first: int, now: int) -> Line:
    """Return the last line's members; durations are in nanoseconds."""
    finish = completion.finish
    assert finish is not None
    return {
        "done": True,
        "done_reason": "length" if finish.type == "length" else "stop",
        "total_duration": now - began,
        "load_duration": 0,
        "prompt_eval_count": len(request.prompt.tokens),
        "prompt_remembered_count": request.num_remembered,
        "prompt_eval_duration": first - began,
        "eval_count": completion.num_completion_tokens,
        "eval_duration": now - first,
    }
