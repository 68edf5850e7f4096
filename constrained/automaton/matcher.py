"""Compiled grammars and the matchers that follow them: masks, accepted tokens, rollback, forced text.

An automaton grows with the outputs that it has followed. So a grammar holds a `Generation`: an automaton and all that
is cached with it. When one has grown beyond a bound, a fresh one takes its place for the outputs that begin then, and
the running ones move over, or finish on the old one, which is freed with the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError, StatesExhaustedError
from .automaton import next_measure
from .duplicate_names import NamesInTokens
from .generation import Generation, MakeStart, NamedParts
from .layout import NUM_CELL_COLUMNS
from .masks import NotReadyError
from .token_trie import address_of
from .vocabulary import Vocabulary
from .walks import Configuration, KnownMask, MaskWalk, OutputMemory, TokenMask, known_mask

T = TypeVar("T")
MAX_FORCED = 1 << 12  # bytes
RENEWAL_BYTES = 32 << 20  # of an automaton; masks are bounded by themselves
_NO_TOKEN = -1  # a byte that was accepted by itself
MIN_OUTPUTS = 16  # that an automaton serves before it is renewed; if it serves fewer, the next may grow larger


class CompiledGrammar:
    """A grammar over a vocabulary, shared by all its matchers. Thread-safe."""

    def __init__(self, make_start: MakeStart, vocabulary: Vocabulary) -> None:
        """`make_start` is called again for each generation."""
        self.vocabulary = vocabulary
        self.num_renewals = 0
        self._make_start = make_start
        self._renewal_bytes = RENEWAL_BYTES
        self._renewing = Lock()
        self.generation = Generation(make_start, vocabulary)  # in which outputs begin now

    @property
    def num_bytes(self) -> int:
        """Estimate of the memory that the current generation takes, masks included."""
        return self.generation.num_bytes

    def matcher(self) -> Matcher:
        """Begin a new output."""
        return Matcher(self)

    def drop_masks(self) -> None:
        """Forget the cached masks, unless one is being computed. They are computed again when they are needed."""
        generation = self.generation
        if generation.lock.acquire(blocking=False):
            try:
                generation.walker.drop_masks()
            finally:
                generation.lock.release()

    def renew_if_large(self) -> None:
        """Begin a fresh generation if the current one has grown beyond the bound."""
        old = self.generation
        if old.automaton.num_filled < old.next_measured:
            return
        old.next_measured = next_measure(old.automaton.num_filled)
        if old.automaton.num_bytes <= self._renewal_bytes or not self._renewing.acquire(blocking=False):
            return
        try:
            if self.generation is not old:
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
            if self.generation is full:
                self._renew()

    def _renew(self) -> None:
        self.generation = self.fresh_generation()
        self.num_renewals += 1

    def fresh_generation(self) -> Generation:
        return Generation(self._make_start, self.vocabulary)


class ForcedText(NamedTuple):
    """The text that must come after a configuration, and the configuration after each of its bytes.

    `is_rest`: a part of it has been accepted; so much text was looked for that more may be forced after it.
    """

    begin: Configuration
    data: bytearray
    after: list[Configuration]
    is_rest: bool


class Matcher:
    """State of one output in a grammar. Not thread-safe by itself."""

    _at: Configuration

    def __init__(self, grammar: CompiledGrammar, generation: Generation | None = None) -> None:
        self._grammar = grammar
        self._history = bytearray()
        self._names = NamesInTokens()
        self._before: list[tuple[Configuration, int, int]] = []  # each token, with where it was accepted
        self._ended = False
        self._is_at_once = False  # True: what takes long is not begun
        self._known_mask: KnownMask | None = None
        self._known_forced: ForcedText | None = None
        self._enter(generation or grammar.generation)
        self._num_replayed = 0  # tokens, when it entered its generation
        self._parts = NamedParts(self._generation)

    def mask(self, out: NDArray[np.int32]) -> None:
        """Write the allowed tokens into int32[ceil(V / 32)]: bit t % 32 of word t // 32 for token t.

        The ends of sequence are allowed exactly if `is_accepting`. At least one token is allowed until an end of
        sequence is accepted; after that none is.
        """
        out[:] = 0 if self._ended else self._current_mask()

    def _current_mask(self) -> NDArray[np.int32]:
        at, known = self._at, self._known_mask
        if known is not None:
            before, bits, mask = known
            if before is at or (before[0] == at[0] and before[1] == at[1] and self._walker.is_steady(mask, at)):
                return bits
        if self._generation is not self._grammar.generation:
            self.move_if_outdated()
        try:
            known = self._mask()
        except StatesExhaustedError:
            known = self._elsewhere(self._mask)
        self._known_mask = known
        return known.bits

    def _mask(self) -> KnownMask:
        walker, at = self._walker, self._at
        with self._generation.lock:
            if walker.automaton.gates:
                at = walker.alike(at)
            known = walker.known_mask(at, self._cells)
            if known is not None and not known.may_repeat:
                return known_mask((self._at, known.bits, known))
            if known is None and self._is_at_once:
                raise NotReadyError
            self._forget_path()
            mask = walker.compute(at, self._memory, walker.own_scratch) if known is None else known
            found = self._without_repeated(mask, at)
        if known is None:
            self._grammar.renew_if_large()
        return found

    def _without_repeated(self, mask: TokenMask, at: Configuration) -> KnownMask:
        bits = self._walker.without_repeated(mask, at, self._memory, self._names) if mask.may_repeat else mask.bits
        return known_mask((self._at, bits, mask))

    def accept(self, token: int) -> bool:
        """Consume a token. Returns False, and changes nothing, if it is not allowed."""
        vocabulary = self._grammar.vocabulary
        if self._ended:
            return False
        if token in vocabulary.eos_ids:
            if not self.is_accepting():
                return False
            self._before.append((self._at, len(self._history), token))
            self._ended = True
            return True
        if not 0 <= token < len(vocabulary.tokens):
            return False
        data = vocabulary.tokens[token] or b""
        at = None if self._known_forced is None or not data else self._along_forced(data)
        if at is None:
            try:
                at = self._after(token)
            except StatesExhaustedError:
                at = self._elsewhere(lambda: self._after(token))
            if at is None:
                return False
        self._follow(at, data, token)
        return True

    def accept_at_once(self, token: int, *, new_states: bool = False) -> bool | None:
        """Accept a token as `accept`, unless that takes another thread's end, or new states without `new_states`: then
        return None."""
        with self._at_once(new_states) as is_free:
            return self.accept(token) if is_free else None
        return None

    def accept_byte(self, byte: int) -> bool:
        """Consume a byte of text, which counts as a token for `rollback`. Returns False, and changes nothing, if it is
        not allowed."""
        data = bytes([byte])
        at = None if self._ended else self._along_forced(data) or self._run(lambda: self._after_data(data))
        if at is None:
            return False
        self._follow(at, data, _NO_TOKEN)
        return True

    def _after_data(self, data: bytes) -> Configuration | None:
        self._forget_path()
        with self._generation.lock:
            return self._walker.advance(self._at, self._cells, self._history, data)

    def _after(self, token: int) -> Configuration | None:
        if self._known_forced is not None:
            self._forget_path()
        with self._generation.lock:
            return self._walker.after_token(self._at, self._memory, token)

    def _follow(self, at: Configuration, data: bytes, token: int) -> None:
        """Continue after a token, or after a byte that is none."""
        self._before.append((self._at, len(self._history), token))
        self._at = at
        self._history += data
        if at.free > self._num_usable_cells:
            self._set_cells(_enlarged(self._cells, at.free, self._walker.num_spare_cells))

    def _forget_path(self) -> None:
        """Forget the configurations along forced text: a walk is about to use the cells that they lie in."""
        if self._known_forced is not None and self._known_forced.data:
            self._known_forced = None

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        num_accepted = len(self._before)
        assert 0 <= num_tokens <= num_accepted, f"cannot roll back {num_tokens} of {num_accepted} tokens"
        if num_tokens:
            self._at, length, _ = self._before[-num_tokens]
            if self._known_mask is not None and self._known_mask.at is not self._at:
                self._known_mask = None  # cells of its stack are written again
            del self._history[length:]
            self._names.rollback(length)
            del self._before[-num_tokens:]
            self._ended = False

    def is_accepting(self) -> bool:
        """Return True if the output may end here."""
        return self._ended or self._run(self._may_end)

    def _may_end(self) -> bool:
        with self._generation.lock:
            return self._walker.may_end(self._walker.alike(self._at), self._cells, self._history)

    @property
    def num_accepted(self) -> int:
        """Number of the tokens accepted, an end of sequence too."""
        return len(self._before)

    @property
    def temperature(self) -> float | None:
        """Temperature at which the grammar wants the next token to be sampled; None: the request's."""
        return self._generation.automaton.temperatures.get(self._at.state)

    def read_on(self) -> None:
        """Let the named parts of the output be found up to here, from where no token may be rolled back, unless a
        thread has the grammar.

        Raises GrammarError if they take too much.
        """
        self._parts.read(self._before, self._history, self._grammar.vocabulary.eos_ids, waits=False)

    def captures(self) -> list[tuple[str, bytes]] | None:
        """Return names and texts of the output's named parts, inner ones first; None if the grammar names none."""
        self._parts.read(self._before, self._history, self._grammar.vocabulary.eos_ids, waits=True)
        return self._parts.captures()

    def forced(self) -> bytes:
        """Return the bytes that must come next, up to a choice or a possible end of the output."""
        if self._ended:
            return b""
        known = self._known_forced
        if known is None or known.begin is not self._at or known.is_rest:
            self.move_if_outdated()
            known = self._known_forced = self._run(self._forced)
        return bytes(known.data)

    def _forced(self) -> ForcedText:
        walker, cells, history = self._walker, self._cells, bytearray(self._history)
        at, found = self._at, ForcedText(self._at, bytearray(), [], is_rest=False)
        with self._generation.lock:
            gates = walker.automaton.gates
            while len(found.data) < MAX_FORCED and at.state not in gates and not walker.may_end(at, cells, history):
                byte = walker.only_byte(at, cells, history)
                if byte is None:
                    break
                after = walker.advance(at, cells, history, bytes([byte]))
                if after is None:
                    break
                at = after
                found.data.append(byte)
                found.after.append(at)
                history.append(byte)
                if at.free + walker.num_spare_cells > len(cells):
                    cells = _enlarged(cells, at.free, walker.num_spare_cells)
            if cells is not self._cells:
                self._set_cells(cells)
        return found

    def _along_forced(self, data: bytes) -> Configuration | None:
        """Return the configuration after a token of forced text, which is known without a step."""
        known = self._known_forced
        if known is None or known.begin is not self._at or not known.data.startswith(data):
            return None
        after = known.after[len(data) - 1]
        self._known_forced = ForcedText(after, known.data[len(data) :], known.after[len(data) :], is_rest=True)
        return after

    # Preparation in another thread.

    def is_ready(self, *, forced: bool, new_states: bool = False) -> bool:
        """Return True if the mask, and the forced text if `forced`, are known without a wait, and without new states
        unless `new_states`.

        If text is forced, its mask need not be known.
        """
        if self._is_known(forced=forced):
            return True
        with self._at_once(new_states) as is_free:
            if is_free:
                self.prepare(forced=forced)
                return True
        return False

    def _is_known(self, *, forced: bool) -> bool:
        if forced:
            text = self._known_forced
            if text is None or text.begin is not self._at or text.is_rest:
                return False
            if text.data:
                return True
        return self._known_mask is not None and self._known_mask.at is self._at

    def prepare(self, *, forced: bool) -> None:
        """Compute the forced text if `forced`, and the mask if none is forced, so that they are known from here on.

        May be called in another thread, while no other method is.
        """
        if not (forced and self.forced()) and not self._ended:
            self._current_mask()

    def begin_mask(self) -> MaskWalk | None:
        """Begin a mask that needs a walk. Return None if it is known, and may be used from here on.

        Call this and `finish_mask` while the generation's lock is held.
        """
        if self._ended or self._is_known(forced=False):
            return None
        self._forget_path()
        walker, at = self._walker, self._walker.alike(self._at)
        mask = walker.known_mask(at, self._cells)
        if mask is None:
            return walker.begin(at, self._memory, walker.scratch())
        self._known_mask = self._without_repeated(mask, at)
        return None

    def finish_mask(self, walk: MaskWalk, status: int, depth: int) -> None:
        """Complete a mask after its first walk, and keep it."""
        mask = self._walker.finish(walk, status, depth)
        self._walker.give_back(walk.scratch)
        self._known_mask = self._without_repeated(mask, walk.at)

    def mask_key(self) -> tuple[int, ...]:
        """Return what outputs with equal masks have in common, as far as it is known without the stack."""
        return id(self._walker), *self._walker.key(self._walker.alike(self._at))

    def native(self) -> Matcher:
        """Return the matcher itself, as those that time it do."""
        return self

    @property
    def generation(self) -> Generation:
        return self._generation

    @property
    def is_outdated(self) -> bool:
        """True if the output should move to its grammar's current generation.

        A move takes as long as the output, so each has to wait until the output is twice as long as at the last one.
        """
        is_old = self._grammar.generation is not self._generation
        return is_old and len(self._before) >= 2 * self._num_replayed

    @contextmanager
    def _at_once(self, new_states: bool) -> Iterator[bool]:
        """Let no state be made in the body unless `new_states`: it is left when one is needed. Yield False if the lock
        is not free."""
        walker, lock = self._walker, self._generation.lock
        if not lock.acquire(blocking=False):
            yield False
            return
        walker.may_provide, self._is_at_once = new_states, not new_states
        try:
            with suppress(NotReadyError):
                yield True
        finally:
            walker.may_provide, self._is_at_once = True, False
            lock.release()

    # Generations.

    def _enter(self, generation: Generation) -> None:
        """Begin the output in a generation."""
        generation.num_outputs += 1
        self._generation, self._walker = generation, generation.walker
        # The stack is persistent: cells are only added, so that a rollback forgets the last of them.
        cells = np.zeros((128 + self._walker.num_spare_cells, NUM_CELL_COLUMNS), np.int32)
        cells[1] = generation.end, 0, 1, 0, 0
        self._set_cells(cells)
        self._at = Configuration(generation.start, 1, 2, 0)

    def _set_cells(self, cells: NDArray[np.int32]) -> None:
        self._cells = cells
        self._memory = OutputMemory(cells, address_of(cells), self._history)
        self._num_usable_cells = len(cells) - self._walker.num_spare_cells  # a walk uses those above

    def move_if_outdated(self) -> None:
        """Move to the grammar's current generation, if the output should."""
        if self.is_outdated:
            if self._is_at_once:
                raise NotReadyError
            with suppress(StatesExhaustedError):  # others fill that generation too
                self._move(self._grammar.generation)

    def _run(self, step: Callable[[], T]) -> T:
        """Return the result of `step`. If the automaton is full, move the output to a fresh one, and do it there.

        Raises GrammarError if even an automaton of its own is too small for the output.
        """
        try:
            return step()
        except StatesExhaustedError:
            return self._elsewhere(step)

    def _elsewhere(self, step: Callable[[], T]) -> T:
        """Move the output out of a full automaton, and return the result of `step` there, as `_run`."""
        self._grammar.replace(self._generation)
        with suppress(StatesExhaustedError):
            if self._move(self._grammar.generation):
                return step()
        self._move(self._grammar.fresh_generation())
        return step()

    def _move(self, generation: Generation) -> bool:
        """Replay the output in another generation. Returns False, and changes nothing, if that one refuses it.

        A search for the end of an object is spared where texts before have shown a way, so it may be too complex for
        another generation. Then the output stays where it is.
        """
        moved, history = Matcher(self._grammar, generation), self._history
        ends = [length for _, length, _ in self._before[1:]] + [len(history)]
        for (_, first, token), last in zip(self._before, ends, strict=True):
            data, after = bytes(history[first:last]), moved._at
            if token not in self._grammar.vocabulary.eos_ids:
                try:
                    found = moved._after_data(data) if token == _NO_TOKEN else moved._after(token)
                except StatesExhaustedError:
                    raise
                except GrammarError:
                    found = None
                if found is None:
                    self._num_replayed = len(self._before)
                    return False
                after = found
            moved._follow(after, data, token)
        self._generation, self._walker, self._known_mask = generation, generation.walker, None
        self._set_cells(moved._cells)
        self._at, self._before = moved._at, moved._before
        self._num_replayed = len(self._before)
        return True


def _enlarged(cells: NDArray[np.int32], num_used: int, num_spare: int) -> NDArray[np.int32]:
    larger = np.zeros((2 * num_used + num_spare, NUM_CELL_COLUMNS), np.int32)
    larger[:num_used] = cells[:num_used]
    return larger
