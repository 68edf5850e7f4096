"""Rows of the byte automaton by classes of bytes, for states that tell many bytes apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .automaton.actions import CLASSES, FILLED, ROW
from .automaton.automaton import Automaton


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
