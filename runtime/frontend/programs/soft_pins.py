"""What of a request's prompt a program's states will ask for again: hints that ride on requests.

Knows states by number and what they hold; knows no cache. A state that has generated claims all that it holds. One that
was forked first has nothing computed of its own: its forks' requests claim the prefix on its behalf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...protocol.core import SoftPin
from .content import TokenContent


class State(Protocol):
    """A program state as far as claims go."""

    number: int

    @property
    def closed(self) -> bool: ...


@dataclass(frozen=True)
class Ancestor:
    """A state when it was forked: it held `num_ids` ids, then `num_bytes` of text that was no tokens yet."""

    state: State
    content: TokenContent
    mark: tuple[int, int]
    num_ids: int
    num_bytes: int

    @classmethod
    def of(cls, state: State, content: TokenContent) -> Ancestor:
        num_bytes = sum(len(segment.text.encode()) for segment in content.pending)
        return cls(state, content, content.mark, len(content.ids), num_bytes)

    def claim(self, tokens: Sequence[int], token_bytes: Sequence[bytes | None]) -> SoftPin | None:
        """On a prompt that begins with what the state held. None when it is over, or has moved on and so claims for
        itself."""
        if self.state.closed or self.content.mark != self.mark:
            return None
        num_tokens, num_bytes = self.num_ids, self.num_bytes
        for token in tokens[self.num_ids :]:
            num_bytes -= len(token_bytes[token] or b"")
            if num_bytes < 0:
                break
            num_tokens += 1
        return SoftPin(self.state.number, num_tokens) if num_tokens else None
