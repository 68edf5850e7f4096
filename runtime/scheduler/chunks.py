"""How a step's tokens are split among prompts. Knows counts only.

The most senior first, but never all of it for a prompt that needs several steps, as long as somebody behind it has any
use for the rest: a short prompt waits for a long one's chunks no longer than its own length takes at a quarter of them.
"""

from __future__ import annotations

SHORT_PROMPT_SHARE = 4  # a quarter of the prompts' tokens is not for long prompts


class PrefillBudget:
    """`num_left` tokens for prompts in this step; `contended` when more than one prompt could use them."""

    def __init__(self, num_left: int, *, contended: bool) -> None:
        self.num_left = num_left
        self._num_prompt = num_left
        reserve = -(-num_left // SHORT_PROMPT_SHARE) if contended and num_left > 1 else 0
        self._num_left_for_long = num_left - reserve

    def offer(self, num_uncomputed: int) -> int:
        """How many tokens a prompt may have, which wants `num_uncomputed`."""
        if num_uncomputed > self._num_prompt:
            return self._num_left_for_long
        return min(num_uncomputed, self.num_left)

    def take(self, num_uncomputed: int, num_tokens: int) -> None:
        """It got so many of those offered."""
        self.num_left -= num_tokens
        if num_uncomputed > self._num_prompt:
            self._num_left_for_long -= num_tokens
        self._num_left_for_long = min(self._num_left_for_long, self.num_left)
