"""Thinking aloud: what a model writes between `<think>` and `</think>`, parted from its answer as it streams."""

from __future__ import annotations

from typing import Any

from ...protocol.errors import RequestError
from ...tokenizer.interface import Tokenizer

OPEN = "<think>"
CLOSE = "</think>"
_PROBE: list[dict[str, Any]] = [{"role": "user", "content": "a"}]


def thinks(tokenizer: Tokenizer) -> bool:
    """Whether the model was taught to: the end of thinking is a token, or its chat template knows of thinking."""
    if tokenizer.chat is None:
        return False
    if CLOSE in tokenizer.special_ids or CLOSE.encode() in tokenizer.token_bytes:
        return True
    variants: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False})
    for options in variants:
        try:
            if OPEN in tokenizer.chat.render(_PROBE, add_generation_prompt=True, **options):
                return True
        except RequestError:
            continue  # it refuses this message whatever the options: nothing to learn from it
    return False


class ThoughtSplitter:
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
            if begun.startswith(OPEN):
                self._place, self._waiting = "thought", begun[len(OPEN) :]
            elif not OPEN.startswith(begun):
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
        body, closed, after = self._waiting.partition(CLOSE)
        if closed:
            self._place, self._waiting = "answer", after
            thought = body.rstrip()
            thought = thought if self._begun else thought.lstrip()
            self._begun = False
            return thought
        if not self._begun:
            self._waiting = self._waiting.lstrip()
        num_held = max((size for size in range(1, len(CLOSE)) if self._waiting.endswith(CLOSE[:size])), default=0)
        body = self._waiting[: len(self._waiting) - num_held].rstrip()
        self._waiting = self._waiting[len(body) :]
        self._begun = self._begun or bool(body)
        return body
