"""Search for a way to end an object or array that has begun. A state is kept only if such a way was found.

The search is depth first and remembers every state on a path that it found. A search that reaches its limit has no
answer. Its error refuses the constraint while it is compiled, and afterwards ends the output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from ..errors import GrammarError
from .formula import Formula, Truths
from .interface import SchemaCompiler
from .structure_parts import ArrayPart, ObjectPart

_MAX_STEPS = 2000  # members or items that a search tries
NO_END = -1


class Endable(Protocol):
    """State of an object or array."""

    def closing_result(self) -> int | None:
        """Return the result code if the value may end here, else None."""


S = TypeVar("S", bound=Endable)


@dataclass(frozen=True)
class ValueGoal:
    """Goal of a member's or item's value, such that the object or array can still end.

    `goals` are those whose truths decide how it goes on. `truths` are given if only one combination is left, so that
    none need be tracked. If the goals are too many to combine, it may still turn out that there is no way to end.
    """

    need: Formula
    goals: tuple[Formula, ...]
    truths: Truths | None


class EndSearch(ABC, Generic[S]):
    """Searches from the states of one object or array, with their results."""

    def __init__(self, compiler: SchemaCompiler, parts: Sequence[ObjectPart] | Sequence[ArrayPart]) -> None:
        self._compiler = compiler
        self._parts = parts
        # What the path to the end uses up from each state (`_used`), or NO_END if there is no path.
        self._paths: dict[Hashable, int] = {}
        self._in_progress: dict[Hashable, None] = {}
        compiler.caches.append(self._paths)

    @abstractmethod
    def _key(self, state: S) -> Hashable:
        """Return all of a state that the paths from it depend on."""

    @abstractmethod
    def _steps(self, state: S) -> Iterator[S]:
        """Yield the states after one more member or item, if they differ in what is still needed."""

    def _way(self, state: S) -> int | None:
        """Return what a way to the end that is known without a search uses up; None if none is."""
        return 0 if state.closing_result() is not None else None

    def _used(self, state: S, step: S) -> int:
        """Return what a step uses up, as bits."""
        return 0

    def can_end(self, state: S) -> bool:
        """Return True if a way to the end is known or found."""
        key = self._key(state)
        known = self._paths.get(key)
        if known is None and (known := self._way(state)) == 0:
            self._paths[key] = 0
        if known is None:
            known = self._search(state, key)
        return known != NO_END

    def _search(self, state: S, key: Hashable) -> int:
        compiler = self._compiler
        if key in self._in_progress:
            compiler.num_assumptions += 1  # as in `GoalCompiler.satisfiable`
            return NO_END
        num_before = compiler.num_assumptions
        self._in_progress[key] = None
        exhausted: dict[Hashable, None] = {}
        try:
            found = self._walk(state, exhausted)
        finally:
            del self._in_progress[key]
        if found:
            return self._paths[key]
        if num_before == compiler.num_assumptions or compiler.is_idle:
            self._paths |= dict.fromkeys(exhausted, NO_END)
            self._paths[key] = NO_END
        return NO_END

    def _walk(self, start: S, exhausted: dict[Hashable, None]) -> bool:
        """Search depth first. `exhausted` gets the states all of whose steps have been tried."""
        path = [(start, self._steps(start))]
        tried = {self._key(start)}
        for _ in range(_MAX_STEPS):
            state, steps = path[-1]
            step = next(steps, None)
            if step is None:
                exhausted[self._key(state)] = None
                path.pop()
                if not path:
                    return False
                continue
            key = self._key(step)
            used = self._paths.get(key)
            if used is None and key not in tried and (used := self._way(step)) is not None:
                self._paths[key] = used
            if used is not None and used != NO_END:
                for before, _ in reversed(path):
                    used |= self._used(before, step)
                    self._paths[self._key(before)] = used
                    step = before
                return True
            if used is None and key not in tried:
                tried.add(key)
                path.append((step, self._steps(step)))
        self._refuse("the constraints on an object or array are too complex together")
        return False

    def _refuse(self, reason: str) -> None:
        """Collect or raise a GrammarError (`Refusals`) with the pointer that all constraints have in common."""
        pointers = [each.pointer.split("/") for part in self._parts for each in part.keywords]
        common = takewhile(lambda names: len(set(names)) == 1, zip(*pointers, strict=False))
        self._compiler.refused.add(GrammarError(reason, pointer="/".join(names[0] for names in common)))
