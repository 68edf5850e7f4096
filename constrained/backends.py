"""Grammar engines by name: ours, and three peers behind the same interface, each imported when it is asked for.

A peer enforces what it enforces: its dialect of JSON Schema is its own, and what it cannot is a GrammarError of its
words. Whitespace that a peer cannot bound is left out, unless any is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .automaton.vocabulary import Vocabulary
from .compile import PropertyOrder, WhitespacePolicy, compile_constraint
from .constraint import Constraint
from .errors import GrammarError

BackendName = Literal["native", "llguidance", "xgrammar", "outlines"]


class OutputMatcher(Protocol):
    """As `Matcher`, which says what each does."""

    def mask(self, out: NDArray[np.int32]) -> None: ...
    def accept(self, token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...
    def is_accepting(self) -> bool: ...
    def forced(self) -> bytes: ...


class MatcherSource(Protocol):
    def matcher(self) -> OutputMatcher: ...


Compile = Callable[[Constraint, PropertyOrder], MatcherSource]


class Peer(Protocol):
    """What a peer must do for one output; ends of sequence never come here."""

    def fill(self, out: NDArray[np.int32]) -> None: ...
    def step(self, token: int) -> bool: ...
    def back(self, num_tokens: int) -> None: ...
    def may_end(self) -> bool: ...
    def forced(self) -> bytes: ...


class PeerGrammar:
    """A peer's compiled grammar; `begin` starts an output."""

    def __init__(self, vocabulary: Vocabulary, begin: Callable[[], Peer]) -> None:
        self._vocabulary = vocabulary
        self._begin = begin

    def matcher(self) -> OutputMatcher:
        return PeerMatcher(self._vocabulary, self._begin())


class PeerMatcher:
    """A peer with our ends of sequence: they may come exactly when the peer may end, and nothing after them."""

    def __init__(self, vocabulary: Vocabulary, peer: Peer) -> None:
        self._vocabulary = vocabulary
        self._peer = peer
        self._num_tokens = 0
        self._ended = False

    def mask(self, out: NDArray[np.int32]) -> None:
        if self._ended:
            out[:] = 0
            return
        bits = np.zeros(self._vocabulary.num_words, np.int32)
        self._peer.fill(bits)
        ends = self._vocabulary.ends_mask
        out[:] = bits | ends if self._peer.may_end() else bits & ~ends

    def accept(self, token: int) -> bool:
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
        assert 0 <= num_tokens <= self._num_tokens, f"{num_tokens} of {self._num_tokens} tokens taken back"
        if num_tokens:
            self._num_tokens -= num_tokens
            self._peer.back(num_tokens - self._ended)
            self._ended = False

    def is_accepting(self) -> bool:
        return self._ended or self._peer.may_end()

    def forced(self) -> bytes:
        return b"" if self._ended else self._peer.forced()


def backend(name: BackendName, vocabulary: Vocabulary, *, whitespace: WhitespacePolicy = "bounded") -> Compile:
    """What compiles constraints to grammars with matchers. A peer has an order of properties of its own, whichever is
    asked for. Raises ImportError, with the package that is missing."""
    if name == "native":
        return lambda constraint, order: compile_constraint(constraint, vocabulary, whitespace=whitespace, order=order)
    try:
        module = import_module(f".peers.{name}", __package__)
        compile_one: Callable[[Constraint], Callable[[], Peer]] = module.compiler(vocabulary, whitespace == "any")
    except ImportError as error:
        raise ImportError(
            f"the grammar backend {name!r} needs a package that is not installed: {error.name}"
        ) from error
    return lambda constraint, _order: PeerGrammar(vocabulary, compile_one(constraint))


def not_supported(name: str, constraint: Constraint) -> GrammarError:
    return GrammarError(f"the grammar backend {name!r} does not support a {type(constraint).__name__}")


def alternatives(values: list[str]) -> str:
    """Choices as a pattern that every engine reads."""
    special = set(r"\.+*?()|[]{}^$#&-~/")
    return "|".join("".join(f"\\{c}" if c in special else c for c in value) for value in values)
