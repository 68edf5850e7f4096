"""Shorten a conversation to the users' messages, word for word, and the model's summary."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from pydantic import Field

from .....protocol.core import ModelInfo
from .....protocol.errors import RequestError
from ....api.bodies import Many, Text, described, example
from ....api.chat_messages import template_messages
from ....api.constraints import ConstraintFields
from ....api.fields import GenerationFields
from ....chat.service import ChatService
from ....text.offload import offload_if_large
from .items import InputItem, as_items, encode_compaction, to_messages
from .output import new_id
from .service import ResponseService, response_usage

SUMMARY_PROMPT = "Summarize this conversation so that you can go on with it: facts, decisions, and what is still to do."
MAX_SUMMARY_TOKENS = 512


class CompactBody(GenerationFields):
    """`input`, `previous_response_id`, or both. The summary is plain text."""

    model_config = example(
        {"input": [{"role": "user", "content": "I am Ada."}, {"role": "assistant", "content": "Hello, Ada."}]},
        anyOf=[{"required": ["input"]}, {"required": ["previous_response_id"]}],
    )
    undocumented = frozenset(ConstraintFields.model_fields)
    n: Literal[1] = 1
    stream: Literal[False] = False
    input: Annotated[Text | Many[InputItem], described(minLength=1, minItems=1)] = Field(default_factory=list)
    instructions: Text | None = None
    previous_response_id: Text | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0

    def check(self, info: ModelInfo) -> None:
        super().check(info)
        if (asked := self.constraint()) is not None:
            raise RequestError("a summary has no constraint", param=asked[1])


class Compactor:
    """Summarises conversations with the model."""

    def __init__(self, service: ChatService, responses: ResponseService) -> None:
        self._service = service
        self._responses = responses

    async def compact(self, body: CompactBody, info: ModelInfo) -> dict[str, Any]:
        """Return the items that continue the conversation. Raises RequestError when there is nothing to compact."""
        previous = self._responses.previous(body.previous_response_id)
        before = [] if previous is None else previous.conversation()
        items = [*before, *await offload_if_large(lambda _: as_items(body.input), body.input)]
        messages = await offload_if_large(lambda _: template_messages(to_messages(items)), items) if items else []
        if not messages:
            raise RequestError("there is no conversation to compact: give input or an id", param="input")
        if body.instructions is not None:
            messages = [{"role": "system", "content": body.instructions}, *messages]
        messages.append({"role": "user", "content": SUMMARY_PROMPT})
        asked = body.chat_input(
            messages, info, prompt_field="input", limit=(None, "input"), default_limit=MAX_SUMMARY_TOKENS
        )
        chat = await self._service.request(asked)
        async with self._service.completions(chat) as [completion]:
            summary = "".join([delta.content async for delta in completion.deltas()])
        said = [item for item in items if item["type"] == "message" and item["role"] == "user"]
        return {
            "id": new_id("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "model": body.answering(info),
            "output": [
                *({"id": new_id("msg"), "status": "completed", **item, "content": _parts(item)} for item in said),
                {"type": "compaction", "id": new_id("cmp"), "encrypted_content": encode_compaction(summary)},
            ],
            "usage": response_usage(chat, completion),
        }


def _parts(item: dict[str, Any]) -> list[dict[str, Any]]:
    content = item["content"]
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content
