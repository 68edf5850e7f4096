"""Tokens that a request forbids by itself: all but the allowed ones, and those that complete a banned sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...protocol.core import Generate


class TokenRules:
    """Rules of one request. Only its output counts: a banned sequence that begins in the prompt is not looked for."""

    def __init__(self, message: Generate, vocab_size: int) -> None:
        self._allowed = frozenset(message.sampling.allowed_token_ids)
        self._allowed_words = token_words(self._allowed, vocab_size) if self._allowed else None
        self._last_tokens: dict[tuple[int, ...], set[int]] = {}  # by the tokens before them
        for *before, last in message.banned:
            self._last_tokens.setdefault(tuple(before), set()).add(last)
        self.num_bans = len(message.banned)
        self.num_context = max(map(len, self._last_tokens), default=0)  # output tokens that the rules look at

    def forbidden(self, output: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a banned sequence after `output`, of which the end suffices."""
        ended = (
            last for before, last in self._last_tokens.items() if not before or tuple(output[-len(before) :]) == before
        )
        return set().union(*ended)

    def allows(self, token: int, output: Sequence[int]) -> bool:
        """Return True if `token` may follow `output`."""
        return (not self._allowed or token in self._allowed) and token not in self.forbidden(output)

    def restrict(self, words: NDArray[np.int32], output: Sequence[int]) -> bool:
        """Remove the forbidden tokens from a bitmask. Returns False if there are none."""
        if self._allowed_words is not None:
            words &= self._allowed_words
        forbidden = self.forbidden(output)
        if forbidden:
            words &= ~token_words(forbidden, len(words) * 32)
        return bool(forbidden) or self._allowed_words is not None


def token_rules(message: Generate, vocab_size: int) -> TokenRules | None:
    """Return the rules of a request; None if it has none."""
    has_rules = message.banned or message.sampling.allowed_token_ids
    return TokenRules(message, vocab_size) if has_rules else None


def token_words(tokens: Sequence[int] | set[int] | frozenset[int], vocab_size: int) -> NDArray[np.int32]:
    """Return the bitmask of `tokens`: int32 [ceil(vocab_size / 32)], bit t % 32 of word t // 32 for token t."""
    flags = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
    flags[list(tokens)] = True
    return np.packbits(flags, bitorder="little").view("<i4")
