"""Thinking aloud: what a model writes between `<think>` and `</think>`, parted from its answer as it streams."""

from __future__ import annotations

from typing import Any

from ...protocol.errors import RequestError
from ...tokenizer.interface import Tokenizer

THINK_START = "<think>"
THINK_END = "</think>"
_PROBE: list[dict[str, Any]] = [{"role": "user", "content": "a"}]


def can_reason(tokenizer: Tokenizer) -> bool:
    """Whether the model was taught to: the end of thinking is a token, or its chat template knows of thinking."""
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
            continue  # it refuses this message whatever the options: nothing to learn from it
    return False


class ReasoningParser:
    """`is_open`: the prompt has begun the thinking. Otherwise an answer that does not begin with OPEN has none."""

    def __init__(self, *, is_open: bool) -> None:
        self._place = "thought" if is_open else "start"
        self._waiting = ""
        self._begun = False  # whether the part that is being written has more than blanks

    @property
    def in_thought(self) -> bool:
        return self._place == "thought"

    def feed(self, text: str) -> tuple[str, str]:
        """The thinking and the answer that are certain now."""
        if self._place == "answer" and self._begun:
            return "", text
        self._waiting += text
        thought = ""
        if self._place == "start":
            begun = self._waiting.lstrip()
            if begun.startswith(THINK_START):
                self._place, self._waiting = "thought", begun[len(THINK_START) :]
            elif not THINK_START.startswith(begun):
                self._place = "answer"
                self._begun = True  # its blanks are the answer's own
            else:
                return "", ""
        if self._place == "thought":
            thought = self._think()
        if self._place != "answer":
            return thought, ""
        answer = self._waiting if self._begun else self._waiting.lstrip()
        self._begun = bool(answer)
        self._waiting = ""
        return thought, answer

    def finish(self) -> tuple[str, str]:
        """The answer is over: the rest of both."""
        rest, self._waiting = self._waiting, ""
        return (rest.rstrip(), "") if self._place == "thought" else ("", rest)

    def _think(self) -> str:
        body, closed, after = self._waiting.partition(THINK_END)
        if closed:
            self._place, self._waiting = "answer", after
            thought = body.rstrip()
            thought = thought if self._begun else thought.lstrip()
            self._begun = False
            return thought
        if not self._begun:
            self._waiting = self._waiting.lstrip()
        num_held = max(
            (size for size in range(1, len(THINK_END)) if self._waiting.endswith(THINK_END[:size])), default=0
        )
        body = self._waiting[: len(self._waiting) - num_held].rstrip()
        self._waiting = self._waiting[len(body) :]
        self._begun = self._begun or bool(body)
        return body
