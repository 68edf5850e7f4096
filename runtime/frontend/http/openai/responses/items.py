"""Input items of the Responses API, and their conversion to chat messages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from .....protocol.errors import RequestError
from ....api.bodies import Body, Many, Text
from ....api.chat_messages import CalledFunction, ContentPart, Message, PastCall, has_images, message_text
from .custom_tools import input_arguments
from .output import new_id

DEFAULT_LISTED, MAX_LISTED = 20, 100  # items of a list
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
}


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Many[ContentPart]
    id: Text | None = None
    status: Text | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Body):
    type: Literal["function_call"]
    call_id: Text
    name: Text
    namespace: Text | None = None
    arguments: Text
    id: Text | None = None
    status: Text | None = None


class FunctionOutputItem(Body):
    type: Literal["function_call_output"]
    call_id: Text
    output: Text | Many[ContentPart]
    id: Text | None = None
    status: Text | None = None


class CustomCallItem(Body):
    type: Literal["custom_tool_call"]
    call_id: Text
    name: Text
    input: Text
    id: Text | None = None
    status: Text | None = None


class CustomOutputItem(FunctionOutputItem):
    type: Literal["custom_tool_call_output"]  # type: ignore[assignment]


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: Text | None = None
    summary: list[dict[str, Any]] | None = None
    content: Many[ContentPart] | None = None
    encrypted_content: Text | None = None
    status: Text | None = None


class CompactionItem(Body):
    type: Literal["compaction"]
    encrypted_content: Text
    id: Text | None = None
    created_by: Text | None = None


class ItemReference(Body):
    """Names an item of a stored response, in its place."""

    type: Literal["item_reference"]
    id: Text


def qualified_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model calls a function of a namespace."""
    return name if namespace is None else f"{namespace}.{name}"


def _item_type(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", "message")
    return kind if isinstance(kind, str) else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CustomOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[CompactionItem, Tag("compaction")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_item_type),
]


def as_items(given: str | list[Any]) -> list[dict[str, Any]]:
    """Return the items of an input as JSON."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [item.model_dump(exclude_none=True) for item in given]


def new_item_id(item: dict[str, Any]) -> str:
    return new_id(_PREFIXES[item["type"]])


def stored_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of an input as the API shows it: with an id, a status and a content of parts."""
    kind = item["type"]
    shown = {"id": new_item_id(item), **item}
    if kind == "message":
        name = "output_text" if item["role"] == "assistant" else "input_text"
        parts = [{"type": name, "text": item["content"]}] if isinstance(item["content"], str) else item["content"]
        shown["content"] = [{"annotations": [], **part} if part["type"] == "output_text" else part for part in parts]
    elif kind == "reasoning":
        shown.setdefault("summary", [])
    if kind not in ("reasoning", "compaction"):
        shown.setdefault("status", "completed")
    return shown


def listed_items(items: Sequence[dict[str, Any]], after: str | None, limit: int, order: str) -> dict[str, Any]:
    """Return a page of items, oldest first if `order` is "asc". Raises RequestError for an unknown `after`."""
    ordered = list(items if order == "asc" else reversed(items))
    begin = 0
    if after is not None:
        begin = next((place for place, item in enumerate(ordered, 1) if item["id"] == after), -1)
        if begin < 0:
            raise RequestError(f"there is no item {after!r} in the list", param="after")
    page = ordered[begin : begin + limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": "", "last_id": ""}
    return {"object": "list", "data": page, "has_more": begin + limit < len(ordered), **ends}


def to_messages(items: Sequence[dict[str, Any]]) -> list[Message]:
    """Convert items to chat messages. Calls, and the reasoning before them, join the preceding assistant message.

    Raises RequestError naming the first unsupported item.
    """
    messages: list[Message] = []
    thought: str | None = None
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item["type"]:
            case "message":
                message = Message(role=item["role"], content=_content(item["content"], f"{where}.content"))
                if item["role"] == "assistant":
                    message.reasoning_content, thought = thought, None
                messages.append(message)
            case "function_call" | "custom_tool_call":
                if not messages or messages[-1].role != "assistant":
                    messages.append(Message(role="assistant", reasoning_content=thought))
                    thought = None
                name = qualified_name(item.get("namespace"), item["name"])
                is_custom = item["type"] == "custom_tool_call"
                arguments = input_arguments(item["input"]) if is_custom else item["arguments"]
                function = CalledFunction(name=name, arguments=arguments)
                call = PastCall(id=item["call_id"], function=function)
                messages[-1].tool_calls = [*(messages[-1].tool_calls or []), call]
            case "function_call_output" | "custom_tool_call_output":
                output = _content(item["output"], f"{where}.output")
                messages.append(Message(role="tool", content=output, tool_call_id=item["call_id"]))
            case "reasoning":
                parts = item.get("content") or item.get("summary") or []
                thought = "\n".join(str(part.get("text") or "") for part in parts) or None
            case "compaction":
                text = f"Summary of the conversation so far:\n{decode_compaction(item['encrypted_content'])}"
                messages.append(Message(role="assistant", content=text))
            case kind:
                raise RequestError(f"{where}: items of type {kind!r} cannot be read", param="input")
    return messages


def _content(content: str | list[dict[str, Any]], where: str) -> str | list[ContentPart]:
    """Return a content as a text; as parts if there are images in it."""
    if isinstance(content, str):
        return content
    parts = [ContentPart.model_validate(part) for part in content]
    if not has_images(parts):
        return message_text(parts, where.rpartition(".")[0])
    return [part.at(f"{where}[{index}]") for index, part in enumerate(parts)]


def encode_compaction(summary: str) -> str:
    """Encode a summary as base64: opaque to clients, but not encrypted."""
    return base64.b64encode(summary.encode()).decode()


def decode_compaction(content: str) -> str:
    """Decode a summary. Raises RequestError for text that `encode_compaction` did not produce."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except (binascii.Error, ValueError):
        raise RequestError("the compaction item is not one of ours", param="encrypted_content") from None
