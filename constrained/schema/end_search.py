"""Whether an object or array that has been begun can be ended: a state is kept only when a way to its end was found.

Ways are looked for depth first, and every state on a way that was found is remembered as one that can be ended. So a
search that is given up refuses a step, and never one without which there is no other. Knows no keywords.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..errors import GrammarError
from .formula import Formula
from .goals import SchemaCompiler
from .joint_truths import Truths

MAX_STEPS = 2000  # members or items that a search tries
NEVER = -1


class Endable(Protocol):
    def closing_result(self) -> int | None:
        """None when the value may not end here."""


S = TypeVar("S", bound=Endable)


@dataclass(frozen=True)
class ValueGoal:
    """What a member's or an item's value must satisfy so that the whole can be ended; the goals whose truths say how it
    goes on; and these, where only one combination remains, so that nothing need be tracked.

    Where goals of objects or arrays are too many to be combined, it may still be that the whole cannot be ended.
    """

    need: Formula
    goals: tuple[Formula, ...]
    truths: Truths | None


class EndSearch(Generic[S]):
    """Of the states of one context."""

    def __init__(self, world: SchemaCompiler) -> None:
        self._world = world
        # Of a state, what a way to the end uses, as `_used` says it; `NEVER` when there is none.
        self._ways: dict[Hashable, int] = {}
        self._asked: dict[Hashable, None] = {}

    def _key(self, state: S) -> Hashable:
        """What the ways from a state depend on."""
        raise NotImplementedError

    def _steps(self, state: S) -> Iterator[S]:
        """What it may become by one more member or item that brings it on. Never what it has been."""
        raise NotImplementedError

    def _used(self, state: S, step: S) -> int:
        """What a step uses up, as bits."""
        return 0

    def can_end(self, state: S) -> bool:
        key = self._key(state)
        known = self._ways.get(key)
        if known is None:
            known = self._search(state, key)
        return known != NEVER

    def _search(self, state: S, key: Hashable) -> int:
        world = self._world
        if key in self._asked:
            world.num_assumed += 1  # as in `SchemaCompiler.satisfiable`
            return NEVER
        if state.closing_result() is not None:
            self._ways[key] = 0
            return 0
        assumed = world.num_assumed
        self._asked[key] = None
        failed: dict[Hashable, None] = {}
        found = self._walk(state, failed)
        del self._asked[key]
        if found:
            return self._ways[key]
        if assumed == world.num_assumed or world.is_settled:
            self._ways |= dict.fromkeys(failed, NEVER)
            self._ways[key] = NEVER
        return NEVER

    def _walk(self, start: S, failed: dict[Hashable, None]) -> bool:
        """Depth first; `failed` gets the states of which all ways have been tried."""
        path = [(start, self._steps(start))]
        tried = {self._key(start)}
        for _ in range(MAX_STEPS):
            state, steps = path[-1]
            step = next(steps, None)
            if step is None:
                failed[self._key(state)] = None
                path.pop()
                if not path:
                    return False
                continue
            key = self._key(step)
            way = self._ways.get(key)
            if way is None and key not in tried and step.closing_result() is not None:
                way = self._ways[key] = 0
            if way is not None and way != NEVER:
                for before, _ in reversed(path):
                    way |= self._used(before, step)
                    self._ways[self._key(before)] = way
                    step = before
                return True
            if way is None and key not in tried:
                tried.add(key)
                path.append((step, self._steps(step)))
        self._world.refused.append(GrammarError("what is asked of an object or array together is too complex"))
        return False
