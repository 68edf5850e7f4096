"""Interfaces of what the scheduler is given: vocabulary facts, grammars and their matchers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..protocol.sampling import Constraint


@dataclass(frozen=True)
class VocabularyInfo:
    """Facts about the tokenizer's vocabulary. `token_bytes[id]` is the output of a token, None for special tokens."""

    vocab_size: int
    token_bytes: Sequence[bytes | None]
    eos_ids: frozenset[int]

    def __post_init__(self) -> None:
        assert len(self.token_bytes) == self.vocab_size
        assert all(0 <= token < self.vocab_size for token in self.eos_ids)


Bitmask = NDArray[np.int32]  # ceil(vocab_size / 32) words: bit t % 32 of word t // 32 is token t


class GrammarMatcher(Protocol):
    """State of one output in its grammar."""

    def mask(self, out: Bitmask) -> Any:
        """Write the tokens that may come next; EOS is among them exactly when `is_accepting`."""

    def accept(self, token: int) -> bool:
        """Advance by a token other than EOS. Returns False, with nothing changed, if it may not come next."""

    def rollback(self, num_tokens: int) -> Any:
        """Undo the last `num_tokens` accepted tokens."""

    def is_accepting(self) -> bool:
        """True if the output may end here."""

    def forced(self) -> bytes:
        """The bytes that must come next, up to where there is a choice or the output may end."""


class MatcherFactory(Protocol):
    """A compiled grammar."""

    def matcher(self) -> GrammarMatcher: ...


class GrammarProvider(Protocol):
    """Compiles grammars."""

    def get(self, constraint: Constraint) -> Future[Any]:
        """Future of the compiled grammar. Its exception says what is wrong with the constraint."""

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Say that one caller of `get` no longer waits for `future`."""
