"""Answers of `/v1/chat/completions`: the assistant's next message, as a whole or in chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ...protocol.sampling import TokenLogprob
from ...protocol.version import __version__
from ..chat.completion import ChatCompletion
from ..chat.request import ChatRequest, ToolCallDelta
from ..chat.service import ChatService
from ..text.merge import gather_or_cancel, merge
from ..text.offload import offload_if_large
from .chat_body import ChatBody
from .chat_messages import template_messages
from .chunks import ChunkBuilder
from .finish import finish_fields
from .logprobs import TokenTexts, chat_logprobs, prompt_logprobs
from .rendered import prompt_ids, rendered_request
from .usage import DraftCounts, Stopwatch, Usage


class ChatAnswers:
    """Answers chat completions."""

    def __init__(self, service: ChatService) -> None:
        self._service = service
        self._generator = service.generator
        self._texts = TokenTexts(self._generator.tokenizer)
        self._id_texts = TokenTexts(self._generator.tokenizer, as_ids=True)

    async def answer(self, body: ChatBody) -> dict[str, Any]:
        """Return the whole answer, as JSON values. Raises RamiformError."""
        head = self._head(body)
        return head | await self._whole(body, await self._chat_request(body))

    async def prompt(self, body: ChatBody) -> tuple[list[int], int]:
        """Return the token ids of the prompt, and how many the output may have. Raises RamiformError."""
        body.check(self._generator.core.require_info())
        prompt = (await self._chat_request(body)).prompt
        return prompt.tokens, prompt.sampling.max_new_tokens

    async def rendered(self, body: ChatBody) -> dict[str, Any]:
        """Return the prompt and what would be asked of the core, in vLLM's form. Raises RamiformError."""
        head = self._head(body)
        prompt = (await self._chat_request(body)).prompt
        return rendered_request(head["id"], head["model"], body, prompt)

    async def chunks(self, body: ChatBody) -> AsyncGenerator[dict[str, Any]]:
        """Yield the chunks of the answer, as JSON values. Raises RamiformError."""
        head = self._head(body)
        async with aclosing(self._stream(body, await self._chat_request(body), head)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _head(self, body: ChatBody) -> dict[str, Any]:
        """Return the fields that every chunk has. Raises RequestError for fields that exclude one another."""
        info = self._generator.core.require_info()
        body.check(info)
        return {
            "id": body.response_id("chatcmpl"),
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": body.answering(info),
            "system_fingerprint": f"ramiform-{__version__}",
        }

    async def _chat_request(self, body: ChatBody) -> ChatRequest:
        messages = await offload_if_large(lambda _: template_messages(body.messages), body.messages)
        return await self._service.request(body.chat_input_of(messages, self._generator.core.require_info()))

    async def _whole(self, body: ChatBody, chat: ChatRequest) -> dict[str, Any]:
        watch = Stopwatch()
        async with self._service.completions(chat, body.n) as completions:
            choices = await gather_or_cancel(
                self._choice(body, chat, completion, index, watch) for index, completion in enumerate(completions)
            )
            usage = _usage(chat, completions)
            ids = prompt_ids(chat.prompt) if body.return_token_ids else {}
            if body.prompt_logprobs is not None:
                values = completions[0].prompt_logprobs
                ids["prompt_logprobs"] = prompt_logprobs(self._texts, values, body.prompt_logprobs)
            return {"choices": choices, **ids, "usage": usage.as_json(), "timings": watch.timings(usage)}

    async def _choice(
        self, body: ChatBody, chat: ChatRequest, completion: ChatCompletion, index: int, watch: Stopwatch
    ) -> dict[str, Any]:
        content, reasoning = [], []
        calls: list[dict[str, Any]] = []
        values = []
        async for delta in completion.deltas():
            watch.tick(completion.first_at)
            content.append(delta.content)
            reasoning.append(delta.reasoning)
            values += delta.logprobs or []
            for call in delta.calls:
                if call.id is not None:
                    calls.append(_tool_call(call))
                else:
                    calls[call.index]["function"]["arguments"] += call.arguments
        text, reasoning_text = body.echoed_text() + "".join(content), "".join(reasoning)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not (calls or reasoning_text) else None,
            "refusal": None,
        }
        if reasoning_text and body.shows_reasoning:
            message |= {"reasoning_content": reasoning_text, "reasoning": reasoning_text}
        if calls and body.calls_functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(body, values) if body.logprobs else None,
            **_finish_fields(body, chat, completion),
            **_token_ids(body, chat, completion),
        }

    def _logprobs(self, body: ChatBody, values: list[TokenLogprob]) -> dict[str, Any]:
        texts = self._id_texts if body.return_tokens_as_token_ids else self._texts
        return chat_logprobs(texts, values, body.top_logprobs, body.logprob_token_ids)

    async def _stream(self, body: ChatBody, chat: ChatRequest, head: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        watch = Stopwatch()
        async with self._service.completions(chat, body.n) as completions:
            chunks = ChunkBuilder(head, body.stream_options, watch, lambda: _usage(chat, completions))
            sources = [
                self._stream_choice(body, chat, completion, index) for index, completion in enumerate(completions)
            ]
            choices = merge(sources) if len(sources) > 1 else sources[0]
            try:
                ids = prompt_ids(chat.prompt) if body.return_token_ids else {}
                async for choice in choices:
                    yield chunks.chunk(choice) | ids
                    ids = {}
            finally:
                await choices.aclose()
            for chunk in chunks.last():
                yield chunk

    async def _stream_choice(
        self, body: ChatBody, chat: ChatRequest, completion: ChatCompletion, index: int
    ) -> AsyncGenerator[dict[str, Any]]:
        first = _chunk(index, {"role": "assistant", "content": body.echoed_text()})
        is_first = True
        deltas = completion.deltas()
        try:
            async for delta in deltas:
                if is_first:
                    yield first
                    is_first = False
                change: dict[str, Any] = {}
                if delta.content:
                    change["content"] = delta.content
                if delta.reasoning and body.shows_reasoning:
                    change["reasoning_content"] = change["reasoning"] = delta.reasoning
                if delta.calls and body.calls_functions:
                    change["function_call"] = _tool_call_delta(delta.calls[0])["function"]
                elif delta.calls:
                    change["tool_calls"] = [_tool_call_delta(call) for call in delta.calls]
                values = delta.logprobs if body.logprobs else None
                if change or values:
                    yield _chunk(index, change, self._logprobs(body, values) if values else None)
        finally:
            await deltas.aclose()
        if is_first:  # an answer that was cut before anything of it was certain
            yield first
        yield {**_chunk(index, {}), **_finish_fields(body, chat, completion), **_token_ids(body, chat, completion)}


def _chunk(index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def _tool_call(call: ToolCallDelta) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool_call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if call.id is not None:
        return {"index": call.index, **_tool_call(call)}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def _finish_fields(body: ChatBody, chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    assert completion.finish is not None
    fields = finish_fields(completion.finish, chat.prompt.sampling)
    if completion.num_calls and fields["finish_reason"] == "stop":
        fields["finish_reason"] = "function_call" if body.calls_functions else "tool_calls"
    return fields


def _token_ids(body: ChatBody, chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    """Return the ids that the model generated, if the client asked for them."""
    return {"token_ids": completion.tokens[len(chat.prompt.tokens) :]} if body.return_token_ids else {}


def _usage(chat: ChatRequest, completions: list[ChatCompletion]) -> Usage:
    return Usage(
        prompt=len(chat.prompt.tokens),
        completion=sum(completion.num_completion_tokens for completion in completions),
        cached=completions[0].num_cached_tokens,
        reasoning=sum(completion.num_reasoning_tokens for completion in completions),
        remembered=chat.num_remembered,
        images=chat.prompt.num_image_tokens,
        drafts=DraftCounts.of(sequence for completion in completions for sequence in completion.sequences),
    )
