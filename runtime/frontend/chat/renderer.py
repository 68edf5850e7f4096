"""Render chat messages with the model's chat template.

Message content must not contain special tokens. So their names are split by a marker before the template sees them, and
rejoined as untrusted text afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...protocol.errors import RequestError, did_you_mean
from ...tokenizer.chat_template import ChatTemplate, JsonText
from ...tokenizer.interface import Tokenizer
from ..text.encoding import Encoder, PromptSegment, TokenLimit
from ..text.offload import offload_if_large
from .request_templates import RequestTemplates
from .template_forms import PART_MARK, find_call_form, with_call_form, with_parts

SPLIT = "\ue010"  # private use: occurs in no template, and `trim` keeps it
_END = "\ue011"  # after the content to continue
CONTENT_MARKS = (SPLIT, _END, PART_MARK)  # removed from what clients send
# What a message has for any model; further fields are those that its template reads.
MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking"}
)
_RENDERED_ROLES = frozenset({"system", "user"})  # every template renders their content whole, except outer blanks


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """How messages become a prompt. `template` is the request's own, in place of the model's."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False  # end with the last message's content
    variables: Mapping[str, Any] = field(default_factory=dict)  # further ones of the template
    template: str | None = None


class MessageRenderer:
    """Renders messages for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, request_templates: RequestTemplates | None = None) -> None:
        """`request_templates` renders templates of requests; without it they are refused."""
        self._tokenizer = tokenizer
        self._request_templates = request_templates

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: RenderOptions = RenderOptions(),
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[PromptSegment]:
        """Render the conversation with the model's template. Only special tokens that the template wrote are trusted.

        Raises RequestError when there is no template or it rejects the messages.
        """
        chat = self._tokenizer.chat
        if chat is None:
            raise RequestError(
                "this model has no chat template; use completions", param="messages", code="no_chat_template"
            )
        arguments = self._arguments(messages, options, tools)
        text = chat.render(**arguments)
        if options.continue_final_message:
            text = _up_to_content(text, chat.render(**_with_mark(arguments)), arguments["messages"][-1]["content"])
        return self._segments(text)

    def _arguments(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: RenderOptions,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> dict[str, Any]:
        """Return the arguments of `ChatTemplate.render`, in which names of special tokens are split."""
        chat = self._tokenizer.chat if options.template is None else None
        _check_fields(messages, chat, options.template)
        parted = [with_parts(message, chat) for message in messages]
        if options.continue_final_message:
            parted[-1] = with_parts(messages[-1], None)
        given = [self._split_names(message) for message in with_call_form(parted, find_call_form(chat))]
        if options.continue_final_message:
            given[-1]["content"] = given[-1].get("content") or ""
        return {
            "messages": given,
            "tools": None if not tools else self._split_names(list(tools)),
            "add_generation_prompt": options.add_generation_prompt and not options.continue_final_message,
            **_safe_variables(options.variables),
        }

    async def render_aside(
        self,
        encoder: Encoder,
        messages: Sequence[Mapping[str, Any]],
        options: RenderOptions,
        *,
        bound: TokenLimit | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[PromptSegment]:
        """Render in a thread if the messages are large. A request's own template renders in a process of its own.

        Raises RequestError as `render` does, and when the messages alone exceed `bound`.
        """
        if bound is not None:
            contents = [message.get("content") for message in messages if message["role"] in _RENDERED_ROLES]
            texts = [text for text in contents if isinstance(text, str)]
            if sum(map(len, texts)) > bound.most:
                encoder.check_length([_without_marks(text).strip() for text in texts], bound)
        large = messages, tools, options.variables
        if options.template is None:
            return await offload_if_large(lambda _: self.render(messages, options, tools=tools), *large)
        if self._request_templates is None:
            raise RequestError("chat_template needs a server with --trust-request-chat-template", param="chat_template")
        arguments = await offload_if_large(lambda _: self._arguments(messages, options, tools), *large)
        names = self._names()
        text = await self._request_templates.render(options.template, names, arguments)
        if options.continue_final_message:
            marked = await self._request_templates.render(options.template, names, _with_mark(arguments))
            text = _up_to_content(text, marked, arguments["messages"][-1]["content"])
        return await offload_if_large(lambda _: self._segments(text), text)

    def _names(self) -> dict[str, str]:
        """Return the variables of templates that name special tokens."""
        tokenizer = self._tokenizer
        if tokenizer.chat is not None:
            return tokenizer.chat.variables
        by_id = {token: name for name, token in tokenizer.special_ids.items()}
        found = {"bos_token": tokenizer.bos_id, "eos_token": next(iter(tokenizer.eos_ids), None)}
        return {name: by_id[token] for name, token in found.items() if token is not None and token in by_id}

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        names = sorted((name for name in self._tokenizer.special_ids if len(name) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None

    def _split_names(self, value: Any) -> Any:
        """Return `value` with the marker inside each special token's name."""
        match value:
            case JsonText():
                return JsonText(self._split_names(str(value)), value.where)
            case str():
                text = _without_marks(value)
                return text if self._special is None else self._special.sub(_split_name, text)
            case dict():
                return {self._split_names(key): self._split_names(item) for key, item in value.items()}
            case list():
                return [self._split_names(item) for item in value]
            case _:
                return value

    def _segments(self, text: str) -> list[PromptSegment]:
        """Cut the rendered text at the markers; special tokens' names of the client are untrusted."""
        segments: list[PromptSegment] = []
        while (at := text.find(SPLIT)) >= 0:
            # The marker follows the first character of a name that ends before the next marker.
            name = self._name_at(text, at)
            segments += [PromptSegment(text[: at - 1], trusted=True), PromptSegment(name, trusted=False)]
            text = text[at + len(name) :]
        return [*segments, PromptSegment(text, trusted=True)]

    def _name_at(self, text: str, at: int) -> str:
        """Return the special token's name whose first character is before the marker at `at`."""
        names = [name for name in self._tokenizer.special_ids if len(name) > 1]
        whole = text[at - 1] + text[at + 1 :]
        return max((name for name in names if whole.startswith(name)), key=len, default=text[at - 1])


def _check_fields(messages: Sequence[Mapping[str, Any]], chat: ChatTemplate | None, own: str | None) -> None:
    """Raise RequestError for a field that the template, or a request's own one, does not read."""
    for index, message in enumerate(messages):
        for name in message.keys() - MESSAGE_FIELDS:
            if name == "images":
                raise RequestError(f"messages[{index}]: this route takes no images", param="messages")
            if own is not None and re.search(rf"\b{re.escape(name)}\b", own):
                continue
            read = frozenset() if chat is None else chat.message_fields
            if name not in read:
                where = f"messages[{index}].{name}"
                why = did_you_mean(name, MESSAGE_FIELDS | read) or "; the chat template reads no such field of messages"
                raise RequestError(f"unknown parameter {where}{why}", param=where)


def _with_mark(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with a mark at the end of the last message's content."""
    *others, last = arguments["messages"]
    return {**arguments, "messages": [*others, {**last, "content": f"{last['content']}{_END}"}]}


def _up_to_content(text: str, marked: str, content: str) -> str:
    """Cut a rendered text after the last message's content. `marked` is rendered with a mark at the content's end; a
    template that tests the content may write another text then, in which the content is searched for."""
    before, mark, _ = marked.rpartition(_END)
    if not mark:
        raise RequestError("the chat template leaves the last message out", param="messages")
    before = _without_end(before)
    if text.startswith(before) and _without_end(marked) == text:
        return before
    at = text.rfind(content.strip())
    if at < 0 or not content.strip():
        raise RequestError("the chat template changes the last message, so it cannot be continued", param="messages")
    whole = content.lstrip()
    return text[: at + len(whole)] if text.startswith(whole, at) else text[: at + len(content.strip())]


def _without_end(text: str) -> str:
    return text.replace(_END, "")


def _without_marks(text: str) -> str:
    for mark in CONTENT_MARKS:
        text = text.replace(mark, "")
    return text


def _split_name(match: re.Match[str]) -> str:
    name = match.group()
    return f"{name[0]}{SPLIT}{name[1:]}"


def _safe_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in variables:
            raise RequestError(f"chat_template_kwargs may not set {name}", param="chat_template_kwargs")
    return dict(variables)
