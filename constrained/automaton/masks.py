"""Token bitmasks of the automaton's configurations, cached by the part of the stack that they depend on."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import loops
from . import layout
from .actions import DEAD_END, ENDING, FILLED, FLAGS, LIKE, LOOPS, MARKS, MOST, PLAIN, RETURNS, TEXT
from .automaton import Automaton
from .duplicate_names import NO_NAMES, NamesInTokens
from .layout import BELOW, FRAME, LEVEL, LIMITED_LEVEL, SAVED
from .token_trie import FIRST_TOKEN
from .vocabulary import Bits, Vocabulary
from .walks import Configuration, MaskWalk, OutputMemory, Scratch, TokenMask, configuration

PACKAGE = "ramiform.constrained"  # of the compiled loops; while they are postponed, Python interprets `walk_kernel`
MAX_MASK_BYTES = 64 << 20  # of cached masks per grammar; the least recently used are evicted


class NotReadyError(Exception):
    """A state is needed that does not exist yet, and may not be made now."""


class TokenWalker:
    """Runs walks over the vocabulary, computes the states that they request, and caches masks. Not thread-safe."""

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary) -> None:
        from . import walk_kernel  # not at the top: it imports numba

        self._kernel: Any = walk_kernel
        self.automaton = automaton
        self.vocabulary = vocabulary
        self._longest = max(vocabulary.trie.max_depth, 1)
        self.num_spare_cells = 2 * self._longest + 2  # cells that a walk may use above the first free one
        self.own_scratch = Scratch(self._longest, automaton.tables, vocabulary)
        self._scratches: list[Scratch] = []  # of further walks at the same time, for reuse
        self._shallow_levels = LIMITED_LEVEL - self._longest
        self._masks: OrderedDict[tuple[int, ...], TokenMask] = OrderedDict()
        self._reach: dict[tuple[int, ...], int] = {}
        self._keys: dict[int, tuple[int]] = {}
        self.may_provide = True  # False: raise NotReadyError where a state is needed
        self._guarded: set[int] = set()  # states whose masks depend on guarded frames, and so are not cached
        self._max_masks = max(1, MAX_MASK_BYTES // (4 * vocabulary.num_words))

    @property
    def num_bytes(self) -> int:
        """Memory that the cached masks take."""
        return 4 * self.vocabulary.num_words * len(self._masks)

    def drop_masks(self) -> None:
        """Forget the cached masks."""
        self._masks.clear()
        self._reach.clear()

    def close(self) -> None:
        """Give the memory of the masks back to the vocabulary. Nothing uses this walker any more."""
        self.vocabulary.give_back((mask.bits, mask.address) for mask in self._masks.values())
        self.drop_masks()

    def scratch(self) -> Scratch:
        """Take the arrays of a walk that takes place at the same time as others."""
        return (
            self._scratches.pop() if self._scratches else Scratch(self._longest, self.automaton.tables, self.vocabulary)
        )

    def give_back(self, scratch: Scratch) -> None:
        """Keep the arrays of a walk that has ended for others."""
        self._scratches.append(scratch)

    def without_repeated(
        self, found: TokenMask, at: Configuration, memory: OutputMemory, names: NamesInTokens
    ) -> NDArray[np.int32]:
        """Return a mask's bits without the tokens that repeat a name, as some may. Brings `names` up to date."""
        cells, _, history = memory
        mask, top, quoted = found.bits, at.top, self.vocabulary.quoted
        if not (history or quoted.doubled):
            return mask
        quoted.read(history, names)
        name, used = b"", NO_NAMES
        if cells.item(top, FRAME) in self.automaton.once_frames:
            began = cells.item(top, layout.BEGIN)
            used = names.used_before(history, cells.item(cells.item(top, BELOW), layout.BEGIN), began)
            name = bytes(history[began:])
        if not used.endings and not names.tokens and not names.pending and not quoted.doubled:
            return mask

        def may_come(token: int) -> bool:
            return self.advance_token(at, memory, token) is not None

        repeating = quoted.repeating(mask, name, used, names, may_come)
        return names.without(mask, repeating) if repeating else mask

    def key(self, at: Configuration) -> tuple[int, ...]:
        """Return the cache key of a configuration's mask without the stack."""
        return self._keys.get(at.state) or self._key(at.state, at.counted)

    def known_mask(self, at: Configuration, cells: NDArray[np.int32]) -> TokenMask | None:
        """Return the mask from the cache if it is there. It still allows names that have come before."""
        state, top, _, counted = at
        key: tuple[int, ...] | None = self._keys.get(state)
        if key is None:
            if not self.automaton.tables.states.item(state, FILLED):
                return None
            key = self._key(state, counted)
        reach = self._reach.get(key)
        if reach is None or cells.item(top, LEVEL) >= self._shallow_levels:
            return None
        if reach:
            key += self._frames(cells, top, reach)
        mask = self._masks.get(key)
        if mask is not None:
            self._masks.move_to_end(key)
        return mask

    def _is_shallow(self, at: Configuration, cells: NDArray[np.int32]) -> bool:
        """Return False near the level that limits values, and above it, where a mask depends on the level."""
        return cells.item(at.top, LEVEL) < self._shallow_levels

    def is_steady(self, mask: TokenMask, at: Configuration) -> bool:
        """Return True if the mask holds wherever this state is entered again above the same cell of the stack."""
        return mask.is_cached and not mask.may_repeat and at.state in self._keys and not self.automaton.gates

    def begin(self, at: Configuration, memory: OutputMemory, scratch: Scratch) -> MaskWalk:
        """Begin a mask that is not in the cache. Its first walk is to be run, and `finish` told the result."""
        key = self.key(at)
        item, plain = self.automaton.tables.states.item, self.vocabulary.plain
        flags = item(at.state, FLAGS)
        if flags & PLAIN:
            like, is_far = item(at.state, LIKE), self._is_far_from_marks(at)
            room = item(like or at.state, MOST) - at.counted
            if like and room < self._longest:
                is_far = False
            if like and is_far and item(like, FLAGS) & LOOPS and like not in self._guarded:
                # Along given texts (names, strings of an enum) in a string that may hold any other text: the mask of
                # the state `like`, where they have been left, but for the tokens that begin as they continue.
                left = at._replace(state=like)
                mask = self.known_mask(left, memory.cells) or self.compute(left, memory, scratch)
                if self.key(left) in self._reach:
                    return MaskWalk(key, at, memory, scratch, plain.others, mask)
                self._guarded.add(like)
            if is_far or not like:  # near a bound, given texts may go on where others may not
                trie = plain.tails if flags & LOOPS and is_far else plain.others
                return MaskWalk(key, at, memory, scratch, trie, plain.mask(room))
        if flags & TEXT and (inside := self._inside(key, at, memory, scratch)) is not None:
            return MaskWalk(key, at, memory, scratch, self.vocabulary.quoted_trie, inside)
        return MaskWalk(key, at, memory, scratch, self.vocabulary.trie)

    def _inside(self, key: tuple[int, ...], at: Configuration, memory: OutputMemory, scratch: Scratch) -> Bits | None:
        """Return the tokens that go on in a JSON string, so without a quote: they do not depend on what is around it.

        Grammars with the same block of states share them.
        """
        own_key = *key, -1
        if (mask := self._masks.get(own_key)) is not None:
            self._masks.move_to_end(own_key)
            return mask.bits, mask.address
        place = self.automaton.block_state(at.state)
        if place is not None and (found := self.vocabulary.in_strings.get(*place)) is not None:
            return found
        walk = MaskWalk(own_key, at, memory, scratch, self.vocabulary.trie, tokens_of=layout.NO_QUOTES)
        if self._run(walk)[0] != layout.DONE:
            return None
        if place is not None:
            self.vocabulary.in_strings.keep(*place, (walk.bits, walk.address))
        else:
            self._keep(own_key, TokenMask(walk.bits, walk.address, may_repeat=False, reach=0, is_cached=True))
        return walk.bits, walk.address

    def compute(self, at: Configuration, memory: OutputMemory, scratch: Scratch) -> TokenMask:
        """Compute a mask that is not in the cache, and cache it."""
        walk = self.begin(at, memory, scratch)
        return self.finish(walk, *self._run(walk))

    def finish(self, walk: MaskWalk, status: int, depth: int) -> TokenMask:
        """Complete the mask of a walk that stopped so, and cache it."""
        at, memory, context = walk.at, walk.memory, walk.scratch.context
        guarded = False
        while status != layout.DONE:
            if status == layout.NEEDS_STATE:
                self._fill(context.item(layout.WANTED))
                status, depth = self._run(walk, depth)
                continue
            path = b""
            if status == layout.NEEDS_GUARD:
                guarded = True
                if walk.trie is self.vocabulary.plain.tails:
                    # A guard needs the whole text; the tails are only its end.
                    walk.trie = self.vocabulary.plain.others
                    status, depth = self._run(walk)
                    continue
                token = int(walk.trie.tokens[walk.trie.nodes[walk.scratch.work[depth, layout.NEXT], FIRST_TOKEN]])
                path = (self.vocabulary.tokens[token] or b"")[: depth + 1]
            self._provide(walk.scratch, status, memory.history, path)
            status, depth = self._run(walk, depth)
        bits, like, key = walk.bits, walk.like, walk.key
        reach, may_repeat = context.item(layout.REACH), bool(context.item(layout.PASSED_ONCE))
        if like is not None:
            # If a guard was asked, the mask holds for this text alone, and was not cached.
            guarded = guarded or not like.is_cached
            reach, may_repeat = max(reach, like.reach), may_repeat or like.may_repeat
        else:
            if self.automaton.tables.states.item(at.state, ENDING) and self.may_end(at, memory.cells, memory.history):
                bits |= self.vocabulary.ends_mask
            if (gate := self.automaton.gates.get(at.state)) is not None:
                bits |= gate.allowed_tokens()
        if guarded or not self._is_shallow(at, memory.cells):
            return TokenMask(bits, walk.address, may_repeat, reach, is_cached=False)
        reach = self._reach[key] = max(reach, self._reach.get(key, 0))
        mask = TokenMask(bits, walk.address, may_repeat, reach, is_cached=True)
        self._keep(key + self._frames(memory.cells, at.top, reach), mask)
        return mask

    def _keep(self, key: tuple[int, ...], mask: TokenMask) -> None:
        self._masks[key] = mask
        if len(self._masks) > self._max_masks:
            self._masks.popitem(last=False)

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
        if number == 1 and not row(frame := cell(top, FRAME), MARKS):
            return (frame,)
        frames = []
        for _ in range(number):
            frame = cell(top, FRAME)
            frames.append(frame)
            if marks := row(frame, MARKS):
                frames.append(self._place(marks, cell(top, SAVED)))
            top = cell(top, BELOW)
        return tuple(frames)

    def _is_far_from_marks(self, at: Configuration) -> bool:
        """Return True if no token is so long that its count would change a mask."""
        row = self.automaton.tables.states.item(at.state, MARKS)
        if row == 0:
            return True
        marks = self.automaton.marks[row]
        place = bisect_left(marks, at.counted)
        return place == len(marks) or marks[place] - at.counted > self._longest

    def _begin(self, at: Configuration, cells: NDArray[np.int32], offset: int, scratch: Scratch) -> None:
        """Set the kernel's arrays to a configuration."""
        scratch.work[0] = at.state, at.top, at.free, at.counted, -1, 0, 0, 0
        context = scratch.context
        context[layout.REACH] = 0
        context[layout.BASE_DEPTH] = cells[at.top, LEVEL]
        context[layout.OFFSET] = offset
        context[layout.PASSED_ONCE] = 0
        context[layout.ANSWERED] = 0

    def _run(self, walk: MaskWalk, depth: int = -1) -> tuple[int, int]:
        """Begin a walk, or resume it at row `depth`. Returns the status, and the row to resume at."""
        if loops.ready(PACKAGE):
            return walk.scratch.arrays.walk(*walk.arguments(depth))  # type: ignore[no-any-return]
        scratch, trie = walk.scratch, walk.trie
        if depth < 0:
            walk.bits[:] = 0 if walk.base is None else walk.base[0]
            self._begin(walk.at, walk.memory.cells, len(walk.memory.history), scratch)
        texts, tables = (trie.data, trie.nodes, trie.tokens), self.automaton.tables.arrays()
        status, depth = self._kernel.walk(
            *texts,
            walk.bits,
            max(depth, 0),
            walk.tokens_of,
            scratch.codes,
            *tables,
            walk.memory.cells,
            scratch.work,
            scratch.context,
        )
        return status, depth

    def _provide(self, scratch: Scratch, status: int, history: bytearray, path: bytes) -> None:
        """Compute what a walk has requested."""
        context = scratch.context
        wanted = context.item(layout.WANTED)
        if status == layout.NEEDS_STATE:
            self._fill(wanted)
            return
        self._check_may_provide()
        if status == layout.NEEDS_LIMITED:
            self.automaton.limit(wanted)
        elif status == layout.NEEDS_RETURN:
            self.automaton.follow(wanted, context.item(layout.ENDED_RESULT))
        else:
            began, around, path = (
                int(context[layout.BEGAN]),
                int(context[layout.AROUND]),
                path[: context.item(layout.VALUE_END)],
            )
            text = _from(began, history, path)
            before = _from(around, history, path)[: began - around]
            state = self.automaton.follow(wanted, int(context[layout.ENDED_RESULT]), text, before)
            _answer(context, state)

    def _fill(self, number: int) -> None:
        self._check_may_provide()
        self.automaton.fill(number)

    def _check_may_provide(self) -> None:
        if not self.may_provide:
            raise NotReadyError

    def advance(
        self, at: Configuration, cells: NDArray[np.int32], history: bytearray, data: bytes
    ) -> Configuration | None:
        """Return the configuration after the bytes; None if they are refused."""
        scratch, text = self.own_scratch, np.frombuffer(bytearray(data), np.uint8)  # compiled for writable arrays
        self._begin(at, cells, len(history), scratch)
        place = 0
        while True:
            status, place = self._kernel.advance(
                text, place, *self.automaton.tables.arrays(), cells, scratch.work, scratch.context
            )
            if status == layout.DONE:
                break
            if status == layout.REFUSED:
                return None
            self._provide(scratch, status, history, data)
        after = Configuration(*scratch.work[len(data), : layout.NEXT].tolist())
        return None if self.automaton.tables.states[after.state, FLAGS] & DEAD_END else after

    def advance_token(self, at: Configuration, memory: OutputMemory, token: int) -> Configuration | None:
        """Return the configuration after a token that has bytes; None if it is refused."""
        cells, cells_address, history = memory
        if not loops.ready(PACKAGE):
            return self.advance(at, cells, history, self.vocabulary.tokens[token] or b"")
        arrays, place, rest = self.own_scratch.arrays, -1, (len(history), cells_address, len(cells))
        while True:
            after = arrays.advance(token, place, *at, *rest, arrays.address())
            if after[0] >= 0:
                return configuration(after)
            if after[0] == -1 - layout.REFUSED:
                return None
            place = after[1]
            self._provide(self.own_scratch, -1 - after[0], history, self.vocabulary.tokens[token] or b"")

    def after_token(self, at: Configuration, memory: OutputMemory, token: int) -> Configuration | None:
        """Return the configuration after a token, whole or by its bytes; None if it is refused."""
        gates, data = self.automaton.gates, self.vocabulary.tokens[token]
        if not gates:
            return None if data is None else self.advance_token(at, memory, token)
        after = None
        if (gate := gates.get(at.state)) is not None:
            state = gate.after_token(self.automaton, token, data or b"")
            after = None if state is None else at._replace(state=self.automaton.number(state))
        if after is None and data is not None:
            after = self.advance_token(at, memory, token)
        if after is None or (gate := gates.get(after.state)) is None:
            return after
        state = gate.at_boundary()
        return None if state is None else after._replace(state=self.automaton.number(state))

    def alike(self, at: Configuration) -> Configuration:
        """Return the configuration that has the same mask, and serves for all that do."""
        gate = self.automaton.gates.get(at.state) if self.automaton.gates else None
        return at if gate is None else at._replace(state=self.automaton.number(gate.alike()))

    def only_byte(self, at: Configuration, cells: NDArray[np.int32], history: bytearray) -> int | None:
        """Return the only byte that is allowed next; None if there are several or none."""
        self._begin(at, cells, len(history), self.own_scratch)
        byte, found = 0, -1
        while True:
            status, byte, found = self._kernel.only_byte(
                byte, found, *self.automaton.tables.arrays(), cells, self.own_scratch.work, self.own_scratch.context
            )
            if status == layout.DONE:
                return found if 0 <= found < 256 else None
            self._provide(self.own_scratch, status, history, bytes([byte]))

    def may_end(self, at: Configuration, cells: NDArray[np.int32], history: bytearray) -> bool:
        """Return True if the text may end here: at the bottom of the stack, after values that end without a byte."""
        automaton, state, top = self.automaton, at.state, at.top
        while True:
            states = automaton.tables.states
            if not states[state, FILLED]:
                self._fill(state)
                continue
            ends = states.item(state, ENDING)
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


def _answer(context: NDArray[np.int64], state: int) -> None:
    """Store the state after a guarded frame for the kernel."""
    context[layout.FIRST_ANSWER + int(context[layout.ANSWERED])] = state
    context[layout.ANSWERED] += 1


def _from(place: int, history: bytearray, path: bytes) -> bytes:
    """Return the text from an offset on: of the output so far, and the bytes of a token."""
    return bytes(history[place:]) + path if place <= len(history) else path[place - len(history) :]
