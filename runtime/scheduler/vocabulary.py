"""What the scheduler knows of the tokenizer: sizes, bytes and the end-of-sequence tokens. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class VocabularyInfo:
    """`token_bytes[id]` is what a token adds to the output, None for special tokens, which are no text."""

    vocab_size: int
    token_bytes: Sequence[bytes | None]
    eos_ids: frozenset[int]

    def __post_init__(self) -> None:
        assert len(self.token_bytes) == self.vocab_size
        assert all(0 <= token < self.vocab_size for token in self.eos_ids)
