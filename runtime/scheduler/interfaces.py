"""Interfaces of what the scheduler is given: vocabulary facts and compiled grammars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...constrained.backends import MatcherSource
from ..protocol.sampling import Constraint


@dataclass(frozen=True)
class VocabularyInfo:
    """Facts about the tokenizer's vocabulary.

    `token_bytes[id]` is the output of a token, None for special tokens, whose names are those of `special_ids`.
    `forced_end` is the id of `eos_ids` that ends a constrained output which can only end; None: the model chooses one.
    """

    vocab_size: int
    token_bytes: Sequence[bytes | None]
    eos_ids: frozenset[int]
    special_ids: Mapping[str, int] = field(default_factory=dict)
    forced_end: int | None = None

    def __post_init__(self) -> None:
        assert len(self.token_bytes) == self.vocab_size
        assert all(0 <= token < self.vocab_size for token in self.eos_ids)
        assert self.forced_end is None or self.forced_end in self.eos_ids


class GrammarProvider(Protocol):
    """Compiles grammars."""

    def get(self, constraint: Constraint) -> Future[MatcherSource]:
        """Return the future of the compiled grammar. Its exception says what is wrong with the constraint."""

    def release(self, constraint: Constraint, future: Future[Any]) -> None:
        """Say that one caller of `get` no longer waits for `future`."""
