"""Nondeterministic automata to deterministic ones (the subset construction)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from .budget import Budget
from .dfa import Dfa, trimmed
from .nfa import Nfa

Key = tuple[frozenset[int], bool]  # the states with edges, and whether the text may end


def determinise(nfa: Nfa, budget: Budget) -> Dfa:
    """Raises GrammarError when it grows beyond the budget."""
    return _Determiniser(nfa, budget).run()


class _Determiniser:
    def __init__(self, nfa: Nfa, budget: Budget) -> None:
        self._nfa = nfa
        self._budget = budget
        self._class_of, self._classes = _byte_classes(nfa)
        self._closures: dict[int, Key] = {}
        self._moves: dict[int, dict[int, frozenset[int]]] = {}
        self._number: dict[Key, int] = {}
        self._number_of_targets: dict[frozenset[int], int] = {}
        self._keys: list[Key] = [(frozenset(), False)]  # the dead state; the start is the next

    def run(self) -> Dfa:
        self._enter(self._closure([0], at_start=True))
        rows: list[dict[int, int]] = [{}]
        while len(rows) < len(self._keys):
            if len(rows) % 16 == 0:
                self._budget.check(len(self._keys))
            rows.append(self._row(self._keys[len(rows)][0]))
        table = np.zeros((len(rows), int(self._class_of.max()) + 1), np.int32)
        for state, row in enumerate(rows):
            table[state, list(row)] = list(row.values())
        return trimmed(table, self._class_of, np.array([accepting for _, accepting in self._keys]))

    def _row(self, states: frozenset[int]) -> dict[int, int]:
        merged: dict[int, frozenset[int]] = {}
        for state in states:
            for byte_class, targets in self._moves_of(state).items():
                known = merged.get(byte_class)
                merged[byte_class] = targets if known is None else known | targets
        return {byte_class: self._after(targets) for byte_class, targets in merged.items()}

    def _after(self, targets: frozenset[int]) -> int:
        number = self._number_of_targets.get(targets)
        if number is None:
            number = self._number_of_targets[targets] = self._enter(self._closure(targets, at_start=False))
        return number

    def _enter(self, key: Key) -> int:
        if key not in self._number:
            self._number[key] = len(self._keys)
            self._keys.append(key)
        return self._number[key]

    def _moves_of(self, state: int) -> dict[int, frozenset[int]]:
        moves = self._moves.get(state)
        if moves is None:
            targets: dict[int, set[int]] = {}
            for first, last, target in self._nfa.edges[state]:
                for byte_class in self._classes[first, last]:
                    targets.setdefault(byte_class, set()).add(target)
            moves = self._moves[state] = {byte_class: frozenset(group) for byte_class, group in targets.items()}
        return moves

    def _closure(self, states: Iterable[int], at_start: bool) -> Key:
        """What can be reached without a byte."""
        if at_start:
            return self._search(states, at_start=True)
        parts = [self._closure_of(state) for state in states]
        if len(parts) == 1:
            return parts[0]
        inner = frozenset[int]().union(*(part for part, _ in parts))
        return self._absorbed(inner), any(ends for _, ends in parts)

    def _closure_of(self, state: int) -> Key:
        key = self._closures.get(state)
        if key is None:
            key = self._closures[state] = self._search([state], at_start=False)
        return key

    def _search(self, states: Iterable[int], at_start: bool) -> Key:
        nfa = self._nfa
        seen = set(states)
        todo = list(seen)
        while todo:
            state = todo.pop()
            targets = nfa.free[state] + (nfa.at_start.get(state, []) if at_start else [])
            new = [target for target in targets if target not in seen]
            seen.update(new)
            todo += new
        return self._absorbed(frozenset(s for s in seen if nfa.edges[s])), self._may_end(seen, at_start)

    def _may_end(self, states: set[int], at_start: bool) -> bool:
        """Whether the text may end where the automaton is in `states`."""
        nfa = self._nfa
        seen = set(states)
        todo = list(seen)
        while todo:
            state = todo.pop()
            targets = nfa.free[state] + nfa.at_end.get(state, []) + (nfa.at_start.get(state, []) if at_start else [])
            new = [target for target in targets if target not in seen]
            seen.update(new)
            todo += new
        return nfa.accept in seen

    def _absorbed(self, states: frozenset[int]) -> frozenset[int]:
        for state in self._nfa.absorbing & states if self._nfa.absorbing else ():
            return frozenset([state])
        return states


def _byte_classes(nfa: Nfa) -> tuple[NDArray[np.uint8], dict[tuple[int, int], list[int]]]:
    """The class of each byte, and the classes in each range of bytes that labels an edge."""
    labels = sorted({(first, last) for edges in nfa.edges for first, last, _ in edges})
    inside = np.zeros((len(labels) + 1, 256), np.bool_)
    for number, (first, last) in enumerate(labels):
        inside[number, first : last + 1] = True
    _, inverse = np.unique(inside, axis=1, return_inverse=True)
    class_of = inverse.reshape(-1).astype(np.uint8)
    return class_of, {(first, last): sorted(set(class_of[first : last + 1].tolist())) for first, last in labels}
