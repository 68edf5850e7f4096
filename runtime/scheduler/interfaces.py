"""What the scheduler asks of grammars, as the smallest protocols. Whoever compiles them is somebody else."""

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
    """`token_bytes[id]` is what a token adds to the output, None for special tokens, which are no text."""

    vocab_size: int
    token_bytes: Sequence[bytes | None]
    eos_ids: frozenset[int]

    def __post_init__(self) -> None:
        assert len(self.token_bytes) == self.vocab_size
        assert all(0 <= token < self.vocab_size for token in self.eos_ids)


Bitmask = NDArray[np.int32]  # ceil(vocab_size / 32) words: bit t % 32 of word t // 32 is token t


class GrammarMatcher(Protocol):
    """One output's way through a grammar."""

    def mask(self, out: Bitmask) -> Any:
        """Write which tokens may come next; EOS may exactly when `is_accepting`."""

    def accept(self, token: int) -> bool:
        """Go on by one token that is not EOS. False, and nothing changed, when it may not come next."""

    def rollback(self, num_tokens: int) -> Any:
        """Take back the last tokens accepted."""

    def is_accepting(self) -> bool:
        """Whether the output may end here."""

    def forced(self) -> bytes:
        """The bytes that must come next, up to where there is a choice or the output may end."""


class MatcherFactory(Protocol):
    def matcher(self) -> GrammarMatcher: ...


class GrammarProvider(Protocol):
    def get(self, constraint: Constraint) -> Future[Any]:
        """The future CompiledGrammar. What is wrong with the constraint is the future's exception."""

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Who was given `future` waits for it no more."""
