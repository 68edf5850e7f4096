"""Deterministic byte automata as dense tables: trimmed, intersected, walked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget

_ALIKE = [b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEF", b"GHIJKLMNOPQRSTUVWXYZ", b"_", b"-", b".", b" "]
_ALIKE += [b"/", b":", b"@", b"!#$%&'()*+,;<=>?[]^`{|}~"]
NUM_KINDS = len(_ALIKE)
# Of each byte; `NUM_KINDS` where it is of none: what ends a string or begins an escape, controls, what is not ASCII.
KIND = np.full(256, NUM_KINDS, np.uint8)
for _number, _bytes in enumerate(_ALIKE):
    KIND[list(_bytes)] = _number


DEAD, START = 0, 1


@dataclass(frozen=True, eq=False)
class Dfa:
    """S states, C classes of bytes that are alike everywhere.

    State 0 is dead, state 1 the start; from every other state an accepting one can be reached. An automaton that
    accepts nothing has a start from which none can.
    """

    table: NDArray[np.int32]  # [S, C]
    class_of: NDArray[np.uint8]  # [256]
    accepting: NDArray[np.bool_]  # [S]

    @property
    def num_states(self) -> int:
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is accepted."""
        return not self.accepting.any()

    def walk(self, state: int, data: Iterable[int]) -> int:
        """The state after the bytes; DEAD when they do not lead on."""
        for byte in data:
            state = int(self.table[state, self.class_of[byte]])
        return state

    def accepts(self, data: bytes) -> bool:
        return bool(self.accepting[self.walk(START, data)])


def trimmed_dfa(table: NDArray[np.int32], class_of: NDArray[np.uint8], accepting: NDArray[np.bool_]) -> Dfa:
    """The automaton without the states from which, or to which, no way leads, and with equal classes merged."""
    sources, classes = np.nonzero(table)
    targets = table[sources, classes].astype(np.int64)
    alive = _reachable(np.flatnonzero(accepting), targets, sources, len(table))
    useful = alive[sources] & alive[targets]
    kept = alive & _reachable(np.array([START]), sources[useful], targets[useful], len(table))
    kept[DEAD] = False
    kept[START] = True
    new_number = np.where(kept, np.cumsum(kept), DEAD).astype(np.int32)
    old_number = np.concatenate([[DEAD], np.flatnonzero(kept)])
    columns, merged = np.unique(new_number[table[old_number]], axis=1, return_inverse=True)
    return Dfa(np.ascontiguousarray(columns), merged.reshape(-1)[class_of].astype(np.uint8), accepting[old_number])


def intersect(a: Dfa, b: Dfa, budget: CompileBudget) -> Dfa:
    """What both accept: pairs of states, found breadth first."""
    pairs, class_of = np.unique(np.stack([a.class_of, b.class_of]), axis=1, return_inverse=True)
    table_a, table_b = a.table[:, pairs[0]], b.table[:, pairs[1]]
    codes = np.array([START * b.num_states + START], np.int64)  # of the pairs found: sorted numbers of them
    number = {int(codes[0]): START}
    rows: list[NDArray[np.int32]] = [np.zeros((1, pairs.shape[1]), np.int32)]
    accepting: list[NDArray[np.bool_]] = [np.zeros(1, np.bool_)]
    frontier = codes
    while len(frontier):
        budget.check(len(number))
        states_a, states_b = frontier // b.num_states, frontier % b.num_states
        accepting.append(a.accepting[states_a] & b.accepting[states_b])
        next_a, next_b = table_a[states_a].astype(np.int64), table_b[states_b]
        codes = np.where((next_a == DEAD) | (next_b == DEAD), 0, next_a * b.num_states + next_b)
        unique, inverse = np.unique(codes, return_inverse=True)
        new = [code for code in unique.tolist() if code and code not in number]
        number.update(zip(new, range(len(number) + 1, len(number) + 1 + len(new)), strict=True))
        numbers = np.array([number[code] if code else DEAD for code in unique.tolist()], np.int32)
        rows.append(numbers[inverse].reshape(codes.shape))
        frontier = np.array(new, np.int64)
    return trimmed_dfa(np.concatenate(rows), class_of.reshape(-1).astype(np.uint8), np.concatenate(accepting))


def _reachable(
    start: NDArray[np.int64], sources: NDArray[np.int64], targets: NDArray[np.int64], num_states: int
) -> NDArray[np.bool_]:
    """Which states can be reached from `start` over the edges."""
    order = np.argsort(sources, kind="stable")
    targets = targets[order]
    first = np.searchsorted(sources[order], np.arange(num_states + 1))
    reached = np.zeros(num_states, np.bool_)
    reached[start] = True
    frontier = start
    while len(frontier):
        found = targets[ranges(first[frontier], first[frontier + 1])]
        frontier = np.unique(found[~reached[found]])
        reached[frontier] = True
    return reached


def ranges(starts: NDArray[np.integer], ends: NDArray[np.integer]) -> NDArray[np.int64]:
    """The numbers of all the half-open intervals, one after the other."""
    counts = ends - starts
    skipped = np.cumsum(counts) - counts
    return np.repeat(starts - skipped, counts) + np.arange(counts.sum())


def free_kinds(dfa: Dfa, within: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of each state (of some), kinds of bytes as the bits of a set, and a length: every text of these bytes that is no
    longer leads on (within them). int32[S] each.

    As many kinds as are found one after another: there may be other sets that cannot be joined.
    """
    from . import dfa_kernel as product_kernel  # here, for it imports numba

    kept = np.ones(dfa.num_states, np.bool_) if within is None else within.copy()
    kept[DEAD] = False
    return product_kernel.free_kinds(np.ascontiguousarray(dfa.table), dfa.class_of, KIND, NUM_KINDS, kept)
