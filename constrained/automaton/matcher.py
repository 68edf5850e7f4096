"""Compiled grammars and the matchers that follow them: masks, accepted tokens, rollback, forced text."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from .automaton import Accepted, Automaton, ControlState
from .duplicate_names import NamesInTokens
from .layout import NUM_CELL_COLUMNS
from .masks import Configuration, TokenWalker
from .vocabulary import Vocabulary

MAX_FORCED = 1 << 12  # bytes


class CompiledGrammar:
    """An automaton over a vocabulary, shared by all its matchers. Thread-safe."""

    def __init__(self, automaton: Automaton, start: ControlState, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.automaton = automaton
        self.lock = Lock()
        self.walker = TokenWalker(automaton, vocabulary)
        self.start = automaton.number(start)
        self.end = automaton.number(Accepted())

    def matcher(self) -> Matcher:
        """Begin a new output."""
        return Matcher(self)


class Matcher:
    """State of one output in a grammar. Not thread-safe by itself."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        # The stack is persistent: cells are only added, so that a rollback forgets the last of them.
        self._cells = np.zeros((128 + grammar.walker.num_spare_cells, NUM_CELL_COLUMNS), np.int32)
        self._cells[1] = grammar.end, 0, 1, 0, 0
        self._cells_address = int(self._cells.ctypes.data)
        self._at = Configuration(grammar.start, 1, 2, 0)
        self._history = bytearray()
        self._names = NamesInTokens()
        self._before: list[tuple[Configuration, int]] = []
        self._ended = False

    def mask(self, out: NDArray[np.int32]) -> None:
        """Write the allowed tokens into int32[ceil(V / 32)]: bit t % 32 of word t // 32 for token t.

        The ends of sequence are allowed exactly if `is_accepting`. At least one token is allowed until an end of
        sequence is accepted; after that none is.
        """
        if self._ended:
            out[:] = 0
            return
        with self._grammar.lock:
            out[:] = self._grammar.walker.mask(self._at, self._cells, self._cells_address, self._history, self._names)

    def accept(self, token: int) -> bool:
        """Consume a token. Returns False, and changes nothing, if it is not allowed."""
        grammar = self._grammar
        vocabulary = grammar.vocabulary
        if self._ended:
            return False
        if token in vocabulary.eos_ids:
            if not self.is_accepting():
                return False
            self._before.append((self._at, len(self._history)))
            self._ended = True
            return True
        data = vocabulary.tokens[token] if 0 <= token < len(vocabulary.tokens) else None
        if data is None:
            return False
        with grammar.lock:
            at = grammar.walker.advance_token(self._at, self._cells, self._cells_address, self._history, token)
        if at is None:
            return False
        self._before.append((self._at, len(self._history)))
        self._at = at
        self._history += data
        spare = grammar.walker.num_spare_cells
        if at.free + spare > len(self._cells):
            larger = np.zeros((2 * at.free + spare, NUM_CELL_COLUMNS), np.int32)
            larger[: at.free] = self._cells[: at.free]
            self._cells = larger
            self._cells_address = int(larger.ctypes.data)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        num_accepted = len(self._before)
        assert 0 <= num_tokens <= num_accepted, f"cannot roll back {num_tokens} of {num_accepted} tokens"
        if num_tokens:
            self._at, length = self._before[-num_tokens]
            del self._history[length:]
            self._names.rollback(length)
            del self._before[-num_tokens:]
            self._ended = False

    def is_accepting(self) -> bool:
        """Return True if the output may end here."""
        if self._ended:
            return True
        with self._grammar.lock:
            return self._grammar.walker.may_end(self._at, self._cells, self._history)

    def forced(self) -> bytes:
        """Return the bytes that must come next, up to a choice or a possible end of the output."""
        if self._ended:
            return b""
        walker, cells, history = self._grammar.walker, self._cells, bytearray(self._history)
        at, forced = self._at, bytearray()
        with self._grammar.lock:
            while len(forced) < MAX_FORCED and not walker.may_end(at, cells, history):
                byte = walker.only_byte(at, cells, history)
                if byte is None:
                    break
                after = walker.advance(at, cells, history, bytes([byte]))
                if after is None:
                    break
                at = after
                forced.append(byte)
                history.append(byte)
                if at.free + walker.num_spare_cells > len(cells):
                    cells = np.concatenate([cells, np.zeros_like(cells)])
        return bytes(forced)


def fill_batch(matchers: Sequence[Matcher | None], out: NDArray[np.int32]) -> None:
    """Write the masks of a batch into int32[B, ceil(V / 32)]. Rows without a matcher get all bits set."""
    for row, matcher in zip(out, matchers, strict=True):
        if matcher is None:
            row[:] = -1
        else:
            matcher.mask(row)
