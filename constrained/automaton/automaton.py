"""Lazy deterministic pushdown automaton over bytes: control states are values, expanded to table rows on first use.

A front end is a set of immutable, hashable classes with one method, `expand`, that returns the transitions of a state.
Equal values are one state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, count
from ..errors import Refusals, StatesExhaustedError
from ..record import record
from ..regex.dfa import START as DFA_START
from ..regex.dfa import Dfa, free_kinds
from .actions import (
    CLASSES,
    COUNT_LIMIT,
    COUNTS,
    DEAD,
    DEAD_END,
    ENDING,
    FILLED,
    FLAGS,
    GOTO,
    GUARDED,
    HEAD,
    MARKS,
    NEXT_STATE,
    NUM_RETURNS,
    ONCE,
    PLAIN,
    POP,
    PUSH,
    PUSH_BEFORE,
    RETURNS,
    ROW,
    STAY,
    UNKNOWN,
    action,
)
from .blocks import Block, block_of
from .layout import MAX_DEPTH
from .tables import Tables

MAX_GUARDS = 64  # cached results of guarded frames
_MAX_BYTES = 256 << 20  # of one automaton, as estimated: what a single output may need
# Estimates, measured over objects of many properties. A state's is that of its object, its keys and its edges.
BYTES_PER_STATE, BYTES_PER_ENTRY = 500, 400
_MEASURE_INTERVAL = 64  # rows that are filled between two checks of the size; an eighth of all rows, if they are more
FILL_STEPS = 100 * INTERPRETED  # steps counted for the row of a state, beside those charged for its expansion


def next_measure(num_filled: int) -> int:
    """Return the number of rows at which an automaton's size is measured again: it takes as long as it has caches."""
    return num_filled + max(_MEASURE_INTERVAL, num_filled // 8)


@record()
class TransitionRow:
    """Transitions of one state.

    `edges` maps bytes to actions; every other byte acts as in state number `rest`, which `Automaton.block` has filled.
    `accepts`: the text may end here. `ends`: the value may end here with this result, without consuming a byte.
    `plain`: every token of plain string content is allowed.
    """

    edges: Mapping[int, int]
    rest: int = 0
    accepts: bool = False
    ends: int | None = None
    plain: bool = False


class ControlState(Hashable, Protocol):
    """A control state of a front end."""

    def expand(self, automaton: Automaton) -> TransitionRow:
        """Return the transitions. Raises GrammarError if they are too complex."""


class Nested:
    """Base of control states before a value that may be nested.

    A push of such a state at the stack's `limited_level` (0: no level) enters `within(depth)` instead, where `depth` is
    the number of levels that are left. So values may be nested up to the maximum depth and can always end, if they need
    fewer levels than are left there.
    """

    limited_level: int

    def within(self, depth: int) -> ControlState:
        """Return the state before the same values, but only those nested at most `depth` levels deep."""
        raise NotImplementedError


class Limited:
    """Base of states and frames inside an array or object whose masks depend on the number of its values.

    They do near `limit`, the count at which the next `Counting` state is left; 0 if there is none. A frame has the
    limit of its successors.
    """

    limit: int = 0


class Frame(Limited):
    """A stack frame: when the value above it ends, its result selects the state that follows.

    `num_results` results are expected; more may come. The successor of a `guarded` frame depends on the text of the
    value too, so it is not stored in the tables. A frame that is `once` is guarded only to refuse a value that has come
    before: its successor does not depend on the text.
    """

    num_results: int
    guarded: bool = False
    once: bool = False

    def expand(self, automaton: Automaton) -> TransitionRow:
        """Raise AssertionError: a frame is no control state."""
        raise AssertionError("a frame is on the stack, and never the control state")

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        """Return the state after a value; None if the value is refused. `text` is empty unless the frame is guarded."""
        raise NotImplementedError

    def repeats(self, result: int, text: bytes, before: bytes) -> bool:
        """Return True if `before`, the text of the enclosing value, contains this value already, so that it is refused.

        For guarded frames whose states cannot remember such texts, because there would be too many states.
        """
        return False


class Counting(Limited):
    """Base of control states inside an array or object: each value that ends in them is counted.

    When the count reaches `limit`, the state `at_limit()` is entered instead; without a limit (0) nothing is counted.
    So a bound on a number of items needs one state below it and one from it on, however large it is.
    """

    def at_limit(self) -> ControlState | None:
        """Return the state that replaces this one at the limit, or None if the value that reaches it is refused."""
        raise NotImplementedError


class TokenGate:
    """Base of control states that whole tokens may leave, or that count the tokens of the text that they are in.

    Only those whose `is_gate` is True do. Their bytes act as those of other states. The next token is sampled at
    `temperature`; None: the request's.
    """

    is_gate: bool = False
    temperature: float | None = None

    def allowed_tokens(self) -> NDArray[np.int32]:
        """Return the bitmask of the whole tokens that lead on, beside those whose bytes do. Read-only."""
        raise NotImplementedError

    def after_token(self, automaton: Automaton, token: int, data: bytes) -> ControlState | None:
        """Return the state after a whole token, read in every way; None if only its bytes lead on."""
        raise NotImplementedError

    def at_boundary(self) -> ControlState | None:
        """Return the state where a token ends in this one; None if no token may."""
        raise NotImplementedError

    def alike(self) -> ControlState:
        """Return the state that represents all with the same mask."""
        raise NotImplementedError


@record()
class Accepted:
    """The final state: the whole text has been read."""

    def expand(self, automaton: Automaton) -> TransitionRow:
        return TransitionRow({}, accepts=True)


@dataclass
class Automaton:
    """The transition tables, and the states' numbers in them. Not thread-safe."""

    tables: Tables = field(default_factory=Tables)
    memory: dict[Any, Any] = field(default_factory=dict)  # caches of front ends, by their own keys
    num_fixed_bytes: int = 0  # of tables that front ends made before the first state, such as automata of terminals
    refused: Refusals = field(default_factory=Refusals)  # alternatives that are too complex
    once_frames: set[int] = field(default_factory=set)  # numbers of the frames that are `once`
    marks: list[tuple[int, ...]] = field(default_factory=lambda: [()])  # ascending counts at which masks change
    caches: list[Sequence[Sized]] = field(default_factory=list)  # of front ends; they grow with the states
    num_filled: int = 0  # rows, so far
    _next_check: int = 0  # number of rows at which the size is checked again
    gates: dict[int, TokenGate] = field(default_factory=dict)  # states that know of tokens, by their numbers
    temperatures: dict[int, float] = field(default_factory=dict)  # of the next token in states that have their own
    _bases: list[int] = field(default_factory=list)  # of the blocks, ascending
    _blocks: list[ref[Block]] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _values: dict[int, Any] = field(default_factory=dict)
    _pushes: dict[tuple[int, int], int] = field(default_factory=dict)
    _guards: dict[tuple[int, int, bytes], int] = field(default_factory=dict)

    def number(self, state: ControlState | int) -> int:
        """Return the number of a state, new or known. A number is returned as it is."""
        if type(state) is int:
            return state
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = self.tables.new_states(1)
            self._values[number] = state
            if isinstance(state, Limited) and state.limit:
                self.tables.states[number, MARKS] = self.new_marks((state.limit,))
            if isinstance(state, TokenGate) and state.temperature is not None:
                self.temperatures[number] = state.temperature
            if isinstance(state, TokenGate) and state.is_gate:
                self.gates[number] = state
                if state.at_boundary() is None:
                    self.tables.states[number, FLAGS] |= DEAD_END
        return number

    def frame(self, state: ControlState | Frame | int) -> int:
        """Return the number of a state or frame that is pushed on the stack."""
        if not isinstance(state, Frame):
            return self._successor(state)
        number = self.number(state)
        if self.tables.states.item(number, RETURNS) < 0:
            tables = self.tables
            tables.states[number, RETURNS] = tables.new_returns(state.num_results)
            tables.states[number, NUM_RETURNS] = state.num_results
            if state.guarded:
                tables.states[number, FLAGS] |= GUARDED | (ONCE if state.once else 0)
            if state.once:
                self.once_frames.add(number)
        return number

    def _successor(self, state: ControlState | int) -> int:
        """Return the number of a state that is entered when a value ends."""
        number = self.number(state)
        if isinstance(state, Counting) and state.limit and not self.tables.states.item(number, COUNT_LIMIT):
            following = state.at_limit()
            next_number = 0 if following is None else self._successor(following)
            row = self.tables.states[number]
            row[FLAGS] |= COUNTS
            row[COUNT_LIMIT], row[NEXT_STATE] = state.limit, next_number
        return number

    def new_marks(self, marks: tuple[int, ...]) -> int:
        """Return the row of `marks` that holds these ascending counts."""
        key = "marks", marks
        row = self._numbers.get(key)
        if row is None:
            row = self._numbers[key] = len(self.marks)
            self.marks.append(marks)
        return row

    def goto(self, state: ControlState | int) -> int:
        """Return the action that consumes the byte and enters `state`."""
        return action(GOTO, self.number(state))

    def goto_filled(self, state: ControlState) -> int:
        """Return the action that enters a state, and compute its row: a walk that comes here goes on there."""
        number = self.number(state)
        if not self.tables.states.item(number, FILLED):
            self.fill(number)
        return action(GOTO, number)

    def push(self, state: ControlState | int, then: ControlState | Frame | int) -> int:
        """Return the action that consumes the byte, pushes `then` and enters `state`, where a value begins."""
        return action(PUSH, self._push(state, then))

    def push_before(self, state: ControlState | int, then: ControlState | Frame | int) -> int:
        """Return the action that pushes `then`, enters `state`, and reads the byte again as the value's first."""
        return action(PUSH_BEFORE, self._push(state, then))

    def stay_on(self, data: bytes) -> int:
        """Return the number of a state for `TransitionRow.rest` in which these bytes stay in the current state."""
        key = ("stay", data)
        number = self._numbers.get(key)
        if number is None:
            tables = self.tables
            class_of = np.zeros(256, np.uint8)
            class_of[list(data)] = 1
            number = self._numbers[key] = tables.new_states(1)
            tables.states[number, ROW], targets = tables.new_targets(2)
            targets[:] = DEAD, action(STAY, 0)
            tables.states[number, CLASSES] = tables.new_classes(class_of)
            tables.states[number, FILLED] = 1
        return number

    def pop(self, result: int = 0) -> int:
        """Return the action that consumes the byte as the last of its value, which has `result`."""
        return action(POP, result)

    def _push(self, state: ControlState | int, then: ControlState | Frame | int) -> int:
        key = self.number(state), self.frame(then)
        number = self._pushes.get(key)
        if number is None:
            level = state.limited_level if isinstance(state, Nested) else 0
            number = self._pushes[key] = self.tables.new_push(*key, level)
        return number

    def limit(self, push: int) -> None:
        """Compute the state that a push enters at its limited level."""
        state, _, level, _ = self.tables.pushes[push].tolist()
        limited = self.number(self._values[state].within(MAX_DEPTH - level))
        self.tables.pushes[push, 3] = limited

    def fill(self, number: int) -> None:
        """Compute the row of a state. Raises what `expand` raises, and StatesExhaustedError beyond _MAX_BYTES."""
        if self.num_filled >= self._next_check:
            self._check_size()
            self._next_check = next_measure(self.num_filled)
        self.num_filled += 1
        count(FILL_STEPS)
        row = self._values[number].expand(self)
        tables = self.tables
        tables.set_edges(number, row.edges)
        states = tables.states
        if row.rest:
            tables.copy_row(number, row.rest)
        if row.plain:
            states[number, FLAGS] |= PLAIN
        if row.accepts:
            states[number, ENDING] = -1
        elif row.ends is not None:
            states[number, ENDING] = 1 + row.ends
        states[number, FILLED] = 1

    @property
    def num_bytes(self) -> int:
        """Estimate of the memory that tables, states and caches take."""
        num_entries = len(self.memory) + sum(len(cache) for caches in self.caches for cache in caches)
        num_states = len(self._numbers) + len(self._pushes)
        return self.tables.num_bytes + BYTES_PER_STATE * num_states + BYTES_PER_ENTRY * num_entries

    def _check_size(self) -> None:
        if self.num_bytes > _MAX_BYTES:
            raise StatesExhaustedError(
                f"the constraint is too complex: its states take more than {_MAX_BYTES >> 20} MiB"
            )

    def clear(self) -> None:
        """Forget everything, so that its objects are freed at once: compilers and their states hold each other."""
        for known in (
            self._numbers,
            self._values,
            self._pushes,
            self._guards,
            self.memory,
            self.gates,
            self.temperatures,
        ):
            known.clear()
        for caches in self.caches:
            for cache in caches:
                if isinstance(cache, dict | list):
                    cache.clear()
        self.caches.clear()
        self.refused.clear()  # an error's traceback holds the automaton

    def follow(self, frame: int, result: int, text: bytes = b"", before: bytes = b"") -> int:
        """Return the state after a value with this result, 0 if it is refused.

        The result is stored in the tables, or, if it depends on the text of the value, in a small cache: a walk asks
        for the same text again for every byte that ends it.
        """
        flags, value = self.tables.states.item(frame, FLAGS), self._values[frame]
        if flags & GUARDED and value.repeats(result, text, before):
            return 0
        if flags & ONCE or not flags & GUARDED:
            known = self.tables.known_return(frame, result)
            if known == UNKNOWN:
                state = value.after(self, result, b"")
                known = 0 if state is None else self._successor(state)
                self.tables.set_return(frame, result, known)
            return known
        key = frame, result, text
        number = self._guards.get(key)
        if number is None:
            state = value.after(self, result, text)
            number = 0 if state is None else self._successor(state)
            if len(self._guards) == MAX_GUARDS:
                self._guards.clear()
            self._guards[key] = number
        return number

    def edges_of(self, number: int) -> dict[int, int]:
        """Return the action of each byte in a state, without dead ones; the row is computed if need be."""
        if not self.tables.states[number, FILLED]:
            self.fill(number)
        tables = self.tables
        state = tables.states[number]
        found: dict[int, int] = {}
        if state[ROW]:
            codes = tables.targets[state[ROW] + tables.classes[state[CLASSES]].astype(np.int64)]
            live = np.flatnonzero(codes)
            found = dict(zip(live.tolist(), codes[live].tolist(), strict=True))
        edge = int(state[HEAD])
        while edge >= 0:
            byte, code, edge = tables.edges[edge].tolist()
            found[byte] = code
        return {byte: code for byte, code in found.items() if code}

    def codes_inside(self, number: int) -> list[int]:
        """Return the different actions in a state inside a text, in the order of their first bytes."""
        tables, state = self.tables, self.tables.states[number]
        if state[HEAD] >= 0:
            return list(dict.fromkeys(self.edges_of(number).values()))
        key = "classes in order", int(state[CLASSES])
        if key not in self.memory:
            self.memory[key] = np.array([*dict.fromkeys(tables.classes[key[1]].tolist())])
        codes = tables.targets[self.memory[key] + state[ROW]]
        return [code for code in dict.fromkeys(codes.tolist()) if code]

    def is_control_state(self, number: int) -> bool:
        """Return True if a number is that of a control state or frame, and not of a state inside a text."""
        return number in self._values

    def block(self, key: Hashable, make: Callable[[], Block]) -> int:
        """Add a block, once per key. Returns its base: the number of its local state s is the base plus s."""
        base = self._numbers.get(("block", key))
        if base is None:
            base = self._numbers["block", key] = self._add_block(make())
        return base

    def block_state(self, number: int) -> tuple[Block, int] | None:
        """Return the block of a state whose characters are not counted, and its number there; None if it has none."""
        at = bisect_left(self._bases, number) - 1
        block = self._blocks[at]() if at >= 0 else None
        if block is None or block.counts is not None or number - self._bases[at] >= len(block.table):
            return None
        return block, number - self._bases[at]

    def _add_block(self, block: Block) -> int:
        tables, layout = self.tables, block.layout()
        number = len(layout.states)
        base = tables.new_states(number) - 1
        self._bases.append(base)
        self._blocks.append(ref(block))
        row, targets = tables.new_targets(number * layout.num_columns)
        offset = tables.new_results(layout.results) if layout.results else 0
        from . import literal_kernel  # here, because it imports numba

        actions = targets.reshape(number, layout.num_columns)
        literal_kernel.lay_out(
            np.ascontiguousarray(block.table, np.int32),
            layout.operations,
            layout.ends,
            layout.like,
            base,
            offset,
            actions,
        )
        states = tables.states[base + 1 : base + 1 + number]
        states[:] = layout.states
        states[:, ROW] += row
        states[:, CLASSES] = tables.new_classes(layout.class_of)
        if layout.marks:
            states[:, MARKS] = self.new_marks(layout.marks)
        return base


@dataclass(frozen=True, eq=False)
class DfaStart:
    """Start state of a text that a Dfa must accept as a whole."""

    dfa: Dfa

    def base(self, automaton: Automaton) -> int:
        """Add the Dfa to the tables; return its base as `Automaton.block` does."""
        return automaton.block(("text", self.dfa), lambda: block_of(self.dfa, accepts=True, free=free_kinds(self.dfa)))

    def expand(self, automaton: Automaton) -> TransitionRow:
        return TransitionRow({}, rest=self.base(automaton) + DFA_START, accepts=bool(self.dfa.accepting[DFA_START]))


def class_row(automaton: Automaton, actions: list[int], class_of: NDArray[np.uint8]) -> int:
    """Return the number of a filled state, for `TransitionRow.rest`, in which a byte of class c has actions[c]."""
    tables = automaton.tables
    key = ("classes", class_of.tobytes())
    if key not in automaton.memory:
        automaton.memory[key] = tables.new_classes(class_of)
    number = tables.new_states(1)
    targets, added = tables.new_targets(len(actions))
    added[:] = actions
    tables.states[number, ROW] = targets
    tables.states[number, CLASSES] = automaton.memory[key]
    tables.states[number, FILLED] = 1
    return number
