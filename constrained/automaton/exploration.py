"""Expansion of some of the states that texts reach, so that what is refused there is refused before the first token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from .actions import (
    ARGUMENT,
    FLAGS,
    GUARDED,
    POP,
    POP_BEFORE,
    POP_COUNTED,
    PUSH,
    PUSH_BEFORE,
    RETURNS,
    SHIFT,
    STAY,
    UNBOUNDED,
)
from .automaton import Automaton, ControlState

MAX_BRANCHES = 4  # of a state inside a text


def expand_some(automaton: Automaton, start: ControlState, most: int) -> None:
    """Expand at most so many configurations, the nearest first. Raises GrammarError if a state does.

    Of the texts between control states only some are followed, and no text goes on after a guarded frame.
    """
    first: tuple[int, tuple[int, ...]] = automaton.number(start), ()
    todo, known = deque([first]), {first}
    while todo and len(known) < most:
        state, stack = todo.popleft()
        if automaton.is_control_state(state):
            codes = list(dict.fromkeys(automaton.edges_of(state).values()))
        else:
            codes = automaton.codes_inside(state)[:MAX_BRANCHES]
        for code in codes:
            for after in _after(automaton, code, stack):
                if after not in known:
                    known.add(after)
                    todo.append(after)


def _after(automaton: Automaton, code: int, stack: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the states and stacks after an action, unless they are unknown or the same."""
    operation, argument = code >> SHIFT, code & ARGUMENT
    if operation in (PUSH, PUSH_BEFORE):
        target, frame = automaton.tables.pushes[argument, :2].tolist()
        yield target, (*stack, frame)
    elif operation not in (POP, POP_BEFORE, POP_COUNTED):
        if operation != STAY:
            yield argument, stack
    elif stack:
        *below, frame = stack
        states = automaton.tables.states
        if states[frame, RETURNS] < 0:
            yield frame, tuple(below)
        elif not states[frame, FLAGS] & GUARDED:
            for result in _results(automaton, argument) if operation == POP_COUNTED else (argument,):
                if found := automaton.follow(frame, result):
                    yield found, tuple(below)


def _results(automaton: Automaton, row: int) -> list[int]:
    """Return the results that a value has by its count, those of the rows of `pushes` from this one on."""
    rows = automaton.tables.pushes[row:]
    last = int(np.argmax(rows[:, 0] == UNBOUNDED))
    return [result for result in dict.fromkeys(rows[: last + 1, 1].tolist()) if result >= 0]
