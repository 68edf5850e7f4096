"""Expansion of some of the states that texts reach, so that what is refused there is refused before the first token."""

from __future__ import annotations

from collections import deque

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
        codes = list(dict.fromkeys(automaton.edges_of(state).values()))
        if not automaton.is_control_state(state):
            codes = codes[:MAX_BRANCHES]
        for code in codes:
            after = _after(automaton, code, stack)
            if after is not None and after not in known:
                known.add(after)
                todo.append(after)


def _after(automaton: Automaton, code: int, stack: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """Return the state and stack after an action, or None if they are unknown or the same."""
    operation, argument = code >> SHIFT, code & ARGUMENT
    if operation in (PUSH, PUSH_BEFORE):
        target, frame = automaton.tables.pushes[argument, :2].tolist()
        return target, (*stack, frame)
    if operation not in (POP, POP_BEFORE, POP_COUNTED):
        return None if operation == STAY else (argument, stack)
    if not stack:
        return None
    *below, frame = stack
    states = automaton.tables.states
    if states[frame, RETURNS] < 0:
        return frame, tuple(below)
    if states[frame, FLAGS] & GUARDED:
        return None
    found = automaton.follow(frame, argument)
    return (found, tuple(below)) if found else None
