"""Adapter of other grammar engines: adds ends of sequence and the checks of rollback to a peer's matcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..automaton.vocabulary import Vocabulary
from ..constraint import GrammarSource
from ..errors import GrammarError


class Peer(Protocol):
    """A peer's state of one output. It is never given an end of sequence."""

    def fill(self, out: NDArray[np.int32]) -> None:
        """Write the allowed tokens; the bits of the ends of sequence are ignored."""

    def step(self, token: int) -> bool:
        """Consume a token; return False, unchanged, if it is not allowed."""

    def back(self, num_tokens: int) -> None:
        """Undo the last tokens."""

    def may_end(self) -> bool:
        """Return True if the output may end here."""

    def forced(self) -> bytes:
        """Return the bytes that must come next."""


class PeerGrammar:
    """A grammar compiled by a peer; `begin` starts an output."""

    def __init__(self, vocabulary: Vocabulary, begin: Callable[[], Peer]) -> None:
        self._vocabulary = vocabulary
        self._begin = begin

    def matcher(self) -> PeerMatcher:
        """Begin a new output."""
        return PeerMatcher(self._vocabulary, self._begin())


class PeerMatcher:
    """A matcher of a peer: ends of sequence are allowed exactly if the peer may end, and nothing after them."""

    def __init__(self, vocabulary: Vocabulary, peer: Peer) -> None:
        self._vocabulary = vocabulary
        self._peer = peer
        self._num_tokens = 0
        self._ended = False

    def mask(self, out: NDArray[np.int32]) -> None:
        """Write the allowed tokens into int32[ceil(V / 32)]."""
        if self._ended:
            out[:] = 0
            return
        bits = np.zeros(self._vocabulary.num_words, np.int32)
        self._peer.fill(bits)
        ends = self._vocabulary.ends_mask
        out[:] = bits | ends if self._peer.may_end() else bits & ~ends

    def accept(self, token: int) -> bool:
        """Consume a token. Returns False, and changes nothing, if it is not allowed."""
        if self._ended:
            return False
        if token in self._vocabulary.eos_ids:
            self._ended = self._peer.may_end()
            accepted = self._ended
        else:
            is_text = 0 <= token < len(self._vocabulary) and self._vocabulary.tokens[token] is not None
            accepted = is_text and self._peer.step(token)
        self._num_tokens += accepted
        return accepted

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        assert 0 <= num_tokens <= self._num_tokens, f"cannot roll back {num_tokens} of {self._num_tokens} tokens"
        if num_tokens:
            self._num_tokens -= num_tokens
            self._peer.back(num_tokens - self._ended)
            self._ended = False

    def is_accepting(self) -> bool:
        """Return True if the output may end here."""
        return self._ended or self._peer.may_end()

    def forced(self) -> bytes:
        """Return the bytes that must come next."""
        return b"" if self._ended else self._peer.forced()

    # What takes long in a peer is not known before it is done, so nothing is left to another thread.

    def accept_at_once(self, token: int, *, new_states: bool = False) -> bool | None:
        """Consume a token as `accept`."""
        return self.accept(token)

    def is_ready(self, *, forced: bool, new_states: bool = False) -> bool:
        """Return True: all is computed when it is asked for."""
        return True

    def prepare(self, *, forced: bool) -> None:
        """Do nothing."""

    @property
    def num_accepted(self) -> int:
        """Number of the tokens accepted."""
        return self._num_tokens

    # No peer's captures and temperatures are taken: `peers/llguidance.py` refuses them.

    @property
    def temperature(self) -> float | None:
        """None: that of the request."""
        return None

    def read_on(self) -> None:
        """Do nothing."""

    def captures(self) -> list[tuple[str, bytes]] | None:
        """Return None: nothing is captured."""
        return None

    def native(self) -> PeerMatcher:
        """Return the matcher itself."""
        return self


def not_supported(name: str, constraint: GrammarSource) -> GrammarError:
    """Build the error of a peer that has no such kind of constraint."""
    return GrammarError(f"the grammar backend {name!r} does not support a {type(constraint).__name__}")
