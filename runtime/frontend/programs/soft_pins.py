"""Soft pins: prompt prefixes that a program's states are expected to reuse, sent as hints with requests.

A state that has generated pins all that it holds. A state that was forked before it generated has nothing computed of
its own: the requests of its forks pin the prefix on its behalf.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

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
        return cls(state, content, content.mark, len(content.ids), content.num_pending_bytes)

    @property
    def is_due(self) -> bool:
        """False if the state needs nothing more, or has moved on and pins for itself."""
        return not self.state.finished and self.content.mark == self.mark


def pins_of(ancestors: Sequence[Ancestor], tokens: Sequence[int], token_bytes: Sequence[bytes | None]) -> list[SoftPin]:
    """Return the pins of states on a prompt that begins with what each of them held, in one pass over the prompt."""
    due = [ancestor for ancestor in ancestors if ancestor.is_due]
    if not due:
        return []
    # A model's vocabulary may be larger than its tokenizer's: such ids have no text.
    sizes = (len(token_bytes[token] or b"") if token < len(token_bytes) else 0 for token in tokens)
    ends = [0, *accumulate(sizes)]
    pins = []
    for ancestor in due:
        num_tokens = bisect_right(ends, ends[ancestor.num_ids] + ancestor.num_bytes, lo=ancestor.num_ids) - 1
        if num_tokens:
            pins.append(SoftPin(ancestor.state.number, num_tokens))
    return pins
