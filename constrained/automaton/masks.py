"""Configurations of an automaton to token bitmasks, remembered by what was seen of the stack.

Knows the automaton's tables and the vocabulary; no language, no output's history but the bytes it is given.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import layout
from .actions import DEAD_END, ENDS, FILLED, FLAGS, LEAST, LIKE, LOOPS, MOST, PLAIN, RETURNS, UNBOUNDED
from .automaton import Automaton
from .duplicate_names import NamesInTokens, without
from .layout import BELOW, CONTEXT_SIZE, FRAME, LEVEL, MAX_DEPTH
from .tables import Tables
from .token_trie import FIRST_TOKEN, TokenTrie, addresses
from .vocabulary import Vocabulary

MAX_MASK_BYTES = 64 << 20  # of masks kept per grammar, the least recently used go first

_GO_ON = (-1, 0, 0, 0, 0)  # in place of a configuration: with the walk that had asked for something


class Configuration(NamedTuple):
    """Where an output stands: control state, top and first free cell of its stack, characters of a counted string."""

    state: int
    top: int
    free: int
    counted: int


class TokenWalker:
    """Fills what a walk asks for, and remembers masks. One thread at a time."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        from . import walk_kernel as kernel  # here, for it imports numba

        self._kernel: Any = kernel
        self._packed: PackedArrays | None = None
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._longest = max(vocabulary.trie.max_depth, 1)
        self.num_spare_cells = 2 * self._longest + 2  # how many cells a walk may use above the first free one
        self._work = np.zeros((self._longest + 2, layout.NUM_WORK_COLUMNS), np.int32)
        self._codes = np.zeros(256, np.int32)  # a walk's: the actions of its first state's edges by byte, -1 for none
        self._context = np.zeros(CONTEXT_SIZE, np.int64)
        self._masks: OrderedDict[tuple[int, ...], NDArray[np.int32]] = OrderedDict()
        self._reach: dict[tuple[int, ...], int] = {}
        self._keys: dict[int, tuple[int]] = {}
        self._guarded: set[int] = set()  # states whose masks ask guards, and so are not remembered
        self._max_masks = max(1, MAX_MASK_BYTES // (4 * vocabulary.num_words))

    def mask(
        self,
        at: Configuration,
        cells: NDArray[np.int32],
        cells_address: int,
        history: bytearray,
        names: NamesInTokens,
    ) -> NDArray[np.int32]:
        """The bitmask of a configuration; never written to. `names` are brought up to `history`."""
        mask = self._remembered(at, cells, cells_address, history)
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

    def _remembered(
        self, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray
    ) -> NDArray[np.int32]:
        """The mask but for names that have come, which it lets come again."""
        state, top, _, counted = at
        key = self._keys.get(state) or self._key(state, counted)
        # Near the deepest that a stack may be, a mask depends on how deep it is.
        is_shallow = cells.item(top, LEVEL) + self._longest < MAX_DEPTH
        reach = self._reach.get(key) if is_shallow else None
        if reach is not None:
            full = key + _frames(cells, top, reach) if reach else key
            mask = self._masks.get(full)
            if mask is not None:
                self._masks.move_to_end(full)
                return mask
        mask = self._compute(at, cells, cells_address, history)
        context = self._context
        if context[layout.REACH] >= 0 and is_shallow:
            now = max(int(context[layout.REACH]), reach or 0)
            self._reach[key] = now
            self._masks[key + _frames(cells, top, now)] = mask
            if len(self._masks) > self._max_masks:
                self._masks.popitem(last=False)
        return mask

    def _key(self, number: int, counted: int) -> tuple[int, ...]:
        """What a mask depends on beside the stack; the state is filled then. Kept for those that count nothing."""
        if not self.automaton.tables.states[number, FILLED]:
            self.automaton.fill(number)
        state, longest = self.automaton.tables.states[number], self._longest
        least, most = int(state[LEAST]), int(state[MOST])
        if least == 0 and most == UNBOUNDED:
            key = self._keys[number] = (number,)
            return key
        return number, min(most - counted, longest), min(max(least - counted, 0), longest)

    def _compute(
        self, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray
    ) -> NDArray[np.int32]:
        vocabulary, states = self.vocabulary, self.automaton.tables.states
        trie, flags = vocabulary.trie, states.item(at.state, FLAGS)
        like = states.item(at.state, LIKE)
        if like and flags & PLAIN and states.item(like, FLAGS) & LOOPS and like not in self._guarded:
            out = self._compute_like(like, at, cells, cells_address, history)
            if out is not None:
                return out
        if flags & PLAIN:
            room = int(states[at.state, MOST]) - at.counted
            out = vocabulary.plain.mask(room).copy()
            trie = vocabulary.plain.others
            if flags & LOOPS and room >= self._longest and at.counted >= states[at.state, LEAST]:
                trie = vocabulary.plain.tails
        else:
            out = np.zeros(vocabulary.num_words, np.int32)
        guarded = self._walk(trie, at, out, cells, cells_address, history)
        if guarded and trie is vocabulary.plain.tails:
            # A guard needs the whole text, of which the tails are only a part.
            out = vocabulary.plain.mask(room).copy()
            self._walk(vocabulary.plain.others, at, out, cells, cells_address, history)
        if self.may_end(at, cells, history):
            out |= vocabulary.ends_mask
        if guarded:
            self._context[layout.REACH] = -1
        return out

    def _compute_like(
        self, like: int, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray
    ) -> NDArray[np.int32] | None:
        """As `_compute`, along given texts (names, words of an enum) in a string where any other may come: the mask of
        where those have been left, but for the tokens that begin as these go on. None where that mask is not known."""
        out = self._remembered(at._replace(state=like), cells, cells_address, history).copy()
        reach = self._reach.get((like,))
        if reach is None:
            self._guarded.add(like)
            return None
        # Of some frames only a guard was asked: then the mask is that of this text alone, and was not remembered.
        is_remembered = (like, *_frames(cells, at.top, reach)) in self._masks
        guarded = self._walk(self.vocabulary.plain.others, at, out, cells, cells_address, history, only_edges=True)
        if guarded or not is_remembered:
            self._context[layout.REACH] = -1
        else:
            self._context[layout.REACH] = max(reach, int(self._context[layout.REACH]))
        return out

    def _begin(self, at: Configuration, cells: NDArray[np.int32], offset: int) -> None:
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
        """Whether a guard was asked."""
        depth, guarded = 0, False
        if not self._kernel.IS_COMPILED:
            self._begin(at, cells, len(history))
        begin = (*at, len(history))
        while True:
            if self._kernel.IS_COMPILED:
                packed = self._addresses()
                answer, depth = packed.walk(
                    *begin, depth, only_edges, cells_address, len(cells), trie.packed, out, packed.addresses
                )
                begin = _GO_ON
            else:
                answer, depth = self._kernel.walk(
                    trie.data,
                    trie.nodes,
                    trie.tokens,
                    out,
                    depth,
                    only_edges,
                    self._codes,
                    *self._tables(),
                    cells,
                    self._work,
                    self._context,
                )
            if answer == layout.DONE:
                return guarded
            if answer == layout.NEEDS_GUARD and not self.automaton.is_once(int(self._context[layout.WANTED])):
                guarded = True
                token = int(trie.tokens[trie.nodes[self._work[depth, layout.NEXT], FIRST_TOKEN]])
                self._provide(answer, history, (self.vocabulary.tokens[token] or b"")[: depth + 1])
            else:
                self._provide(answer, history, b"", is_walk=True)

    def _addresses(self) -> PackedArrays:
        packed, tables = self._packed, self.automaton.tables
        if packed is None:
            packed = self._packed = PackedArrays(tables, self._work, self._context, self._codes, self.vocabulary)
        elif not packed.holds(tables):
            packed.take(tables)
        return packed

    def _tables(self) -> tuple[Any, ...]:
        tables = self.automaton.tables
        return tables.states, tables.edges, tables.classes, tables.targets, tables.pushes, tables.returns

    def _provide(self, answer: int, history: bytearray, path: bytes, *, is_walk: bool = False) -> None:
        """What a walk has asked for."""
        context = self._context
        wanted = int(context[layout.WANTED])
        if answer == layout.NEEDS_STATE:
            self.automaton.fill(wanted)
        elif answer == layout.NEEDS_RETURN:
            self.automaton.follow(wanted, int(context[layout.RESULT]))
        elif is_walk:  # of a frame that is once
            self._answer(self.automaton.follow(wanted, int(context[layout.RESULT])))
        else:
            began, around, path = (
                int(context[layout.BEGAN]),
                int(context[layout.AROUND]),
                path[: context.item(layout.AT)],
            )
            text = _from(began, history, path)
            before = _from(around, history, path)[: began - around]
            state = self.automaton.follow(wanted, int(context[layout.RESULT]), text, before)
            self._answer(state)

    def _answer(self, state: int) -> None:
        """To a guard."""
        context = self._context
        context[layout.ANSWER + int(context[layout.ANSWERED])] = state
        context[layout.ANSWERED] += 1

    def advance(
        self, at: Configuration, cells: NDArray[np.int32], history: bytearray, data: bytes
    ) -> Configuration | None:
        """Over the bytes of a token. None when they cannot come."""
        self._begin(at, cells, len(history))
        text = np.frombuffer(bytearray(data), np.uint8)  # the loop is compiled for what can be written to
        answer, place = self._kernel.advance(text, 0, *self._tables(), cells, self._work, self._context)
        return self._advance_from(answer, place, cells, history, data)

    def _advance_from(
        self, answer: int, place: int, cells: NDArray[np.int32], history: bytearray, data: bytes
    ) -> Configuration | None:
        """The rest of an advance that has come to byte `place` with this answer."""
        text = np.frombuffer(bytearray(data), np.uint8)  # the loop is compiled for what can be written to
        while answer != layout.DONE:
            if answer == layout.REFUSED:
                return None
            self._provide(answer, history, data)
            answer, place = self._kernel.advance(text, place, *self._tables(), cells, self._work, self._context)
        after = Configuration(*self._work[len(data), : layout.NEXT].tolist())
        return None if self.automaton.tables.states[after.state, FLAGS] & DEAD_END else after

    def advance_token(
        self, at: Configuration, cells: NDArray[np.int32], cells_address: int, history: bytearray, token: int
    ) -> Configuration | None:
        """As `advance`, for a token of the vocabulary that has bytes."""
        if not self._kernel.IS_COMPILED:
            return self.advance(at, cells, history, self.vocabulary.tokens[token] or b"")
        packed = self._addresses()
        answer, place, *after = packed.advance(token, *at, len(history), cells_address, len(cells), packed.addresses)
        if answer == layout.DONE:
            return Configuration(*after)
        if answer == layout.REFUSED:
            return None
        return self._advance_from(answer, place, cells, history, self.vocabulary.tokens[token] or b"")

    def only_byte(self, at: Configuration, cells: NDArray[np.int32], history: bytearray) -> int | None:
        """The byte that must come next, None when there are several or none."""
        self._begin(at, cells, len(history))
        byte, found = 0, -1
        while True:
            answer, byte, found = self._kernel.only_byte(byte, found, *self._tables(), cells, self._work, self._context)
            if answer == layout.DONE:
                return found if 0 <= found < 256 else None
            self._provide(answer, history, bytes([byte]))

    def may_end(self, at: Configuration, cells: NDArray[np.int32], history: bytearray) -> bool:
        """Whether the text may end here: at the bottom of the stack, after values that end without a byte."""
        automaton, state, top = self.automaton, at.state, at.top
        while True:
            states = automaton.tables.states
            if not states[state, FILLED]:
                automaton.fill(state)
                continue
            ends = states.item(state, ENDS)
            if ends <= 0:
                return ends < 0
            if cells[top, LEVEL] == 0:
                return False
            frame, text = int(cells[top, FRAME]), bytes(history[int(cells[top, layout.BEGIN]) :])
            if states[frame, RETURNS] >= 0:
                state = automaton.follow(frame, ends - 1, text)
                if state == 0:
                    return False
            else:
                state = frame
            top = int(cells[top, BELOW])


class PackedArrays:
    """The addresses of a walker's arrays, which it keeps alive, and what is called with them."""

    def __init__(
        self,
        tables: Tables,
        work: NDArray[np.int32],
        context: NDArray[np.int64],
        codes: NDArray[np.int32],
        vocabulary: Vocabulary,
    ) -> None:
        from . import walk_packed as packed  # here, for it imports numba

        self.advance: Any = packed.advance
        self.walk: Any = packed.walk
        self._states, self._edges, self._classes = tables.states, tables.edges, tables.classes
        self._targets, self._pushes, self._returns = tables.targets, tables.pushes, tables.returns
        self._others = (work, context, codes, vocabulary)
        own = addresses(*_arrays(tables), work, context, codes)
        self.addresses = np.concatenate([own, vocabulary.packed_addresses])

    def take(self, tables: Tables) -> None:
        """Those tables that have been made anew, as they grew."""
        held = (self._states, self._edges, self._classes, self._targets, self._pushes, self._returns)
        for number, (before, now) in enumerate(zip(held, _arrays(tables), strict=True)):
            if now is not before:
                self.addresses[2 * number : 2 * number + 2] = addresses(now)
        self._states, self._edges, self._classes = tables.states, tables.edges, tables.classes
        self._targets, self._pushes, self._returns = tables.targets, tables.pushes, tables.returns

    def holds(self, tables: Tables) -> bool:
        """Whether no table has been made anew since, as it grew."""
        return (
            self._states is tables.states
            and self._edges is tables.edges
            and self._targets is tables.targets
            and self._classes is tables.classes
            and self._pushes is tables.pushes
            and self._returns is tables.returns
        )


def _arrays(tables: Tables) -> tuple[NDArray[Any], ...]:
    """In the order in which `packed` has them."""
    return tables.states, tables.edges, tables.classes, tables.targets, tables.pushes, tables.returns


def _from(place: int, history: bytearray, path: bytes) -> bytes:
    """The text from a place on: of the output so far and what a token adds."""
    return bytes(history[place:]) + path if place <= len(history) else path[place - len(history) :]


def _frames(cells: NDArray[np.int32], top: int, number: int) -> tuple[int, ...]:
    cell = cells.item
    if number == 1:
        return (cell(top, FRAME),)
    frames = []
    for _ in range(number):
        frames.append(cell(top, FRAME))
        top = cell(top, BELOW)
    return tuple(frames)
