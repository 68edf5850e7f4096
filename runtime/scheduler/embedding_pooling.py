"""An embedding on its way: which hidden states of a prompt it is made of, and their sum so far.

A retracted request computes some tokens twice; none counts twice. Knows vectors as bytes of the plan's results.
"""

from __future__ import annotations

import numpy as np

from ..protocol.core import Pooling


class EmbeddingPooling:
    """Of tokens [first, num_tokens): all of a prompt for "mean", its last one for "last"."""

    def __init__(self, pooling: Pooling, num_tokens: int) -> None:
        self._first = 0 if pooling == "mean" else num_tokens - 1
        self._num_tokens = num_tokens
        self._sum_E: np.ndarray | None = None
        self.next_position = self._first  # the first token that is not in the sum

    def first_pooled(self, first: int, end: int) -> int | None:
        """Which of tokens [first, end), counted from `first`, are the first to go into the sum; None: none do."""
        return max(self.next_position - first, 0) if end > self.next_position else None

    def add(self, pooled: bytes, end: int) -> None:
        """The sum of the hidden states of tokens [next, end)."""
        values_E = np.frombuffer(pooled, dtype="<f4")
        self._sum_E = values_E if self._sum_E is None else self._sum_E + values_E
        self.next_position = end

    def embedding(self) -> bytes:
        """float32, little-endian, once all tokens are in."""
        assert self._sum_E is not None
        assert self.next_position == self._num_tokens
        mean_E: np.ndarray = (self._sum_E / (self._num_tokens - self._first)).astype("<f4")
        return mean_E.tobytes()
