"""Pools a prompt's hidden states into an embedding, chunk by chunk.

A retracted request computes some tokens twice; each counts once.
"""

from __future__ import annotations

import numpy as np

from ..protocol.core import EncoderOutput


class EmbeddingPooling:
    """Sum of the hidden states of tokens [first, num_tokens): the whole prompt for "mean", its last
    token for "last"."""

    def __init__(self, pooling: EncoderOutput, num_tokens: int) -> None:
        """`pooling` is one that decoders have."""
        self._first = {"mean": 0, "last": num_tokens - 1}[pooling]
        self._num_tokens = num_tokens
        self._sum_E: np.ndarray | None = None
        self.next_position = self._first  # position of the first token that is not in the sum

    def first_pooled(self, first: int, end: int) -> int | None:
        """Index, counted from `first`, of the first token of [first, end) that enters the sum; None if none does."""
        return max(self.next_position - first, 0) if end > self.next_position else None

    def add(self, pooled: bytes, end: int) -> None:
        """Add the sum of the hidden states (float32, little-endian) of the tokens up to `end`."""
        values_E = np.frombuffer(pooled, dtype="<f4")
        self._sum_E = values_E if self._sum_E is None else self._sum_E + values_E
        self.next_position = end

    def embedding(self) -> bytes:
        """Return the embedding, float32, little-endian. Call when all tokens are added."""
        assert self._sum_E is not None
        assert self.next_position == self._num_tokens
        mean_E: np.ndarray = (self._sum_E / (self._num_tokens - self._first)).astype("<f4")
        return mean_E.tobytes()
