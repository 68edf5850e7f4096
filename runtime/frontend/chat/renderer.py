"""Chat messages of an HTTP client to token ids, by the model's own chat template.

What a client wrote may not name special tokens: names in it are parted by a mark before the template sees them, and
put together again, as ordinary text, behind it. Knows messages as plain dicts; nothing of requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ...protocol.errors import RequestError
from ...tokenizer.interface import Tokenizer
from ..text.encoding import Encoder, PromptSegment, TokenLimit
from ..text.offload import offload_if_large

_MARK = "\ue010"  # private use: in no template, and nothing that `trim` takes
_END = "\ue011"  # after the content that is to be continued
_SHOWN = frozenset({"system", "user"})  # roles whose content every template shows whole, but for blanks at its ends


class MessageRenderer:
    """Renders for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> list[PromptSegment]:
        """The conversation as text, special tokens trusted where the template wrote them.

        `continue_final_message`: the text ends with the last message's content. `options` are further variables of
        the template. Raises RequestError when there is no template or it refuses the messages.
        """
        chat = self._tokenizer.chat
        if chat is None:
            raise RequestError(
                "this model has no chat template; use completions", param="messages", code="no_chat_template"
            )
        given = [self._parted(dict(message)) for message in messages]
        if continue_final_message:
            given[-1] = {**given[-1], "content": f"{given[-1].get('content') or ''}{_END}"}
        text = chat.render(
            given,
            tools=None if not tools else self._parted(list(tools)),
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            **_safe_options(options or {}),
        )
        if continue_final_message:
            text, mark, _ = text.rpartition(_END)
            if not mark:
                raise RequestError("the chat template leaves the last message out", param="messages")
        return self._segments(text)

    async def render_aside(
        self, encoder: Encoder, messages: Sequence[Mapping[str, Any]], *, bound: TokenLimit | None, **wanted: Any
    ) -> list[PromptSegment]:
        """Render without keeping anybody else waiting; `wanted` is what `render` takes.

        Raises RequestError as `render` does, and when the messages alone are too long for `bound`.
        """
        if bound is not None:
            shown = [message.get("content") for message in messages if message["role"] in _SHOWN]
            texts = [text for text in shown if isinstance(text, str)]
            if sum(map(len, texts)) > bound.most:
                encoder.check_length([_unmarked(text).strip() for text in texts], bound)
        return await offload_if_large(lambda _: self.render(messages, **wanted), messages, wanted)

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        names = sorted((name for name in self._tokenizer.special_ids if len(name) > 1), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None

    def _parted(self, value: Any) -> Any:
        """`value` with a mark inside each special token's name."""
        match value:
            case str():
                text = _unmarked(value)
                return text if self._special is None else self._special.sub(_part, text)
            case dict():
                return {self._parted(key): self._parted(item) for key, item in value.items()}
            case list():
                return [self._parted(item) for item in value]
            case _:
                return value

    def _segments(self, text: str) -> list[PromptSegment]:
        segments: list[PromptSegment] = []
        while (at := text.find(_MARK)) >= 0:
            # The mark stands after the first character of a name that ends before the next mark.
            name = self._name_at(text, at)
            segments += [PromptSegment(text[: at - 1], trusted=True), PromptSegment(name, trusted=False)]
            text = text[at + len(name) :]
        return [*segments, PromptSegment(text, trusted=True)]

    def _name_at(self, text: str, at: int) -> str:
        """The special token's name whose first character is before the mark at `at`."""
        names = [name for name in self._tokenizer.special_ids if len(name) > 1]
        whole = text[at - 1] + text[at + 1 :]
        return max((name for name in names if whole.startswith(name)), key=len, default=text[at - 1])


def _unmarked(text: str) -> str:
    return text.replace(_MARK, "").replace(_END, "")


def _part(match: re.Match[str]) -> str:
    name = match.group()
    return f"{name[0]}{_MARK}{name[1:]}"


def _safe_options(options: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("messages", "tools", "add_generation_prompt"):
        if name in options:
            raise RequestError(f"chat_template_kwargs may not set {name}", param="chat_template_kwargs")
    return dict(options)
