"""Finds how a model's chat template takes past tool calls and content in parts, by rendering some.

Most templates take content that is empty or null, and arguments as an object, which they serialise. DeepSeek R1's write
calls only where the content is null; others fail on null, or write "None". Some append the arguments to a text, so they
have to be text. Some templates put the parts of a content together by rules of their own; for others they are lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...protocol.errors import RequestError
from ...tokenizer.chat_template import ChatTemplate

PART_MARK = "\ue012"  # between the parts of a content that was a list; private use
_TOOL = {
    "type": "function",
    "function": {"name": "zq", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "zq", "arguments": {"zqx": 1}}}
_QUESTION = {"role": "user", "content": "a"}
_RESULT = {"role": "tool", "content": "1", "tool_call_id": "abcdefghi", "name": "zq"}


class CallForm(NamedTuple):
    """Forms in which a template reads messages with calls."""

    for_null: str | None = ""
    for_empty: str | None = ""
    text_arguments: bool = False


@lru_cache(maxsize=8)
def find_call_form(chat: ChatTemplate | None) -> CallForm:
    """Return the form in which the template writes calls: what the client sent, if it writes them then."""
    if chat is None:
        return CallForm()
    for rest in ([_RESULT], []):  # some templates refuse calls that end a conversation, others results
        for text_arguments in (False, True):
            shows_null, shows_empty = (_shows_call(chat, content, rest, text_arguments) for content in (None, ""))
            if shows_null or shows_empty:
                return CallForm(None if shows_null else "", "" if shows_empty else None, text_arguments)
    return CallForm()


def _shows_call(
    chat: ChatTemplate, content: str | None, rest: Sequence[Mapping[str, Any]], text_arguments: bool
) -> bool:
    """Return True if the template writes a call's arguments, and no Python values."""
    call = with_call_form(
        [{"role": "assistant", "content": content, "tool_calls": [_CALL]}], CallForm(content, content, text_arguments)
    )
    try:
        rendered = chat.render([_QUESTION, *call, *rest], tools=[_TOOL])
        without = chat.render([_QUESTION, {"role": "assistant", "content": "b"}], tools=[_TOOL])
    except RequestError:
        return False
    return "zqx" in rendered and "{'zqx'" not in rendered and rendered.count("None") <= without.count("None")


def with_parts(message: Mapping[str, Any], chat: ChatTemplate | None) -> dict[str, Any]:
    """Return the message with content in parts as the template takes it: as a list, else as lines of one text."""
    content = message.get("content")
    if not isinstance(content, str) or PART_MARK not in content:
        return dict(message)
    texts = content.split(PART_MARK)
    if chat is None or not _takes_parts(chat, message["role"]):
        return {**message, "content": "\n".join(texts)}
    return {**message, "content": [{"type": "text", "text": text} for text in texts]}


@lru_cache(maxsize=32)
def _takes_parts(chat: ChatTemplate, role: str) -> bool:
    """Return True if the template writes the texts of a list of parts, and no Python values."""
    parts = {"role": role, "content": [{"type": "text", "text": "zqa"}, {"type": "text", "text": "zqb"}]}
    before = [_QUESTION] if role == "assistant" else []
    after = [_QUESTION] if role == "system" else []
    try:
        rendered = chat.render([*before, parts, *after])
    except RequestError:
        return False
    return "zqa" in rendered and "zqb" in rendered and "'zqa'" not in rendered and '"zqa"' not in rendered


def with_call_form(messages: Sequence[Mapping[str, Any]], form: CallForm) -> list[dict[str, Any]]:
    """Return the messages, those with calls in a form."""
    changed = []
    for message in messages:
        given = dict(message)
        if given.get("tool_calls"):
            if given.get("content") in (None, ""):
                given["content"] = form.for_null if given.get("content") is None else form.for_empty
            if form.text_arguments:
                given["tool_calls"] = [_with_text_arguments(call) for call in given["tool_calls"]]
        changed.append(given)
    return changed


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
