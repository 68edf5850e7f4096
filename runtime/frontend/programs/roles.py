"""Chat roles as pieces of text around a message's content, taken from the model's own chat template.

The template is rendered with a mark in place of each content and cut at the marks, so it never sees what a program
or a model wrote: it cannot trim it, and nothing has to be rendered twice. Knows no tokens.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...protocol.errors import RequestError
from ..text.common_prefix import common_prefix_length

_COMPLETE_ROLES = frozenset({"system", "user", "assistant"})  # whose messages end whatever comes next
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class Template(Protocol):
    """The part of a tokenizer's chat template that is used here. Raises RequestError when it refuses the messages."""

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = False) -> str: ...


@dataclass(frozen=True)
class ChatState:
    """The messages begun so far. A value: a forked state shares it.

    `tail` is what the last `end` appended; `lead` is what the template puts between its generation prompt and a
    content that it is given, e.g. a space or an empty thinking block: text that a program writes comes after it, text
    that the model generates begins with it.
    """

    roles: tuple[str, ...] = ()
    is_open: bool = False
    tail: str = ""
    lead: str = ""

    def begin(self, template: Template | None, role: str) -> tuple[ChatState, str]:
        """Open a message: the chat after it, and the text before its content.

        Raises RequestError when a message is open, or naming a role that the template refuses here.
        """
        if self.is_open:
            raise RequestError(f"role {role!r} cannot begin inside role {self.roles[-1]!r}", param="role")
        if template is None:
            raise RequestError(f"role {role!r} needs a chat template, and this model has none", param="role")
        if not _ROLE.fullmatch(role):
            raise RequestError(f"a role is a word, got {role!r}", param="role")
        text = before_content = self._before_content(template, role)
        lead = ""
        if role == "assistant" and (prompt := self._generation_prompt(template)) is not None:
            text = prompt
            lead = before_content.removeprefix(prompt) if before_content.startswith(prompt) else ""
        elif role == "assistant":
            # A template without generation prompts: a space before the content is the model's to generate.
            text = before_content.rstrip(" ")
            lead = before_content[len(text) :]
        known = common_prefix_length(self.tail, text)
        return ChatState((*self.roles, role), is_open=True, lead=lead), text[known:]

    def end(self, template: Template | None) -> tuple[ChatState, str]:
        """Close the open message: the chat after it, and the text after its content, as if it were the last one.

        Of a tool's, what is certain of that text: some templates put neighbouring results into one message. The rest
        comes with the next message.
        """
        if not self.is_open:
            raise RequestError("no role to end: none is open", param="role")
        assert template is not None
        try:
            rendered = template.render(_marked(self.roles))
            tail = _after(rendered, len(self.roles) - 1) or ""
        except RequestError:
            tail = ""  # only complete with the next message, whose begin then brings it
        if self.roles[-1] not in _COMPLETE_ROLES:
            with suppress(RequestError):  # a template that takes no other there
                tail = tail[: common_prefix_length(tail, self._before_content(template, self.roles[-1]))]
        return ChatState(self.roles, tail=tail), tail

    def without_lead(self) -> ChatState:
        return replace(self, lead="")

    def _before_content(self, template: Template, role: str) -> str:
        """What stands between the content of the message before and that of a new one of `role`."""
        roles = (*self.roles, role)
        refusal: RequestError | None = None
        # Some templates fold a system message into what follows it, and render nothing for it alone.
        for probe in ((), ("user",), ("assistant",)):
            try:
                rendered = template.render(_marked((*roles, *probe)))
            except RequestError as error:
                refusal = refusal or error
                continue
            after = _after(rendered, len(self.roles) - 1)
            mark = _mark(len(self.roles))
            if after is not None and mark in after:
                return after[: after.index(mark)]
        reason = "it leaves the message out" if refusal is None else str(refusal)
        raise RequestError(
            f"the model's chat template takes no message of role {role!r} here: {reason}",
            param="role",
            code="invalid_role",
        )

    def _generation_prompt(self, template: Template) -> str | None:
        """What the template puts after the messages so far for the model to go on, or None when it has no such."""
        messages = _marked(self.roles)
        try:
            prompted = template.render(messages, add_generation_prompt=True)
            if prompted == template.render(messages):
                return None
        except RequestError:
            return None
        return _after(prompted, len(self.roles) - 1)


def _mark(index: int) -> str:
    return f"\ue000content {index}\ue001"  # private use: in no template, and nothing that `trim` takes


def _marked(roles: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"role": role, "content": _mark(index)} for index, role in enumerate(roles)]


def _after(rendered: str, index: int) -> str | None:
    """The text after the content of message `index`; all of it for -1; None when that message is not there."""
    if index < 0:
        return rendered
    _, mark, after = rendered.partition(_mark(index))
    return after if mark else None
