"""Soft pins: prompt prefixes that a program's states are expected to reuse, sent as hints with requests.

A state that has generated pins all that it holds. A state that was forked before it generated has nothing computed of
its own: the requests of its forks pin the prefix on its behalf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...programs.running_program import StateProgress
from ...protocol.core import SoftPin
from .content import TokenContent


@dataclass(frozen=True)
class Ancestor:
    """A state when it was forked: it held `num_ids` ids, then `num_bytes` of text that was not tokenised yet."""

    state: StateProgress
    content: TokenContent
    mark: tuple[int, ...]
    num_ids: int
    num_bytes: int

    @classmethod
    def of(cls, state: StateProgress, content: TokenContent) -> Ancestor:
        num_bytes = sum(len(segment.text.encode()) for segment in content.pending)
        return cls(state, content, content.mark, len(content.ids), num_bytes)

    def soft_pin(self, tokens: Sequence[int], token_bytes: Sequence[bytes | None]) -> SoftPin | None:
        """Return the state's pin on a prompt that begins with what it held.

        None if the state needs nothing more, or has moved on and pins for itself.
        """
        if self.state.finished or self.content.mark != self.mark:
            return None
        num_tokens, num_bytes = self.num_ids, self.num_bytes
        for token in tokens[self.num_ids :]:
            num_bytes -= len(token_bytes[token] or b"")
            if num_bytes < 0:
                break
            num_tokens += 1
        return SoftPin(self.state.number, num_tokens) if num_tokens else None
