"""Split a model's reasoning, between `<think>` and `</think>`, from its answer as it streams."""

from __future__ import annotations

from typing import Any

from ...protocol.errors import RequestError
from ...tokenizer.interface import Tokenizer

THINK_START = "<think>"
THINK_END = "</think>"
_PROBE: list[dict[str, Any]] = [{"role": "user", "content": "a"}]


def can_reason(tokenizer: Tokenizer) -> bool:
    """Return True if the model was trained to reason: `</think>` is a token, or the chat template has `<think>`."""
    if tokenizer.chat is None:
        return False
    if THINK_END in tokenizer.special_ids or THINK_END.encode() in tokenizer.token_bytes:
        return True
    variants: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False})
    for options in variants:
        try:
            if THINK_START in tokenizer.chat.render(_PROBE, add_generation_prompt=True, **options):
                return True
        except RequestError:
            continue  # the template rejects this message
    return False


class ReasoningParser:
    """Incremental splitter. `is_open`: the prompt has begun the reasoning. Otherwise only an answer that begins with
    THINK_START has any.
    """

    def __init__(self, *, is_open: bool) -> None:
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
            if begun.startswith(THINK_START):
                self._state, self._pending = "reasoning", begun[len(THINK_START) :]
            elif not THINK_START.startswith(begun):
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
        body, closed, after = self._pending.partition(THINK_END)
        if closed:
            self._state, self._pending = "answer", after
            reasoning = body.rstrip()
            reasoning = reasoning if self._has_text else reasoning.lstrip()
            self._has_text = False
            return reasoning
        if not self._has_text:
            self._pending = self._pending.lstrip()
        num_held = max(
            (size for size in range(1, len(THINK_END)) if self._pending.endswith(THINK_END[:size])), default=0
        )
        body = self._pending[: len(self._pending) - num_held].rstrip()
        self._pending = self._pending[len(body) :]
        self._has_text = self._has_text or bool(body)
        return body
