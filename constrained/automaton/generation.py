"""A grammar's automaton with what is cached beside it, and readers of the named parts of an output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from threading import RLock
from typing import Protocol

from .automaton import Accepted, Automaton, ControlState
from .masks import TokenWalker
from .vocabulary import Vocabulary

MakeStart = Callable[[Automaton], ControlState]  # returns the state before the text; GrammarError if there is none


class OutputReader(Protocol):
    """Reads the tokens of an output for the parts of it that have names."""

    def read(self, token: int, data: bytes) -> None:
        """Follow a token that the matcher has accepted, and its text. Raises GrammarError beyond a bound."""

    def captures(self) -> list[tuple[str, bytes]]:
        """Return names and texts of the parts of what has been read, in the order of their ends, inner ones first."""


class HasNamedParts:
    """Base of states before a text that may have named parts."""

    def reader(self, automaton: Automaton) -> OutputReader | None:
        """Begin to read an output; None if no part has a name."""
        raise NotImplementedError


class Generation:
    """An automaton over a vocabulary, with its walker. Use it under its lock."""

    def __init__(self, make_start: MakeStart, vocabulary: Vocabulary) -> None:
        automaton = Automaton()
        self.automaton = automaton
        self._start_state = make_start(automaton)
        self.start = automaton.number(self._start_state)
        automaton.refused.are_raised = True
        self.end = automaton.number(Accepted())
        self.walker = TokenWalker(automaton, vocabulary)
        self.lock = RLock()
        self.num_outputs = 0
        self.next_measured = 0  # number of filled rows at which its size is measured again

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if ends():  # of the interpreter, which has taken the names of modules away
            return
        # A search of the garbage collector for what is left of it would hold the interpreter for long.
        if automaton := self.__dict__.get("automaton"):
            automaton.clear()
        if walker := self.__dict__.get("walker"):
            walker.close()

    def reader(self) -> OutputReader | None:
        """Begin to read an output for its named parts; None if the grammar has none."""
        start = self._start_state
        return start.reader(self.automaton) if isinstance(start, HasNamedParts) else None

    @property
    def num_bytes(self) -> int:
        """Estimate of the memory that it takes, masks included."""
        return self.automaton.num_bytes + self.automaton.num_fixed_bytes + self.walker.num_bytes


class NamedParts:
    """The named parts of an output, as far as it has been read."""

    def __init__(self, generation: Generation) -> None:
        self._reader = generation.reader()
        self._generation = generation if self._reader else None  # whose states the reader has, wherever the output is
        self._num_read = 0  # tokens

    def read(
        self, before: Sequence[tuple[object, int, int]], history: bytearray, ends: Collection[int], *, waits: bool
    ) -> None:
        """Read on in an output: a place in `history` and an id for each token of `before`. Raises GrammarError.

        Without `waits` nothing is read while a thread has the states.
        """
        if self._reader is None or self._generation is None or not self._generation.lock.acquire(blocking=waits):
            return
        try:
            for number in range(self._num_read, len(before)):
                _, begin, token = before[number]
                end = before[number + 1][1] if number + 1 < len(before) else len(history)
                if token not in ends:
                    self._reader.read(token, bytes(history[begin:end]))
            self._num_read = len(before)
        finally:
            self._generation.lock.release()

    def captures(self) -> list[tuple[str, bytes]] | None:
        """Return names and texts; None if the grammar names no parts."""
        if self._reader is None or self._generation is None:
            return None
        with self._generation.lock:
            return self._reader.captures()
