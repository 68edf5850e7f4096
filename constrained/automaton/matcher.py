"""Compiled grammars and the matchers that follow them: masks, accepted tokens, rollback, forced text.

An automaton grows with the outputs that it has followed. So a grammar holds a `Generation`: an automaton and all that
is cached with it. When one has grown beyond a bound, a fresh one takes its place for the outputs that begin then, and
the running ones move over, or finish on the old one, which is freed with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import StatesExhaustedError
from .automaton import Accepted, Automaton, ControlState
from .duplicate_names import NamesInTokens
from .layout import NUM_CELL_COLUMNS
from .masks import Configuration, TokenWalker
from .vocabulary import Vocabulary

T = TypeVar("T")
MAX_FORCED = 1 << 12  # bytes
RENEWAL_BYTES = 32 << 20  # of an automaton; masks are bounded by themselves
MIN_OUTPUTS = 16  # that an automaton serves before it is renewed; if it serves fewer, the next may grow larger

MakeStart = Callable[[Automaton], ControlState]  # returns the state before the text; GrammarError if there is none


class Generation:
    """An automaton over a vocabulary, with its walker. Use it under its lock."""

    def __init__(self, make_start: MakeStart, vocabulary: Vocabulary) -> None:
        automaton = Automaton()
        self.automaton = automaton
        self.start = automaton.number(make_start(automaton))
        self.end = automaton.number(Accepted())
        self.walker = TokenWalker(automaton, vocabulary)
        self.lock = Lock()
        self.num_outputs = 0

    @property
    def num_bytes(self) -> int:
        """Estimate of the memory that it takes, masks included."""
        return self.automaton.num_bytes + self.walker.num_bytes


class CompiledGrammar:
    """A grammar over a vocabulary, shared by all its matchers. Thread-safe."""

    def __init__(self, make_start: MakeStart, vocabulary: Vocabulary) -> None:
        """`make_start` is called again for each generation."""
        self.vocabulary = vocabulary
        self.num_renewals = 0
        self._make_start = make_start
        self._renewal_bytes = RENEWAL_BYTES
        self._renewing = Lock()
        self._generation = Generation(make_start, vocabulary)

    @property
    def generation(self) -> Generation:
        """The generation in which outputs begin now."""
        return self._generation

    @property
    def num_bytes(self) -> int:
        """Estimate of the memory that the current generation takes, masks included."""
        return self._generation.num_bytes

    def matcher(self) -> Matcher:
        """Begin a new output."""
        return Matcher(self)

    def drop_masks(self) -> None:
        """Forget the cached masks, unless one is being computed. They are computed again when they are needed."""
        generation = self._generation
        if generation.lock.acquire(blocking=False):
            try:
                generation.walker.drop_masks()
            finally:
                generation.lock.release()

    def renew_if_large(self) -> None:
        """Begin a fresh generation if the current one has grown beyond the bound."""
        old = self._generation
        if old.automaton.num_bytes <= self._renewal_bytes or not self._renewing.acquire(blocking=False):
            return
        try:
            if self._generation is not old:
                return
            if old.num_outputs < MIN_OUTPUTS:
                # A renewal costs about as much as an output, so it must not come with every one.
                self._renewal_bytes = max(self._renewal_bytes, 2 * old.automaton.num_bytes)
            else:
                self._renew()
        finally:
            self._renewing.release()

    def replace(self, full: Generation) -> None:
        """Begin a fresh generation if `full` is the current one."""
        with self._renewing:
            if self._generation is full:
                self._renew()

    def _renew(self) -> None:
        self._generation = self.fresh_generation()
        self.num_renewals += 1

    def fresh_generation(self) -> Generation:
        return Generation(self._make_start, self.vocabulary)


class Matcher:
    """State of one output in a grammar. Not thread-safe by itself."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._history = bytearray()
        self._names = NamesInTokens()
        self._before: list[tuple[Configuration, int]] = []
        self._ended = False
        self._at = Configuration(0, 0, 0, 0)
        self._enter(grammar.generation)
        self._num_replayed = 0  # tokens, when it entered its generation

    def mask(self, out: NDArray[np.int32]) -> None:
        """Write the allowed tokens into int32[ceil(V / 32)]: bit t % 32 of word t // 32 for token t.

        The ends of sequence are allowed exactly if `is_accepting`. At least one token is allowed until an end of
        sequence is accepted; after that none is.
        """
        if self._ended:
            out[:] = 0
            return
        self._move_if_outdated()
        self._run(lambda: self._mask(out))
        self._grammar.renew_if_large()

    def _mask(self, out: NDArray[np.int32]) -> None:
        with self._generation.lock:
            out[:] = self._walker.mask(self._at, self._cells, self._cells_address, self._history, self._names)

    def accept(self, token: int) -> bool:
        """Consume a token. Returns False, and changes nothing, if it is not allowed."""
        vocabulary = self._grammar.vocabulary
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
        at = self._run(lambda: self._after(token))
        if at is None:
            return False
        self._before.append((self._at, len(self._history)))
        self._at = at
        self._history += data
        self._make_room()
        return True

    def _after(self, token: int) -> Configuration | None:
        with self._generation.lock:
            return self._walker.advance_token(self._at, self._cells, self._cells_address, self._history, token)

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
        return self._ended or self._run(self._may_end)

    def _may_end(self) -> bool:
        with self._generation.lock:
            return self._walker.may_end(self._at, self._cells, self._history)

    def forced(self) -> bytes:
        """Return the bytes that must come next, up to a choice or a possible end of the output."""
        if self._ended:
            return b""
        self._move_if_outdated()
        return self._run(self._forced)

    def _forced(self) -> bytes:
        walker, cells, history = self._walker, self._cells, bytearray(self._history)
        at, forced = self._at, bytearray()
        with self._generation.lock:
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

    # Generations.

    def _enter(self, generation: Generation) -> None:
        """Begin the output in a generation."""
        generation.num_outputs += 1
        self._generation, self._walker = generation, generation.walker
        # The stack is persistent: cells are only added, so that a rollback forgets the last of them.
        self._cells = np.zeros((128 + self._walker.num_spare_cells, NUM_CELL_COLUMNS), np.int32)
        self._cells[1] = generation.end, 0, 1, 0, 0
        self._cells_address = int(self._cells.ctypes.data)
        self._at = Configuration(generation.start, 1, 2, 0)

    def _make_room(self) -> None:
        """Make room for the cells of the next walk."""
        free, spare = self._at.free, self._walker.num_spare_cells
        if free + spare > len(self._cells):
            larger = np.zeros((2 * free + spare, NUM_CELL_COLUMNS), np.int32)
            larger[:free] = self._cells[:free]
            self._cells = larger
            self._cells_address = int(larger.ctypes.data)

    def _move_if_outdated(self) -> None:
        """Move to the grammar's generation if this one is older.

        A move takes as long as the output, so each has to wait until the output is twice as long as at the last one.
        """
        generation = self._grammar.generation
        if generation is not self._generation and len(self._before) >= 2 * self._num_replayed:
            with suppress(StatesExhaustedError):  # others fill that generation too
                self._move(generation)

    def _run(self, step: Callable[[], T]) -> T:
        """Return the result of `step`. If the automaton is full, move the output to a fresh one, and do it there.

        Raises GrammarError if even an automaton of its own is too small for the output.
        """
        try:
            return step()
        except StatesExhaustedError:
            self._grammar.replace(self._generation)
        with suppress(StatesExhaustedError):
            if self._move(self._grammar.generation):
                return step()
        self._move(self._grammar.fresh_generation())
        return step()

    def _move(self, generation: Generation) -> bool:
        """Replay the output in another generation. Returns False, and changes nothing, if that one refuses it.

        A search for the end of an object that has too much to try accepts what the texts before have shown it; so what
        one generation accepts, another may refuse. Then the output stays where it is.
        """
        moved = Matcher.__new__(Matcher)
        moved._history = bytearray()
        moved._before = []
        moved._enter(generation)
        history = self._history
        places = [length for _, length in self._before] + [len(history)]
        for first, last in pairwise(places):
            moved._before.append((moved._at, first))
            if first == last:
                continue  # an end of sequence
            with generation.lock:
                after = moved._walker.advance(moved._at, moved._cells, moved._history, bytes(history[first:last]))
            if after is None:
                self._num_replayed = len(self._before)
                return False
            moved._at = after
            moved._history += history[first:last]
            moved._make_room()
        self._generation, self._walker = generation, generation.walker
        self._cells, self._cells_address, self._at = moved._cells, moved._cells_address, moved._at
        self._before = moved._before
        self._num_replayed = len(self._before)
        return True


def fill_batch(matchers: Sequence[Matcher | None], out: NDArray[np.int32]) -> None:
    """Write the masks of a batch into int32[B, ceil(V / 32)]. Rows without a matcher get all bits set."""
    for row, matcher in zip(out, matchers, strict=True):
        if matcher is None:
            row[:] = -1
        else:
            matcher.mask(row)
