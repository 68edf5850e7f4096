"""Growing arrays of the pushdown automaton's transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import StatesExhaustedError
from .actions import (
    CLASSES,
    FILLED,
    HEAD,
    MAX_ARGUMENT,
    MOST,
    NUM_COLUMNS,
    NUM_PUSH_COLUMNS,
    NUM_RETURNS,
    RETURNS,
    ROW,
    UNBOUNDED,
    UNKNOWN,
)

Ints = NDArray[np.int32]
T = TypeVar("T", bound=np.generic)
_MAX_STATES = 1 << 21  # of one automaton
assert _MAX_STATES <= MAX_ARGUMENT
_NEW_STATE = np.zeros(NUM_COLUMNS, np.int32)
_NEW_STATE[[HEAD, RETURNS, MOST]] = -1, -1, UNBOUNDED


def new_rows(number: int) -> Ints:
    """Return rows of states that are not filled yet: int32[number, NUM_COLUMNS]."""
    return np.tile(_NEW_STATE, (number, 1))


_FIRST_STATES = new_rows(256)
_FIRST_STATES[0, FILLED] = 1


class Tables:
    """The tables of one automaton. State 0 is dead; its all-zero row serves every state that has only edges."""

    def __init__(self) -> None:
        self.states: Ints = _FIRST_STATES.copy()
        self.edges: Ints = np.zeros((512, 3), np.int32)  # byte, action, next edge
        self._edges = _flat(self.edges)
        self.classes: NDArray[np.uint8] = np.zeros((8, 256), np.uint8)  # row 0: all bytes alike
        self.targets: Ints = np.zeros(1024, np.int32)  # actions
        # Rows of two kinds. Of a push: state, frame, limited level, and the state that is entered at that level. Of
        # results by count: last count, result.
        self.pushes: Ints = np.zeros((256, NUM_PUSH_COLUMNS), np.int32)
        self.returns: Ints = np.zeros(256, np.int32)  # states
        self.version = 0  # counts the arrays' reallocations
        self.num_states, self.num_edges, self.num_classes = 1, 0, 1
        self._num_ready = len(self.states)  # rows that are set: the others' memory is not touched before it is needed
        self.num_targets, self.num_pushes, self.num_returns = 1, 0, 0

    def new_states(self, number: int) -> int:
        """Add states that are not filled yet; return the first. Raises StatesExhaustedError beyond _MAX_STATES."""
        first = self.num_states
        self.num_states += number
        if self.num_states > _MAX_STATES:
            raise StatesExhaustedError(f"the constraint is too complex: it needs more than {_MAX_STATES} states")
        if self.num_states > self._num_ready:
            self.states = self._grown(self.states, self.num_states)
            ready = min(self.num_states + len(_FIRST_STATES), len(self.states))
            self.states[self._num_ready : ready] = _NEW_STATE
            self._num_ready = ready
        return first

    def new_classes(self, class_of: NDArray[np.uint8]) -> int:
        """Add a classification of bytes, uint8[256]; return its row."""
        number = self.num_classes
        self.num_classes += 1
        self.classes = self._grown(self.classes, self.num_classes)
        self.classes[number] = class_of
        return number

    def new_targets(self, number: int) -> tuple[int, Ints]:
        """Add so many actions; return the offset of the first, and the actions, which the caller must set."""
        first = self.num_targets
        self.num_targets += number
        self.targets = self._grown(self.targets, self.num_targets)
        return first, self.targets[first : self.num_targets]

    def new_push(self, state: int, frame: int, level: int) -> int:
        """Add a push of a frame that enters a state, or another one at `level` (0: never); return its number."""
        number = self.num_pushes
        self.num_pushes += 1
        self.pushes = self._grown(self.pushes, self.num_pushes)
        self.pushes[number] = state, frame, level, UNKNOWN
        return number

    def new_results(self, results: Sequence[tuple[int, int]]) -> int:
        """Add rows of a last count and a result (-1: refused), in ascending order; return the first row's number."""
        first = self.num_pushes
        self.num_pushes += len(results)
        self.pushes = self._grown(self.pushes, self.num_pushes)
        self.pushes[first : self.num_pushes, :2] = results
        return first

    def new_returns(self, number: int) -> int:
        """Add unknown states for so many results; return the offset of the first."""
        first = self.num_returns
        self.num_returns += number
        self.returns = self._grown(self.returns, self.num_returns)
        self.returns[first : self.num_returns] = UNKNOWN
        return first

    def known_return(self, frame: int, result: int) -> int:
        """Return the state after a value with this result above a frame, `UNKNOWN` if it is not stored."""
        if result >= self.states.item(frame, NUM_RETURNS):
            return UNKNOWN
        return self.returns.item(self.states.item(frame, RETURNS) + result)

    def set_return(self, frame: int, result: int, state: int) -> None:
        """Store the state after a value with this result above a frame, whose results may be more than expected."""
        first, number = self.states.item(frame, RETURNS), self.states.item(frame, NUM_RETURNS)
        if result >= number:
            known = self.returns[first : first + number].copy()
            longer = max(result + 1, 2 * number)
            first = self.new_returns(longer)
            self.returns[first : first + number] = known
            self.states[frame, RETURNS], self.states[frame, NUM_RETURNS] = first, longer
        self.returns[first + result] = state

    @property
    def num_bytes(self) -> int:
        """Size of the arrays, including what is reserved."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> tuple[Any, ...]:
        """Return the arrays in the order in which the compiled loops take them."""
        return self.states, self.edges, self.classes, self.targets, self.pushes, self.returns

    def reserve_edges(self, number: int) -> None:
        """Make room for so many more edges."""
        if self.num_edges + number > len(self.edges):
            self.edges = self._grown(self.edges, self.num_edges + number)
            self._edges = _flat(self.edges)

    def set_edges(self, state: int, edges: Mapping[int, int]) -> None:
        """Set the actions of bytes in a state without edges."""
        if not edges:
            return
        self.reserve_edges(len(edges))
        number, view = self.num_edges, self._edges
        self.states[state, HEAD] = number
        at = 3 * number
        for byte, action in edges.items():
            number += 1
            view[at], view[at + 1], view[at + 2] = byte, action, number
            at += 3
        view[at - 1] = -1
        self.num_edges = number

    def copy_row(self, state: int, source: int) -> None:
        """Let bytes without an edge act as in `source`, which is filled and has no edges."""
        self.states[state, ROW] = self.states[source, ROW]
        self.states[state, CLASSES] = self.states[source, CLASSES]

    def _grown(self, array: NDArray[T], length: int) -> NDArray[T]:
        """Return the array with at least `length` rows, at least doubled if it must grow."""
        if length <= len(array):
            return array
        self.version += 1
        larger = np.empty((max(length, 2 * len(array)), *array.shape[1:]), array.dtype)
        larger[: len(array)] = array
        return larger


def _flat(array: Ints) -> memoryview[int]:
    """Return a view through which single numbers are written faster than through numpy."""
    return memoryview(array).cast("B").cast("i")  # type: ignore[arg-type]
