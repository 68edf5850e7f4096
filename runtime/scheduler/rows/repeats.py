"""DRY: what is subtracted of the logits of tokens that would go on with a repetition.

As in llama.cpp: for each place of the text where the last tokens stood before, the token that came after them there
loses `multiplier * base ** (length - allowed_length)`, by the longest such repetition, if its `length` is at least the
allowed one. Repetitions do not reach beyond the last sequence breaker, and a token that is a breaker by itself loses
nothing.

Legend: n tokens of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...protocol.core import Generate
from ..drafts.tree import DraftTree

MAX_PENALTY = 1e30  # a logit less it is finite in float32: where a grammar leaves such a token alone, it comes

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Ending:
    """The last tokens of a text, and how far they repeat earlier ones.

    `lengths_n[i]` is how many tokens up to and with token i equal the last ones; the last token has none. Of the last
    breaker, the nearest that begins, `breaker` has the number of tokens since its first, and since its last.
    """

    tokens_n: Ints
    lengths_n: Ints
    breaker: tuple[int, int] | None = None


class Repeats:
    """Repetitions in a request's tokens, which grow by every call."""

    def __init__(self, message: Generate) -> None:
        params = message.sampling
        self._multiplier, self._base = params.dry_multiplier, params.dry_base
        self._allowed_length, self._window = params.dry_allowed_length, params.dry_penalty_last_n
        self._breakers: dict[int, list[list[int]]] = {}  # by their last token
        for sequence in message.breakers:
            self._breakers.setdefault(sequence[-1], []).append(sequence)
        self._never = {sequence[0] for sequence in message.breakers if len(sequence) == 1}
        self._ending = _Ending(np.empty(0, np.int64), np.empty(0, np.int64))
        self._num_tokens = 0

    def after(self, tokens: Sequence[int]) -> dict[int, float]:
        """Return what is subtracted of tokens, by id, after `tokens`, which begin with those of the last call."""
        if self._num_tokens == 0:
            self._ending = self._begin(tokens)
        else:
            for token in tokens[self._num_tokens :]:
                self._ending = self._append(self._ending, token)
        self._num_tokens = len(tokens)
        return self._subtracted(self._ending)

    def after_nodes(self, tokens: Sequence[int], tree: DraftTree) -> list[dict[int, float]]:
        """Return what is subtracted after `tokens` and the path to each node of `tree`."""
        self.after(tokens)
        endings: list[_Ending] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            endings.append(self._append(self._ending if parent < 0 else endings[parent], token))
        return [self._subtracted(ending) for ending in endings]

    def _begin(self, tokens: Sequence[int]) -> _Ending:
        tokens_n = np.array(tokens, dtype=np.int64)[-self._window if self._window else 0 :]
        last = tokens_n.tolist()
        breaker = None
        for number in range(len(last)):
            breaker = self._last_breaker(last, number + 1, breaker)
        return _Ending(tokens_n, np.array(_prefix_lengths(last[::-1])[:0:-1], dtype=np.int64), breaker)

    def _append(self, ending: _Ending, token: int) -> _Ending:
        tokens_n = np.append(ending.tokens_n, token)
        longer = np.concatenate([[1], ending.lengths_n + 1]) * (ending.tokens_n == token)
        breaker = self._last_breaker(tokens_n, len(tokens_n), ending.breaker)
        if self._window is not None and len(tokens_n) > self._window:
            tokens_n, longer = tokens_n[1:], np.minimum(longer[1:], np.arange(1, len(longer)))
        return _Ending(tokens_n, longer, breaker)

    def _last_breaker(
        self, tokens: Sequence[int] | Ints, end: int, before: tuple[int, int] | None
    ) -> tuple[int, int] | None:
        """Return the last breaker of the first `end` tokens, where `before` was that of one less."""
        if before is not None:
            before = before[0] + 1, before[1] + 1
        for sequence in self._breakers.get(int(tokens[end - 1]), ()):
            if list(tokens[max(0, end - len(sequence)) : end]) == sequence:
                found = len(sequence) - 1, 0
                before = found if before is None else min(before, found)
        return before

    def _subtracted(self, ending: _Ending) -> dict[int, float]:
        limit = len(ending.tokens_n)
        if ending.breaker is not None and ending.breaker[0] < limit:
            limit = ending.breaker[1]
        if limit < self._allowed_length:
            return {}
        places = np.flatnonzero(ending.lengths_n >= self._allowed_length)
        if not len(places):
            return {}
        ids, numbers = np.unique(ending.tokens_n[places + 1], return_inverse=True)
        longest = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(longest, numbers, np.minimum(ending.lengths_n[places], limit))
        with np.errstate(over="ignore"):
            amounts = self._multiplier * np.power(self._base, (longest - self._allowed_length).astype(np.float64))
        each = zip(ids.tolist(), np.minimum(amounts, MAX_PENALTY).tolist(), strict=True)
        return {token: amount for token, amount in each if token not in self._never}


def repeats_of(message: Generate) -> Repeats | None:
    """Return the repetitions of a request; None if DRY is off."""
    return Repeats(message) if message.sampling.avoids_repeats else None


def _prefix_lengths(tokens: Sequence[int]) -> list[int]:
    """Return how many tokens from each place on equal the first ones: the Z function (Gusfield 1997, section 1.3)."""
    lengths = [len(tokens)] * bool(tokens)
    start = end = 0  # of the match that reaches furthest
    for at in range(1, len(tokens)):
        length = min(lengths[at - start], end - at) if at < end else 0
        while at + length < len(tokens) and tokens[length] == tokens[at + length]:
            length += 1
        if at + length > end:
            start, end = at, at + length
        lengths.append(length)
    return lengths
