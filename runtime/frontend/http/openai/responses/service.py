"""Create responses: from a body to a stored response, with the events of its stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from .....protocol.errors import ErrorInfo, RamiformError, RequestError
from .....protocol.sampling import TokenLogprob
from ....api.chat_messages import template_messages
from ....api.logprobs import TokenTexts, chat_logprobs
from ....api.validation import NotFoundError
from ....chat.completion import ChatCompletion
from ....chat.request import ChatRequest
from ....chat.service import ChatService
from ....core.frontend_peers import FrontendPeers
from ....core.sessions import requested_session
from ....core.tenant import current_tenant
from ....text.offload import offload_if_large
from .body import ResponseBody
from .conversations import SharedConversations
from .items import as_items, stored_item, to_messages
from .output import Event, OutputBuilder, new_id
from .shared_store import SharedResponseStore
from .store import KeptEvents, ResponseStore, StoredResponse

SHARE_OF_ANSWER = 8  # of the context: an answer without a limit has this part at least, where a conversation is cut


class ResponseService:
    """Creates, generates and stores responses, for HTTP and the WebSocket."""

    def __init__(self, service: ChatService, peers: FrontendPeers) -> None:
        self.store = ResponseStore()
        self.conversations = SharedConversations(peers)
        self.shared = SharedResponseStore(self.store, self.conversations.store, peers)
        self._service = service
        self._core = service.generator.core
        self._texts = TokenTexts(service.generator.tokenizer)

    async def entry(self, body: ResponseBody, recent: Sequence[StoredResponse] = ()) -> StoredResponse:
        """Create a response that is still to be generated. `recent` is searched besides the store.

        Raises RequestError for conflicting fields, and for an unknown previous response.
        """
        info = self._core.require_info()
        body.check(info)
        response = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "queued" if body.background else "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": body.answering(info),
            "output": [],
            "usage": None,
            **body.echoed(),
        }
        items = await self.input_items(body.input)
        previous = self.previous(body.previous_response_id, recent)
        events = KeptEvents() if body.background and body.stream else None
        return StoredResponse(response, items, previous, owner=current_tenant.get().key, events=events)

    def previous(self, response_id: str | None, recent: Sequence[StoredResponse] = ()) -> StoredResponse | None:
        """Return the previous response. Raises RequestError when it is unknown or not finished."""
        if response_id is None:
            return None
        stored = self.store.get(response_id, current_tenant.get().key)
        found = next((entry for entry in recent if entry.id == response_id), stored)
        if found is None or found.response["status"] not in ("completed", "incomplete"):
            raise RequestError(
                f"there is no finished response {response_id!r}: not stored, or forgotten",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if (conversation := found.response["conversation"]) is not None:
            message = f"the response {response_id!r} belongs to a conversation: continue {conversation['id']!r}"
            raise RequestError(message, param="previous_response_id")
        return found

    async def input_items(self, given: str | list[Any]) -> list[dict[str, Any]]:
        """Return the items of an input as they are stored, in place of references those that they name. Raises
        RequestError for an unknown one."""
        items = await offload_if_large(lambda _: as_items(given), given)
        named = {item["id"]: index for index, item in enumerate(items) if item["type"] == "item_reference"}
        found = await self.shared.items(named) if named else {}
        for name, index in named.items():
            if name not in found:
                message = f"input[{index}]: there is no item {name!r}: its response is not stored, or forgotten"
                raise RequestError(message, param=f"input[{index}].id", code="item_not_found")
        return [found[item["id"]] if item["type"] == "item_reference" else stored_item(item) for item in items]

    async def chat_request(self, body: ResponseBody, entry: StoredResponse) -> ChatRequest:
        """Build the chat request. Raises RequestError, also for an unknown conversation."""
        name = body.conversation_id
        if name is not None:
            before = await self.conversations.items(name)
        else:
            before = [] if entry.previous is None else entry.previous.conversation()
        items = [*before, *entry.input]
        chat = await (self._request(body, items) if body.truncation != "auto" else self._shortened(body, items))
        if chat.prompt.session is None:  # responses that continue one another are a session
            session = requested_session(None, chain=name or entry.first.id)
            chat = replace(chat, prompt=replace(chat.prompt, session=session))
        return chat

    async def _request(self, body: ResponseBody, items: Sequence[dict[str, Any]]) -> ChatRequest:
        messages = await offload_if_large(lambda _: template_messages(to_messages(items)), items)
        if body.instructions is not None:
            messages = [{"role": "system", "content": body.instructions}, *messages]
        return await self._service.request(body.chat_input_of(messages, self._core.require_info()))

    async def _shortened(self, body: ResponseBody, items: list[dict[str, Any]]) -> ChatRequest:
        """Build the request without the oldest turns of a conversation that exceeds the context, as few as possible.

        Instructions stay, and a turn is dropped with its calls. If the answer has no limit, an eighth of the context
        is left for it. Raises RequestError if the last turn alone is too long.
        """
        most = self._core.require_info().max_request_tokens
        room = most // SHARE_OF_ANSWER if body.max_output_tokens is None else 0
        turns = [at for at, item in enumerate(items) if at and item["type"] == "message" and item["role"] == "user"]
        try:
            return await self._request(body, items)
        except RequestError as error:
            if error.code != "context_length_exceeded" or not turns:
                raise
        fitting: ChatRequest | None = None
        first, last = 0, len(turns)
        while first < last:
            middle = (first + last) // 2
            try:
                found = await self._request(body, _from_turn(items, turns[middle]))
            except RequestError as error:
                if error.code != "context_length_exceeded":
                    raise
                first = middle + 1
                continue
            if len(found.prompt.tokens) + room <= most:
                fitting, last = found, middle
            else:
                first = middle + 1
        return fitting or await self._request(body, _from_turn(items, turns[-1]))

    async def events(self, body: ResponseBody, chat: ChatRequest, entry: StoredResponse) -> AsyncGenerator[Event]:
        """Generate the response, fill `entry`, and store it.

        The first event comes with the first token, so an early error is raised and can be a status. A later error is an
        event of the stream.
        """
        logprobs = self._logprobs if body.wants_logprobs else None
        output = OutputBuilder(logprobs, body.namespaced_names, body.custom_names)
        number = 0
        try:
            async with aclosing(self._events(body, chat, entry, output)) as events:
                async for event in events:
                    yield {**event, "sequence_number": number}
                    number += 1
        except RamiformError as error:
            mark_failed(entry, error)
            if not number or not body.stream:
                raise
            yield {"type": "response.failed", "response": entry.response, "sequence_number": number}
            return
        if body.conversation_id is not None:
            with suppress(NotFoundError):  # it was deleted meanwhile
                await self.conversations.add(body.conversation_id, [*entry.input, *output.items])
        if body.store is not False:
            self.store.put(entry)
        kind = f"response.{entry.response['status']}"
        yield {"type": kind, "response": entry.response, "sequence_number": number}

    async def _events(
        self, body: ResponseBody, chat: ChatRequest, entry: StoredResponse, output: OutputBuilder
    ) -> AsyncGenerator[Event]:
        begun = False
        if body.background:
            for kind in ("created", "queued"):
                yield _state(entry, kind)
        async with (
            self._service.completions(chat) as [completion],
            aclosing(completion.deltas()) as deltas,
        ):
            async for delta in deltas:
                if not begun:
                    for event in _begin(entry):
                        yield event
                    begun = True
                for event in output.feed(delta):
                    yield event
            if not begun:
                for event in _begin(entry):
                    yield event
            for event in _finish(chat, completion, entry, output):
                yield event

    def _logprobs(self, values: list[TokenLogprob]) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = chat_logprobs(self._texts, values)["content"]
        return content


def _from_turn(items: Sequence[dict[str, Any]], begin: int) -> list[dict[str, Any]]:
    """Return the items from a turn on, and the instructions before it."""
    return [item for at, item in enumerate(items) if at >= begin or item.get("role") in ("system", "developer")]


def _begin(entry: StoredResponse) -> list[Event]:
    """Return the events with which the output begins; a response in the background has been created before."""
    kinds = ("in_progress",) if entry.response["background"] else ("created", "in_progress")
    entry.response["status"] = "in_progress"
    return [_state(entry, kind) for kind in kinds]


def _state(entry: StoredResponse, kind: str) -> Event:
    return {"type": f"response.{kind}", "response": dict(entry.response)}


def response_usage(chat: ChatRequest, completion: ChatCompletion) -> dict[str, Any]:
    return {
        "input_tokens": len(chat.prompt.tokens),
        "input_tokens_details": {
            "cached_tokens": completion.num_cached_tokens,
            "cache_write_tokens": len(chat.prompt.tokens) - completion.num_cached_tokens,
            "remembered_tokens": chat.num_remembered,
            **({"image_tokens": num_image} if (num_image := chat.prompt.num_image_tokens) else {}),
        },
        "output_tokens": completion.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": completion.num_reasoning_tokens},
        "total_tokens": len(chat.prompt.tokens) + completion.num_completion_tokens,
    }


def mark_failed(entry: StoredResponse, error: RamiformError) -> None:
    info = ErrorInfo.of(error)
    entry.response |= {"status": "failed", "error": {"code": info.code or "server_error", "message": info.message}}


def _finish(
    chat: ChatRequest, completion: ChatCompletion, entry: StoredResponse, output: OutputBuilder
) -> Iterator[Event]:
    assert completion.finish is not None
    status = "completed" if completion.finish.type == "stop" else "incomplete"
    yield from output.finish(status)
    reason = "max_output_tokens" if completion.finish.type == "length" else "aborted"
    entry.response |= {
        "status": status,
        "completed_at": int(time.time()),
        "incomplete_details": None if status == "completed" else {"reason": reason},
        "output": output.items,
        "usage": response_usage(chat, completion),
    }
