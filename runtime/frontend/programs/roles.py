"""Texts around the content of chat messages, taken from the model's chat template.

The template is rendered with a mark in place of each content and cut at the marks. It never sees what a program or a
model wrote, so it cannot trim that, and nothing is rendered twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...programs.common_prefix import common_prefix_length
from ...protocol.errors import RequestError
from ...tokenizer.chat_template import ChatTemplate

CACHED_TEXTS = 4096  # rendering a chat takes as long as it is, and a program over HTTP repeats its chat

_COMPLETE_ROLES = frozenset({"system", "user", "assistant"})  # the end of their messages does not depend on the next
ROLE_MARK = "\ue000"  # begins the marks; a private-use character: no template has it, and `trim` keeps it
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ChatState:
    """The roles of the messages begun so far, and the texts at their borders. Immutable: forked states share it.

    `tail` is the text that the last `end` appended. `lead` is the template's text between its generation prompt and a
    given content, e.g. a space or an empty thinking block: a program's text comes after it, a generated text begins
    with it. `tools` is the JSON list of those that the template describes; None: it describes none.
    """

    roles: tuple[str, ...] = ()
    is_open: bool = False
    tail: str = ""
    lead: str = ""
    tools: str | None = None

    def begin(
        self, template: ChatTemplate | None, role: str, tools: Sequence[Any] | None = None
    ) -> tuple[ChatState, str]:
        """Open a message; return the chat after it, and the text before its content. The chat has no `tools` if the
        template ignores them.

        Raises RequestError when a message is open, or naming a role that the template refuses here.
        """
        if self.is_open:
            raise RequestError(f"role {role!r} cannot begin inside role {self.roles[-1]!r}", param="role")
        if template is None:
            raise RequestError(f"role {role!r} needs a chat template, and this model has none", param="role")
        if not _ROLE.fullmatch(role):
            raise RequestError(f"a role is a word, got {role!r}", param="role")
        if tools is not None:
            if self.roles:
                raise RequestError("only the first message of a chat can offer tools", param="tools")
            if _takes_tools(template, role, tools):
                return replace(self, tools=json.dumps(tools)).begin(template, role)
        text, lead = _texts_before(template, self.roles, role, self.tools, _minute())
        known = common_prefix_length(self.tail, text)
        return ChatState((*self.roles, role), is_open=True, lead=lead, tools=self.tools), text[known:]

    def end(self, template: ChatTemplate | None) -> tuple[ChatState, str]:
        """Close the open message; return the chat after it, and the text after its content as if it were the last.

        For other roles, such as a tool's, only the part of that text that does not depend on the next message: some
        templates join neighbouring results. The rest comes with the next message.
        """
        if not self.is_open:
            raise RequestError("no role to end: none is open", param="role")
        assert template is not None
        tail = _text_after(template, self.roles, self.tools, _minute())
        return ChatState(self.roles, tail=tail, tools=self.tools), tail

    def without_lead(self) -> ChatState:
        return replace(self, lead="") if self.lead else self


def _minute() -> int:
    """Return the current minute, a part of the keys of cached texts: a template may print the date."""
    return int(time.time() // 60)


@lru_cache(maxsize=CACHED_TEXTS)
def _texts_before(
    template: ChatTemplate, roles: tuple[str, ...], role: str, tools: str | None, minute: int
) -> tuple[str, str]:
    """Return the text between the last message's content and that of a new one, and the lead of a given content."""
    text = before_content = _before_content(template, roles, role, tools)
    lead = ""
    if role == "assistant" and (prompt := _generation_prompt(template, roles, tools)) is not None:
        text = prompt
        lead = before_content.removeprefix(prompt) if before_content.startswith(prompt) else ""
    elif role == "assistant":
        # A template without generation prompts: the model generates the space before the content.
        text = before_content.rstrip(" ")
        lead = before_content[len(text) :]
    return text, lead


@lru_cache(maxsize=CACHED_TEXTS)
def _text_after(template: ChatTemplate, roles: tuple[str, ...], tools: str | None, minute: int) -> str:
    """Return the text after the last message's content, as far as it is known without the next message."""
    try:
        tail = _after(template.render(_marked(roles), tools=_read(tools)), len(roles) - 1) or ""
    except RequestError:
        tail = ""  # known only with the next message, whose `begin` appends it
    if roles[-1] not in _COMPLETE_ROLES:
        with suppress(RequestError):  # a template that refuses two such messages in a row
            tail = tail[: common_prefix_length(tail, _before_content(template, roles, roles[-1], tools))]
    return tail


def _before_content(template: ChatTemplate, roles: tuple[str, ...], role: str, tools: str | None) -> str:
    """Return the text between the content of the last message and that of a new one of `role`."""
    asked = (*roles, role)
    refusal: RequestError | None = None
    # Some templates fold a system message into what follows it, and render nothing for it alone.
    for probe in ((), ("user",), ("assistant",)):
        try:
            rendered = template.render(_marked((*asked, *probe)), tools=_read(tools))
        except RequestError as error:
            refusal = refusal or error
            continue
        after = _after(rendered, len(roles) - 1)
        mark = _mark(len(roles))
        if after is not None and mark in after:
            return after[: after.index(mark)]
    reason = "it leaves the message out" if refusal is None else str(refusal)
    raise RequestError(
        f"the model's chat template takes no message of role {role!r} here: {reason}",
        param="role",
        code="invalid_role",
    )


def _generation_prompt(template: ChatTemplate, roles: tuple[str, ...], tools: str | None) -> str | None:
    """Return the template's generation prompt after the messages so far, or None if it has none."""
    messages = _marked(roles)
    try:
        prompted = template.render(messages, tools=_read(tools), add_generation_prompt=True)
        if prompted == template.render(messages, tools=_read(tools)):
            return None
    except RequestError:
        return None
    return _after(prompted, len(roles) - 1)


def _takes_tools(template: ChatTemplate, role: str, tools: Sequence[Any]) -> bool:
    """Return whether the template describes tools in a chat that begins with a message of `role`."""
    for probe in (("user",), ()):
        messages = _marked((role, *probe))
        with suppress(RequestError):  # it refuses these messages
            return template.render(messages, tools=tools) != template.render(messages)
    return False


def _read(tools: str | None) -> list[Any] | None:
    return None if tools is None else json.loads(tools)


def _mark(index: int) -> str:
    return f"{ROLE_MARK}content {index}\ue001"


def _marked(roles: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"role": role, "content": _mark(index)} for index, role in enumerate(roles)]


def _after(rendered: str, index: int) -> str | None:
    """Return the text after the content of message `index`, all of it for -1, or None if that message is missing."""
    if index < 0:
        return rendered
    _, mark, after = rendered.partition(_mark(index))
    return after if mark else None
