"""Split a model's reasoning, between the markers of its format, from its answer as it streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...protocol.config import ReasoningFormatName
from ...protocol.errors import RequestError
from ...tokenizer.chat_template import ChatTemplate
from ...tokenizer.interface import Tokenizer
from . import harmony

_PROBE: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
_VARIANTS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False}, {"thinking": True})


@dataclass(frozen=True)
class ReasoningMarkers:
    """Markers around the reasoning. `is_prompted`: the model reasons only if the prompt mentions the markers.

    `sign` is a token or a text that only models of this format have; default: `end`.
    """

    start: str
    end: str
    is_prompted: bool = False
    sign: str = ""


REASONING_FORMATS: dict[ReasoningFormatName, ReasoningMarkers] = {
    "think": ReasoningMarkers("<think>", "</think>"),
    "magistral": ReasoningMarkers("[THINK]", "[/THINK]"),
    "kimi": ReasoningMarkers("◁think▷", "◁/think▷"),
    "seed_oss": ReasoningMarkers("<seed:think>", "</seed:think>"),
    "gemma4": ReasoningMarkers("<|channel>thought", "<channel|>"),
    "harmony": ReasoningMarkers(harmony.ANALYSIS, harmony.END, sign=harmony.CHANNEL),
    "granite": ReasoningMarkers("Here is my thought process:", "Here is my response:", is_prompted=True),
}


def detect_reasoning_markers(tokenizer: Tokenizer) -> ReasoningMarkers | None:
    """Return the format in which the model was trained to reason; None if it was not.

    Its end marker is a token, or the chat template writes one of its markers.
    """
    if tokenizer.chat is None:
        return None
    rendered = "".join(_rendered_probes(tokenizer.chat))
    for each in REASONING_FORMATS.values():
        sign = each.sign or each.end
        if sign in tokenizer.special_ids or (not each.is_prompted and sign.encode() in tokenizer.token_bytes):
            return each
        if (each.end if each.is_prompted else each.start) in rendered:
            return each
    return None


def _rendered_probes(chat: ChatTemplate) -> Iterator[str]:
    for options in _VARIANTS:
        try:
            yield chat.render(_PROBE, add_generation_prompt=True, **options)
        except RequestError:
            continue  # the template rejects this message


class ReasoningParser:
    """Incremental splitter. `is_open`: the prompt has begun the reasoning. Otherwise only an answer that begins with
    the start marker has any.
    """

    def __init__(self, markers: ReasoningMarkers, *, is_open: bool) -> None:
        self._start, self._end = markers.start, markers.end
        self._state = "reasoning" if is_open else "start"
        self._pending = ""
        self._has_text = False  # the current part has more than blanks

    @property
    def in_reasoning(self) -> bool:
        return self._state == "reasoning"

    def feed(self, text: str) -> tuple[str, str]:
        """Add text; return the reasoning and the answer text that are certain now."""
        if self._state == "answer" and self._has_text:
            return "", text
        self._pending += text
        reasoning = ""
        if self._state == "start":
            begun = self._pending.lstrip()
            if begun.startswith(self._start):
                self._state, self._pending = "reasoning", begun[len(self._start) :]
            elif not self._start.startswith(begun):
                self._state = "answer"
                self._has_text = True  # leading blanks belong to the answer
            else:
                return "", ""
        if self._state == "reasoning":
            reasoning = self._take_reasoning()
        if self._state != "answer":
            return reasoning, ""
        answer = self._pending if self._has_text else self._pending.lstrip()
        self._has_text = bool(answer)
        self._pending = ""
        return reasoning, answer

    def finish(self) -> tuple[str, str]:
        """Return the rest of both at the end of the output."""
        rest, self._pending = self._pending, ""
        return (rest.rstrip(), "") if self._state == "reasoning" else ("", rest)

    def _take_reasoning(self) -> str:
        body, closed, after = self._pending.partition(self._end)
        if closed:
            self._state, self._pending = "answer", after
            reasoning = body.rstrip()
            reasoning = reasoning if self._has_text else reasoning.lstrip()
            self._has_text = False
            return reasoning
        if not self._has_text:
            self._pending = self._pending.lstrip()
        num_held = max(
            (size for size in range(1, len(self._end)) if self._pending.endswith(self._end[:size])), default=0
        )
        body = self._pending[: len(self._pending) - num_held].rstrip()
        self._pending = self._pending[len(body) :]
        self._has_text = self._has_text or bool(body)
        return body
