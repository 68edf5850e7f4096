"""Token bitmasks of the automaton's configurations, cached by the part of the stack that they depend on."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import loops
from . import layout
from .actions import DEAD_END, ENDS, FILLED, FLAGS, LIKE, LOOPS, MARKS, MOST, PLAIN, RETURNS
from .automaton import Automaton
from .duplicate_names import NamesInTokens, without
from .layout import BELOW, CONTEXT_SIZE, FRAME, LEVEL, MAX_DEPTH, SAVED
from .tables import Tables
from .token_trie import FIRST_TOKEN, TokenTrie, addresses
from .vocabulary import Vocabulary

PACKAGE = "ramiform.constrained"  # of the compiled loops; while they are postponed, Python interprets `walk_kernel`
MAX_MASK_BYTES = 64 << 20  # of cached masks per grammar; the least recently used are evicted

_RESUME = (-1, 0, 0, 0, 0)  # in place of a configuration: resume the interrupted walk


class NotReadyError(Exception):
    """A state is needed that does not exist yet, and may not be made now."""


class Configuration(NamedTuple):
    """State of an output: control state, top and first free cell of its stack, counter of the current value."""

    state: int
    top: int
    free: int
    counted: int


class TokenWalker:
    """Runs walks over the vocabulary, computes the states that they request, and caches masks. Not thread-safe."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        from . import walk_kernel  # not at the top: it imports numba

        self._kernel: Any = walk_kernel
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._longest = max(vocabulary.trie.max_depth, 1)
        self.num_spare_cells = 2 * self._longest + 2  # cells that a walk may use above the first free one
        self._work = np.zeros((self._longest + 2, layout.NUM_WORK_COLUMNS), np.int32)
        self._codes = np.zeros(256, np.int32)  # actions of the edges of a walk's first state by byte, -1 for none
        self._context = np.zeros(CONTEXT_SIZE, np.int64)
        self._masks: OrderedDict[tuple[int, ...], NDArray[np.int32]] = OrderedDict()
        self._reach: dict[tuple[int, ...], int] = {}
        self._keys: dict[int, tuple[int]] = {}
        self.may_provide = True  # False: raise NotReadyError where a state is needed
        self._guarded: set[int] = set()  # states whose masks depend on guarded frames, and so are not cached
        self._arrays = PackedArrays(automaton.tables, self._work, self._context, self._codes, vocabulary)
        self._max_masks = max(1, MAX_MASK_BYTES // (4 * vocabulary.num_words))

    @property
    def num_bytes(self) -> int:
        """Memory that the cached masks take."""
        return 4 * self.vocabulary.num_words * len(self._masks)

    def drop_masks(self) -> None:
        """Forget the cached masks."""
        self._masks.clear()
        self._reach.clear()

    def mask(
        self,
        at: Configuration,
        cells: NDArray[np.int32],
        cells_address: int,
        history: bytearray,
        names: NamesInTokens,
    ) -> NDArray[np.int32]:
        """Return the bitmask of a configuration, read-only. Brings `names` up to date with `history`."""
        mask = self._cached(at, cells, cells_address, history)
        automaton, top = self.automaton, at.top
        if not automaton.has_once or not history:
            return mask
        self.vocabulary.quoted.read(history, names)
        name, before = None, b""
        if automaton.is_once(cells.item(top, FRAME)):
            began, around = cells.item(top, layout.BEGIN), cells.item(cells.item(top, BELOW), layout.BEGIN)
            name, before = bytes(history[began:]), bytes(history[around:began])
        elif not names.tokens and not names.pending:
            return mask

        def may_come(token: int) -> bool:
            return self.advance_token(at, cells, cells_address, history, token) is not None

        repeating = self.vocabulary.quoted.repeating(mask, name, before, names, may_come)
        return without(mask, repeating) if repeating else mask

    def _cached(
        self, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray
    ) -> NDArray[np.int32]:
        """Return the mask from the cache, or compute it. It still allows names that have come before."""
        state, top, _, counted = at
        key = self._keys.get(state) or self._key(state, counted)
        # Near the maximum depth of the stack, a mask depends on its depth.
        is_shallow = cells.item(top, LEVEL) + self._longest < MAX_DEPTH
        reach = self._reach.get(key) if is_shallow else None
        if reach is not None:
            full = key + self._frames(cells, top, reach) if reach else key
            mask = self._masks.get(full)
            if mask is not None:
                self._masks.move_to_end(full)
                return mask
        if not self.may_provide:
            raise NotReadyError
        mask = self._compute(at, cells, cells_address, history)
        context = self._context
        if context[layout.REACH] >= 0 and is_shallow:
            now = max(int(context[layout.REACH]), reach or 0)
            self._reach[key] = now
            self._masks[key + self._frames(cells, top, now)] = mask
            if len(self._masks) > self._max_masks:
                self._masks.popitem(last=False)
        return mask

    def _key(self, number: int, counted: int) -> tuple[int, ...]:
        """Return the cache key of a mask without the stack, and fill the state.

        Keys of states that count nothing are kept.
        """
        if not self.automaton.tables.states[number, FILLED]:
            self._fill(number)
        row = self.automaton.tables.states.item(number, MARKS)
        if row == 0:
            key = self._keys[number] = (number,)
            return key
        return number, self._place(row, counted)

    def _place(self, marks: int, counted: int) -> int:
        """Return where a count lies among the counts at which masks change, as far as one token can reach."""
        row = self.automaton.marks[marks]
        at = bisect_left(row, counted)
        far = self._longest + 1
        return at * (far + 1) + (min(row[at] - counted, far) if at < len(row) else far)

    def _frames(self, cells: NDArray[np.int32], top: int, number: int) -> tuple[int, ...]:
        """Return the topmost frames of a stack, and where the counts that they keep lie."""
        cell, row = cells.item, self.automaton.tables.states.item
        frames = []
        for _ in range(number):
            frame = cell(top, FRAME)
            frames.append(frame)
            if marks := row(frame, MARKS):
                frames.append(self._place(marks, cell(top, SAVED)))
            top = cell(top, BELOW)
        return tuple(frames)

    def _compute(
        self, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray
    ) -> NDArray[np.int32]:
        vocabulary, states = self.vocabulary, self.automaton.tables.states
        trie, flags = vocabulary.trie, states.item(at.state, FLAGS)
        like, is_far = states.item(at.state, LIKE), self._is_far_from_marks(at)
        room = states.item(like or at.state, MOST) - at.counted
        if like and room < self._longest:
            is_far = False
        if like and is_far and flags & PLAIN and states.item(like, FLAGS) & LOOPS and like not in self._guarded:
            out = self._compute_like(like, at, cells, cells_address, history)
            if out is not None:
                return out
        if flags & PLAIN and (is_far or not like):  # near a bound, given texts may go on where others may not
            out = vocabulary.plain.mask(room).copy()
            trie = vocabulary.plain.tails if flags & LOOPS and is_far else vocabulary.plain.others
        else:
            out = np.zeros(vocabulary.num_words, np.int32)
        guarded = self._walk(trie, at, out, cells, cells_address, history)
        if guarded and trie is vocabulary.plain.tails:
            # A guard needs the whole text; the tails are only its end.
            out = vocabulary.plain.mask(room).copy()
            self._walk(vocabulary.plain.others, at, out, cells, cells_address, history)
        if self.may_end(at, cells, history):
            out |= vocabulary.ends_mask
        if guarded:
            self._context[layout.REACH] = -1
        return out

    def _is_far_from_marks(self, at: Configuration) -> bool:
        """Return True if no token is so long that its count would change a mask."""
        marks = self.automaton.marks[self.automaton.tables.states.item(at.state, MARKS)]
        place = bisect_left(marks, at.counted)
        return place == len(marks) or marks[place] - at.counted > self._longest

    def _compute_like(
        self, like: int, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray
    ) -> NDArray[np.int32] | None:
        """Compute a mask along given texts (names, strings of an enum) in a string that may hold any other text.

        It is the mask of the state `like`, where the given texts have been left, except for the tokens that begin as
        they continue. Returns None if the mask of `like` is not cached.
        """
        out = self._cached(at._replace(state=like), cells, cells_address, history).copy()
        key = self._keys.get(like) or self._key(like, at.counted)
        reach = self._reach.get(key)
        if reach is None:
            self._guarded.add(like)
            return None
        # If a guard was asked, the mask holds for this text alone, and was not cached.
        is_cached = key + self._frames(cells, at.top, reach) in self._masks
        guarded = self._walk(self.vocabulary.plain.others, at, out, cells, cells_address, history, only_edges=True)
        if guarded or not is_cached:
            self._context[layout.REACH] = -1
        else:
            self._context[layout.REACH] = max(reach, int(self._context[layout.REACH]))
        return out

    def _begin(self, at: Configuration, cells: NDArray[np.int32], offset: int) -> None:
        """Set the kernel's arrays to a configuration."""
        self._work[0] = at.state, at.top, at.free, at.counted, -1, 0, 0, 0
        context = self._context
        context[layout.REACH] = 0
        context[layout.BASE_DEPTH] = cells[at.top, LEVEL]
        context[layout.OFFSET] = offset
        context[layout.ANSWERED] = 0

    def _walk(
        self,
        trie: TokenTrie,
        at: Configuration,
        out: NDArray[np.int32],
        cells: NDArray[np.int32],
        cells_address: int,
        history: bytearray,
        only_edges: bool = False,
    ) -> bool:
        """Set the bits of the trie's allowed tokens in `out`. Returns True if a guard was asked."""
        depth, guarded = 0, False
        begin = (*at, len(history))
        while True:
            if loops.ready(PACKAGE):
                arrays = self._current_arrays()
                status, depth = arrays.walk(
                    *begin, depth, only_edges, cells_address, len(cells), trie.packed, out, arrays.addresses
                )
            else:
                if begin is not _RESUME:
                    self._begin(at, cells, len(history))
                texts, tables = (trie.data, trie.nodes, trie.tokens), self.automaton.tables.arrays()
                status, depth = self._kernel.walk(
                    *texts, out, depth, only_edges, self._codes, *tables, cells, self._work, self._context
                )
            begin = _RESUME
            if status == layout.DONE:
                return guarded
            if status == layout.NEEDS_GUARD and not self.automaton.is_once(int(self._context[layout.WANTED])):
                guarded = True
                token = int(trie.tokens[trie.nodes[self._work[depth, layout.NEXT], FIRST_TOKEN]])
                self._provide(status, history, (self.vocabulary.tokens[token] or b"")[: depth + 1])
            else:
                self._provide(status, history, b"", is_walk=True)

    def _current_arrays(self) -> PackedArrays:
        arrays, tables = self._arrays, self.automaton.tables
        if not arrays.holds(tables):
            arrays.update(tables)
        return arrays

    def _provide(self, status: int, history: bytearray, path: bytes, *, is_walk: bool = False) -> None:
        """Compute what a walk has requested."""
        context = self._context
        wanted = int(context[layout.WANTED])
        if status == layout.NEEDS_STATE:
            self._fill(wanted)
            return
        self._check_may_provide()
        if status == layout.NEEDS_RETURN:
            self.automaton.follow(wanted, int(context[layout.RESULT]))
        elif is_walk:  # a frame that is `once`: duplicates are removed from the mask later
            self._answer(self.automaton.follow(wanted, int(context[layout.RESULT])))
        else:
            began, around, path = (
                int(context[layout.BEGAN]),
                int(context[layout.AROUND]),
                path[: context.item(layout.VALUE_END)],
            )
            text = _from(began, history, path)
            before = _from(around, history, path)[: began - around]
            state = self.automaton.follow(wanted, int(context[layout.RESULT]), text, before)
            self._answer(state)

    def _fill(self, number: int) -> None:
        self._check_may_provide()
        self.automaton.fill(number)

    def _check_may_provide(self) -> None:
        if not self.may_provide:
            raise NotReadyError

    def _answer(self, state: int) -> None:
        """Store the state after a guarded frame for the kernel."""
        context = self._context
        context[layout.ANSWER + int(context[layout.ANSWERED])] = state
        context[layout.ANSWERED] += 1

    def advance(
        self, at: Configuration, cells: NDArray[np.int32], history: bytearray, data: bytes
    ) -> Configuration | None:
        """Return the configuration after the bytes; None if they are refused."""
        self._begin(at, cells, len(history))
        text = np.frombuffer(bytearray(data), np.uint8)  # the loop is compiled for writable arrays
        status, place = self._kernel.advance(text, 0, *self.automaton.tables.arrays(), cells, self._work, self._context)
        return self._advance_from(status, place, cells, history, data)

    def _advance_from(
        self, status: int, place: int, cells: NDArray[np.int32], history: bytearray, data: bytes
    ) -> Configuration | None:
        """Complete an advance that stopped at byte `place` with this status."""
        text = np.frombuffer(bytearray(data), np.uint8)  # the loop is compiled for writable arrays
        while status != layout.DONE:
            if status == layout.REFUSED:
                return None
            self._provide(status, history, data)
            status, place = self._kernel.advance(
                text, place, *self.automaton.tables.arrays(), cells, self._work, self._context
            )
        after = Configuration(*self._work[len(data), : layout.NEXT].tolist())
        return None if self.automaton.tables.states[after.state, FLAGS] & DEAD_END else after

    def advance_token(
        self, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray, token: int
    ) -> Configuration | None:
        """Return the configuration after a token that has bytes; None if it is refused."""
        if not loops.ready(PACKAGE):
            return self.advance(at, cells, history, self.vocabulary.tokens[token] or b"")
        arrays = self._current_arrays()
        status, place, *after = arrays.advance(token, *at, len(history), cells_address, len(cells), arrays.addresses)
        if status == layout.DONE:
            return Configuration(*after)
        if status == layout.REFUSED:
            return None
        return self._advance_from(status, place, cells, history, self.vocabulary.tokens[token] or b"")

    def only_byte(self, at: Configuration, cells: NDArray[np.int32], history: bytearray) -> int | None:
        """Return the only byte that is allowed next; None if there are several or none."""
        self._begin(at, cells, len(history))
        byte, found = 0, -1
        while True:
            status, byte, found = self._kernel.only_byte(
                byte, found, *self.automaton.tables.arrays(), cells, self._work, self._context
            )
            if status == layout.DONE:
                return found if 0 <= found < 256 else None
            self._provide(status, history, bytes([byte]))

    def may_end(self, at: Configuration, cells: NDArray[np.int32], history: bytearray) -> bool:
        """Return True if the text may end here: at the bottom of the stack, after values that end without a byte."""
        automaton, state, top = self.automaton, at.state, at.top
        while True:
            states = automaton.tables.states
            if not states[state, FILLED]:
                self._fill(state)
                continue
            ends = states.item(state, ENDS)
            if ends <= 0:
                return ends < 0
            if cells[top, LEVEL] == 0:
                return False
            frame, text = int(cells[top, FRAME]), bytes(history[int(cells[top, layout.BEGIN]) :])
            if states[frame, RETURNS] >= 0:
                self._check_may_provide()
                state = automaton.follow(frame, ends - 1, text)
                if state == 0:
                    return False
            else:
                state = frame
            top = int(cells[top, BELOW])


class PackedArrays:
    """Addresses of a walker's arrays, which it keeps alive, and the compiled functions that take them."""

    def __init__(
        self,
        tables: Tables,
        work: NDArray[np.int32],
        context: NDArray[np.int64],
        codes: NDArray[np.int32],
        vocabulary: Vocabulary,
    ) -> None:
        self._states, self._edges, self._classes = tables.states, tables.edges, tables.classes
        self._targets, self._pushes, self._returns = tables.targets, tables.pushes, tables.returns
        self._others = (work, context, codes, vocabulary)
        own = addresses(*tables.arrays(), work, context, codes)
        self.addresses = np.concatenate([own, vocabulary.packed_addresses])

    @cached_property
    def walk(self) -> Any:
        from . import walk_packed  # not at the top: it imports numba

        return walk_packed.walk

    @cached_property
    def advance(self) -> Any:
        from . import walk_packed

        return walk_packed.advance

    def update(self, tables: Tables) -> None:
        """Take over the tables that were reallocated because they grew."""
        held = (self._states, self._edges, self._classes, self._targets, self._pushes, self._returns)
        for number, (before, now) in enumerate(zip(held, tables.arrays(), strict=True)):
            if now is not before:
                self.addresses[2 * number : 2 * number + 2] = addresses(now)
        self._states, self._edges, self._classes = tables.states, tables.edges, tables.classes
        self._targets, self._pushes, self._returns = tables.targets, tables.pushes, tables.returns

    def holds(self, tables: Tables) -> bool:
        """Return True if no table has been reallocated since the last update."""
        return (
            self._states is tables.states
            and self._edges is tables.edges
            and self._targets is tables.targets
            and self._classes is tables.classes
            and self._pushes is tables.pushes
            and self._returns is tables.returns
        )


def _from(place: int, history: bytearray, path: bytes) -> bytes:
    """Return the text from an offset on: of the output so far, and the bytes of a token."""
    return bytes(history[place:]) + path if place <= len(history) else path[place - len(history) :]
