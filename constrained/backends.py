"""Grammar engines by name: the native one, and peers behind the same interface, each imported on first use.

A peer enforces its own dialect of JSON Schema; a constraint that it does not support is a GrammarError. Whitespace that
a peer cannot bound is left out, unless "any" is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .automaton.vocabulary import Vocabulary
from .budget import counted
from .constraint import GrammarSource, PropertyOrder, WhitespacePolicy

if TYPE_CHECKING:
    from .peers.interface import Peer

BackendName = Literal["native", "llguidance", "xgrammar", "outlines"]


class OutputMatcher(Protocol):
    """State of one output; `Matcher` documents the methods."""

    def mask(self, out: NDArray[np.int32]) -> None: ...
    def accept(self, token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...
    def is_accepting(self) -> bool: ...
    def forced(self) -> bytes: ...
    def accept_at_once(self, token: int, *, new_states: bool = False) -> bool | None: ...
    def is_ready(self, *, forced: bool, new_states: bool = False) -> bool: ...
    def prepare(self, *, forced: bool) -> None: ...
    def native(self) -> object: ...
    def read_on(self) -> None: ...
    def captures(self) -> list[tuple[str, bytes]] | None: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def num_accepted(self) -> int: ...


def prepare_together(matchers: Sequence[OutputMatcher]) -> None:
    """Let the masks be known that take a walk over the vocabulary, but no new state: then they are ready."""
    from .automaton.batch import prepare_together as prepare  # here: a runtime's start does not wait for it

    prepare(matchers)


class MatcherSource(Protocol):
    """A compiled grammar of any engine."""

    def matcher(self) -> OutputMatcher: ...


Compile = Callable[[GrammarSource, PropertyOrder], MatcherSource]


def backend(name: BackendName, vocabulary: Vocabulary, *, whitespace: WhitespacePolicy = "bounded") -> Compile:
    """Return the function by which an engine compiles constraints.

    A peer has its own order of properties and ignores the order requested. Raises ImportError, with the package that is
    missing.
    """
    if name == "native":

        def compile_native(constraint: GrammarSource, order: PropertyOrder) -> MatcherSource:
            with counted(None):  # a module is locked while it is imported
                from .compile import compile_constraint  # here: a runtime's start does not wait for it

            return compile_constraint(constraint, vocabulary, whitespace=whitespace, order=order)

        return compile_native
    from .peers.interface import PeerGrammar

    try:
        module = import_module(f".peers.{name}", __package__)
        compile_one: Callable[[GrammarSource], Callable[[], Peer]] = module.compiler(vocabulary, whitespace == "any")
    except ImportError as error:
        raise ImportError(
            f"the grammar backend {name!r} needs a package that is not installed: {error.name}"
        ) from error
    return lambda constraint, _order: PeerGrammar(vocabulary, compile_one(constraint))
