"""Finds how a model's chat template takes past tool calls and content in parts, by rendering some.

Most templates take content that is empty or null, and arguments as an object, which they serialise. DeepSeek R1's write
calls only where the content is null; others fail on null, or write "None". Some append the arguments to a text, so they
have to be text. Arguments that are no object, as those of a call that `max_tokens` cut off, are a text for templates
that write one as it is; for those that iterate them they are an error. Some templates put the parts of a content
together by rules of their own; for others they are lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...protocol.errors import RequestError
from ...tokenizer.chat_template import ChatTemplate, JsonText
from ..text.pictures import PICTURE_MARK

PART_MARK = "\ue012"  # between the parts of a content that was a list; private use
PICTURE_PART: Mapping[str, Any] = {"type": "image"}
_TOOL = {
    "type": "function",
    "function": {"name": "zq", "description": "", "parameters": {"type": "object", "properties": {}}},
}
_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "zq", "arguments": {"zqx": 1}}}
_CUT_CALL = _CALL | {"function": {"name": "zq", "arguments": JsonText('{"zqx": "')}}
_MOST_SHOWN = 200  # characters of arguments, in an error
_QUESTION = {"role": "user", "content": "a"}
_RESULT = {"role": "tool", "content": "1", "tool_call_id": "abcdefghi", "name": "zq"}


class CallForm(NamedTuple):
    """Forms in which a template reads messages with calls."""

    for_null: str | None = ""
    for_empty: str | None = ""
    text_arguments: bool = False
    takes_texts: bool = True  # arguments that are no object are written as they are


@lru_cache(maxsize=8)
def find_call_form(chat: ChatTemplate | None) -> CallForm:
    """Return the form in which the template writes calls: what the client sent, if it writes them then."""
    if chat is None:
        return CallForm()
    for rest in ([_RESULT], []):  # some templates refuse calls that end a conversation, others results
        for text_arguments in (False, True):
            shows_null, shows_empty = (
                "zqx" in _rendered_call(chat, _CALL, content, rest, text_arguments) for content in (None, "")
            )
            if shows_null or shows_empty:
                content = "" if shows_empty else None
                takes_texts = '{"zqx": "' in _rendered_call(chat, _CUT_CALL, content, rest, text_arguments)
                return CallForm(None if shows_null else "", content, text_arguments, takes_texts)
    return CallForm()


def _rendered_call(
    chat: ChatTemplate,
    call: Mapping[str, Any],
    content: str | None,
    rest: Sequence[Mapping[str, Any]],
    text_arguments: bool,
) -> str:
    """Return a conversation with the call; nothing if the template refuses it or writes Python values."""
    messages = with_call_form(
        [{"role": "assistant", "content": content, "tool_calls": [call]}], CallForm(content, content, text_arguments)
    )
    try:
        rendered = chat.render([_QUESTION, *messages, *rest], tools=[_TOOL])
        without = chat.render([_QUESTION, {"role": "assistant", "content": "b"}], tools=[_TOOL])
    except RequestError:
        return ""
    return "" if "{'zqx'" in rendered or rendered.count("None") > without.count("None") else rendered


def with_parts(message: Mapping[str, Any], chat: ChatTemplate | None) -> dict[str, Any]:
    """Return the message with content in parts as the template takes it: as a list, else as lines of one text. A part
    that is PICTURE_MARK is an image; where the template writes none, the mark stays."""
    content = message.get("content")
    if not isinstance(content, str) or (PART_MARK not in content and PICTURE_MARK not in content):
        return dict(message)
    texts = content.split(PART_MARK)
    takes = takes_pictures if PICTURE_MARK in texts else _takes_parts
    if chat is None or not takes(chat, message["role"]):
        return {**message, "content": "\n".join(texts)}
    parts = [PICTURE_PART if text == PICTURE_MARK else {"type": "text", "text": text} for text in texts]
    return {**message, "content": parts}


def takes_pictures(chat: ChatTemplate, role: str) -> bool:
    """Return True if the template writes something for an image in a message of the role, there or before all texts."""
    return _with_and_without_picture(chat, role) is not None


@lru_cache(maxsize=32)
def picture_text(chat: ChatTemplate, role: str) -> str | None:
    """Return what the template writes for an image between texts; None: nothing there, or it takes no such message."""
    if (found := _with_and_without_picture(chat, role)) is None:
        return None
    between, own = (text.partition("zqa")[2].partition("zqb")[0] for text in found)
    return own.removesuffix(between) or None


@lru_cache(maxsize=32)
def _with_and_without_picture(chat: ChatTemplate, role: str) -> tuple[str, str] | None:
    """Return two texts without and with an image between them, rendered; None: the template takes no such message."""
    around = [{"type": "text", "text": "zqa"}, {"type": "text", "text": "zqb"}]
    with_image = [around[0], PICTURE_PART, around[1]]
    before = [_QUESTION] if role == "assistant" else []
    after = [_QUESTION] if role == "system" else []
    try:
        plain, rendered = (
            chat.render([*before, {"role": role, "content": content}, *after]) for content in (around, with_image)
        )
    except RequestError:
        return None
    if plain == rendered or "'zqa'" in rendered or '"zqa"' in rendered:
        return None
    return plain, rendered


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
    """Return the messages, those with calls in a form. Raises RequestError for arguments that the template cannot
    write."""
    changed = []
    for message in messages:
        given = dict(message)
        if given.get("tool_calls"):
            if given.get("content") in (None, ""):
                given["content"] = form.for_null if given.get("content") is None else form.for_empty
            given["tool_calls"] = [_in_form(call, form) for call in given["tool_calls"]]
        changed.append(given)
    return changed


def _in_form(call: Mapping[str, Any], form: CallForm) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, JsonText) and not form.takes_texts:
        shown = arguments if len(arguments) <= _MOST_SHOWN else f"{arguments[:_MOST_SHOWN]}..."
        raise RequestError(
            f"{arguments.where} is no JSON object, and the chat template of this model writes objects only: {shown!r}. "
            "Send the call with whole arguments or with {}, or leave it out",
            param="messages",
        )
    if not form.text_arguments or isinstance(arguments, str):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}
