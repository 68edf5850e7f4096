"""Chat messages as clients send them, and as chat templates want them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ....protocol.errors import RequestError
from ..bodies import Body, Many, Text

MAX_MESSAGES = 100_000
TEXT_PARTS = ("text", "input_text", "output_text")


class ContentPart(Body):
    """A piece of a message. Which types a model can read is said by `message_text`."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "oneOf": [
                {"required": ["text"], "properties": {"type": {"enum": list(TEXT_PARTS)}, "text": {"type": "string"}}},
                {"required": ["refusal"], "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}}},
            ]
        },
    )
    type: str
    text: Text | None = None
    refusal: Text | None = None


class CalledFunction(Body):
    name: Text
    arguments: Text


class PastCall(Body):
    model_config = ConfigDict(extra="allow", strict=True)
    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """Further fields are the template's to read."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        json_schema_extra={
            "anyOf": [
                {
                    "properties": {"role": {"not": {"const": "tool"}}, "content": {"not": {"type": "null"}}},
                    "required": ["content"],
                },
                {
                    "properties": {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1}},
                    "required": ["tool_calls"],
                },
                {
                    "properties": {"content": {"not": {"type": "null"}}, "tool_call_id": {"type": "string"}},
                    "required": ["content", "tool_call_id"],
                },
            ]
        },
    )
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Many[ContentPart] | None = None
    name: Text | None = None
    tool_calls: Many[PastCall] | None = None
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


Messages = Annotated[list[Message], Field(fail_fast=True, max_length=MAX_MESSAGES, json_schema_extra={"minItems": 1})]


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Raises RequestError naming the first message that no model of ours can read."""
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    return [_for_template(message, index) for index, message in enumerate(messages)]


def _for_template(message: Message, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise RequestError(f"{where} needs content", param="messages")
    if message.role == "tool" and message.tool_call_id is None:
        raise RequestError(f"{where} needs tool_call_id: which call does it answer?", param="messages")
    given = message.model_dump(exclude_none=True)
    # Templates know of system messages; a developer's are the same by another name.
    given["role"] = "system" if message.role == "developer" else message.role
    given["content"] = message_text(message.content, where)
    if message.tool_calls:
        given["tool_calls"] = [_for_call(call) for call in message.tool_calls]
    if message.reasoning is not None:
        given.setdefault("reasoning_content", message.reasoning)
    return given


def message_text(content: str | list[ContentPart] | None, where: str) -> str:
    """The text of a message. Raises RequestError for parts that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        text = part.text if part.type in TEXT_PARTS else part.refusal if part.type == "refusal" else None
        if text is None:
            is_text = part.type in TEXT_PARTS
            wrong = "without text" if is_text else f"of type {part.type!r}: this model reads text only"
            raise RequestError(f"{where} has a part {wrong}", param=where.partition("[")[0])
        texts.append(text)
    return "\n".join(texts)


def with_short_ids(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mistral's templates take ids of nine letters and digits only: each becomes one that its text decides."""

    def short(call_id: str) -> str:
        return sha256(call_id.encode()).hexdigest()[:9]

    changed = []
    for message in messages:
        given = dict(message)
        if "tool_call_id" in given:
            given["tool_call_id"] = short(given["tool_call_id"])
        if "tool_calls" in given:
            given["tool_calls"] = [{**call, "id": short(call["id"])} for call in given["tool_calls"]]
        changed.append(given)
    return changed


def _for_call(call: PastCall) -> dict[str, Any]:
    """Templates write arguments as JSON themselves, so they want the value; what is no JSON stays text."""
    arguments: Any
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = call.function.arguments  # some model got it wrong: it is shown as it was
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
