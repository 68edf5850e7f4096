"""Steps of a JSON value through the transition tables, beside other readings of the same text.

The meaning is that of the compiled walk (`automaton/walk_kernel.py`). A thread holds its stack as a value, so that
equal threads are one. It does not hold its text. So a name that no property lists may come twice in an object, and a
value that must differ from earlier ones is refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..automaton.actions import (
    ARGUMENT,
    CHECK,
    COUNT,
    COUNT_LIMIT,
    COUNTS,
    DEAD,
    ENDING,
    FEWEST,
    FILLED,
    FLAGS,
    GOTO,
    GUARDED,
    MOST,
    NEXT_STATE,
    ONCE,
    POP_BEFORE,
    POP_COUNTED,
    PUSH,
    PUSH_BEFORE,
    RETURNS,
    SHIFT,
    STAY,
    UNKNOWN,
)
from ..automaton.automaton import Automaton
from ..automaton.layout import MAX_DEPTH
from ..errors import GrammarError


class Cell(NamedTuple):
    """A frame on a thread's stack, with the counter of the value below it."""

    frame: int
    saved: int
    level: int
    below: Cell | None


class ValueThread(NamedTuple):
    """Configuration of a value: control state, counter, and the stack above the value."""

    state: int
    counted: int
    stack: Cell | None


ENDED: Final = ValueThread(0, 0, None)  # after the last byte of a value
_FIRST_LEVEL = 2  # of a frame above the value, which lies above the frame of what follows it


def byte_codes(automaton: Automaton, state: int) -> NDArray[np.int32]:
    """Return the action of each byte in a state: int32[256]."""
    key = ("codes", state)
    found: NDArray[np.int32] | None = automaton.memory.get(key)
    if found is None:
        found = automaton.memory[key] = np.zeros(256, np.int32)
        for byte, code in automaton.edges_of(state).items():
            found[byte] = code
    return found


def byte_kinds(automaton: Automaton, state: int) -> NDArray[np.int32]:
    """Return numbers that are equal for bytes that act alike in a state: int32[256].

    A byte that is read again, after a push or pop, is alone.
    """
    key = ("kinds", state)
    found: NDArray[np.int32] | None = automaton.memory.get(key)
    if found is None:
        codes = byte_codes(automaton, state)
        again = np.isin(codes >> SHIFT, (PUSH_BEFORE, POP_BEFORE))
        found = automaton.memory[key] = np.where(again, _EACH_BYTE, codes)
    return found


_EACH_BYTE = -1 - np.arange(256, dtype=np.int32)


def may_end(automaton: Automaton, thread: ValueThread) -> bool:
    """Return True if the value may end here, as a number may."""
    if thread.stack is not None:
        return False
    if not automaton.tables.states[thread.state, FILLED]:
        automaton.fill(thread.state)
    return automaton.tables.states.item(thread.state, ENDING) > 0


def stepped(automaton: Automaton, thread: ValueThread, byte: int) -> ValueThread | None:
    """Return the thread after a byte; `ENDED` if it was the value's last one, None if it is refused."""
    state, counted, stack = thread
    while True:
        code = int(byte_codes(automaton, state)[byte])
        if code == DEAD:
            return None
        operation, argument = code >> SHIFT, code & ARGUMENT
        states = automaton.tables.states
        if operation == STAY:
            return ValueThread(state, counted, stack)
        if operation == GOTO:
            return ValueThread(argument, counted, stack)
        if operation in (COUNT, CHECK):
            counted += operation == COUNT
            if counted > states.item(argument, MOST) or counted < states.item(argument, FEWEST):
                return None
            return ValueThread(argument, counted, stack)
        if operation in (PUSH, PUSH_BEFORE):
            level = _FIRST_LEVEL + 1 if stack is None else stack.level + 1
            if level > MAX_DEPTH:
                return None
            target, frame, limited_level, _ = automaton.tables.pushes[argument].tolist()
            if level == limited_level:
                if automaton.tables.pushes.item(argument, 3) == UNKNOWN:
                    automaton.limit(argument)
                target = automaton.tables.pushes.item(argument, 3)
            state, stack, counted = target, Cell(frame, counted, level, stack), 0
            if operation == PUSH:
                return ValueThread(state, counted, stack)
            continue
        if operation == POP_COUNTED:
            while counted > automaton.tables.pushes.item(argument, 0):
                argument += 1
            argument = automaton.tables.pushes.item(argument, 1)
            if argument < 0:
                return None
        if stack is None:
            return None if operation == POP_BEFORE else ENDED
        found = _returned(automaton, stack.frame, argument)
        if found == 0:
            return None
        state, counted, stack = found, stack.saved, stack.below
        states = automaton.tables.states
        if states.item(state, FLAGS) & COUNTS:
            counted += 1
            if counted == states.item(state, COUNT_LIMIT):
                state = states.item(state, NEXT_STATE)
                if state == 0:
                    return None
        if operation != POP_BEFORE:
            return ValueThread(state, counted, stack)


def _returned(automaton: Automaton, frame: int, result: int) -> int:
    """Return the state after a value with this result above a frame, 0 if it is refused."""
    states = automaton.tables.states
    if states.item(frame, RETURNS) < 0:
        return frame
    flags = states.item(frame, FLAGS)
    if flags & GUARDED and not flags & ONCE:
        raise GrammarError("values that must differ are too complex where a value and another text may begin alike")
    return automaton.follow(frame, result)
