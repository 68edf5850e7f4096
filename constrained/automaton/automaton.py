"""A lazy deterministic byte automaton with a stack: control states are values, and become rows at first touch.

A front end is a set of immutable, hashable classes with one method, `expand`, that says what each byte does in such a
state. States that are equal are one state. Knows no tokens and no language.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError
from ..regex.dfa import START as DFA_START
from ..regex.dfa import Dfa, free_kinds
from .actions import (
    CLASSES,
    DEAD,
    ENDS,
    FILLED,
    FLAGS,
    GOTO,
    GUARDED,
    PLAIN,
    POP,
    POP_BEFORE,
    PUSH,
    PUSH_BEFORE,
    RETURNS,
    ROW,
    STAY,
    action,
)
from .blocks import Block, block_of
from .tables import Tables

MAX_GUARDS = 64  # answers of guards that are remembered


@dataclass(frozen=True)
class TransitionRow:
    """What each byte does in a state: `edges` by byte, and all other bytes as in the state numbered `rest`, which has
    been filled by `Automaton.block`. `accepts`: the text may end here. `ends`: the value may end here, with this
    result, without a byte to say so. `plain`: every token of plain string content may come."""

    edges: Mapping[int, int]
    rest: int = 0
    accepts: bool = False
    ends: int | None = None
    plain: bool = False


class ControlState(Hashable, Protocol):
    def expand(self, automaton: Automaton) -> TransitionRow: ...


class Frame:
    """A state that is put on the stack, and is followed by another one according to the result of the value above it.

    `guarded`: also according to the text of the value, so nothing is remembered.
    """

    num_results: int
    guarded: bool = False
    once: bool = False  # guarded, but what the text decides is only whether it has come before

    def expand(self, automaton: Automaton) -> TransitionRow:
        raise AssertionError("control never comes to a frame with results")

    def after(self, automaton: Automaton, result: int, text: bytes) -> ControlState | None:
        """None when the value may not be. `text` is empty unless the frame is guarded."""
        raise NotImplementedError

    def repeats(self, result: int, text: bytes, before: bytes) -> bool:
        """Return True if `before`, the text of the enclosing value, has this value already, so that it is refused.

        Only for guarded frames where states that remember such texts would be without end.
        """
        return False


@dataclass(frozen=True)
class Accepted:
    """The whole text has been read."""

    def expand(self, automaton: Automaton) -> TransitionRow:
        return TransitionRow({}, accepts=True)


@dataclass
class Automaton:
    """Filled tables, and the numbers of the states in them. One thread at a time."""

    tables: Tables = field(default_factory=Tables)
    memory: dict[Any, Any] = field(default_factory=dict)  # what front ends have worked out, by keys of theirs
    refused: list[GrammarError] = field(default_factory=list)  # what front ends left out as too complex
    has_once: bool = False  # whether there is a frame that is `once`
    _numbers: dict[Any, int] = field(default_factory=dict)
    _values: dict[int, Any] = field(default_factory=dict)
    _pushes: dict[tuple[int, int], int] = field(default_factory=dict)
    _guards: dict[tuple[int, int, bytes], int] = field(default_factory=dict)

    def number(self, state: ControlState | int) -> int:
        """A state's, which is new if need be. Numbers are their own."""
        if type(state) is int:
            return state
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = self.tables.new_states(1)
            self._values[number] = state
        return number

    def frame(self, state: ControlState | Frame | int) -> int:
        """The number of a state as a frame."""
        number = self.number(state)
        if isinstance(state, Frame) and self.tables.states.item(number, RETURNS) < 0:
            self.tables.states[number, RETURNS] = self.tables.new_returns(state.num_results)
            if state.guarded:
                self.tables.states[number, FLAGS] |= GUARDED
            self.has_once = self.has_once or state.once
        return number

    def goto(self, state: ControlState | int) -> int:
        return action(GOTO, self.number(state))

    def push(self, state: ControlState | int, then: ControlState | Frame | int) -> int:
        """The byte is read; `then` waits on the stack for the value that begins at `state`."""
        return action(PUSH, self._push(state, then))

    def push_before(self, state: ControlState | int, then: ControlState | Frame | int) -> int:
        """The same, but the byte is the value's first."""
        return action(PUSH_BEFORE, self._push(state, then))

    def stay_on(self, data: bytes) -> int:
        """The number of a state to `rest` on, in which these bytes lead to the resting state itself."""
        key = ("stay", data)
        number = self._numbers.get(key)
        if number is None:
            tables = self.tables
            class_of = np.zeros(256, np.uint8)
            class_of[list(data)] = 1
            number = self._numbers[key] = tables.new_states(1)
            tables.states[number, ROW] = tables.new_targets(np.array([DEAD, action(STAY, 0)], np.int32))
            tables.states[number, CLASSES] = tables.new_classes(class_of)
            tables.states[number, FILLED] = 1
        return number

    def pop(self, result: int = 0) -> int:
        """The byte ends the value."""
        return action(POP, result)

    def pop_before(self, result: int = 0) -> int:
        """The value has ended before the byte."""
        return action(POP_BEFORE, result)

    def _push(self, state: ControlState | int, then: ControlState | Frame | int) -> int:
        key = self.number(state), self.frame(then)
        number = self._pushes.get(key)
        if number is None:
            number = self._pushes[key] = self.tables.new_push(*key)
        return number

    def fill(self, number: int) -> None:
        """The row of a state. Raises what `expand` raises."""
        row = self._values[number].expand(self)
        tables = self.tables
        tables.set_edges(number, row.edges)
        states = tables.states
        if row.rest:
            tables.copy_row(number, row.rest)
        if row.plain:
            states[number, FLAGS] |= PLAIN
        if row.accepts:
            states[number, ENDS] = -1
        elif row.ends is not None:
            states[number, ENDS] = 1 + row.ends
        states[number, FILLED] = 1

    def follow(self, frame: int, result: int, text: bytes = b"", before: bytes = b"") -> int:
        """The state after a value with this result. Remembered; for a while only, if the frame is guarded: a walk asks
        for the same text again wherever another byte ends it."""
        is_guarded = self.tables.states.item(frame, FLAGS) & GUARDED
        key = frame, result, text
        if is_guarded and self._values[frame].repeats(result, text, before):
            return 0
        if is_guarded and (known := self._guards.get(key)) is not None:
            return known
        state = self._values[frame].after(self, result, text)
        number = 0 if state is None else self.number(state)
        if not is_guarded:
            self.tables.returns[self.tables.states.item(frame, RETURNS) + result] = number
        else:
            if len(self._guards) == MAX_GUARDS:
                self._guards.clear()
            self._guards[key] = number
        return number

    def edges_of(self, number: int) -> dict[int, int]:
        """byte -> action of a state, filled if it is not."""
        if not self.tables.states[number, FILLED]:
            self.fill(number)
        tables = self.tables
        state = tables.states[number]
        found: dict[int, int] = {}
        if state[ROW]:
            codes = tables.targets[state[ROW] + tables.classes[state[CLASSES]].astype(np.int64)]
            live = np.flatnonzero(codes)
            found = dict(zip(live.tolist(), codes[live].tolist(), strict=True))
        edge = int(state[1])
        while edge >= 0:
            byte, code, edge = tables.edges[edge].tolist()
            found[byte] = code
        return {byte: code for byte, code in found.items() if code}

    def is_once(self, frame: int) -> bool:
        value = self._values.get(frame)
        return isinstance(value, Frame) and value.once

    def block(self, key: Hashable, make: Callable[[], Block]) -> int:
        """The number of a block's local state 1 less 1, so that local state s is this plus s. Made once per key."""
        base = self._numbers.get(("block", key))
        if base is None:
            base = self._numbers["block", key] = self._add_block(make())
        return base

    def _add_block(self, block: Block) -> int:
        tables, laid = self.tables, block.laid_out()
        number = len(laid.states)
        base = tables.new_states(number) - 1
        row = tables.new_targets(laid.actions + base * laid.moves)
        states = tables.states[base + 1 : base + 1 + number]
        states[:] = laid.states
        states[:, ROW] += row
        states[:, CLASSES] = tables.new_classes(laid.class_of)
        return base


@dataclass(frozen=True, eq=False)
class DfaStart:
    """The start of a text that a Dfa accepts as a whole."""

    dfa: Dfa

    def base(self, automaton: Automaton) -> int:
        """As `Automaton.block`."""
        return automaton.block(("text", self.dfa), lambda: block_of(self.dfa, accepts=True, free=free_kinds(self.dfa)))

    def expand(self, automaton: Automaton) -> TransitionRow:
        return TransitionRow({}, rest=self.base(automaton) + DFA_START, accepts=bool(self.dfa.accepting[DFA_START]))


def class_row(automaton: Automaton, actions: list[int], class_of: NDArray[np.uint8]) -> int:
    """The number of a filled state in which a byte of class c does actions[c]; for `Row.rest`."""
    tables = automaton.tables
    key = ("classes", class_of.tobytes())
    if key not in automaton.memory:
        automaton.memory[key] = tables.new_classes(class_of)
    number = tables.new_states(1)
    targets = tables.new_targets(np.array(actions, np.int32))
    tables.states[number, ROW] = targets
    tables.states[number, CLASSES] = automaton.memory[key]
    tables.states[number, FILLED] = 1
    return number
