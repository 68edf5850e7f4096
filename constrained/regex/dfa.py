"""Deterministic automata over bytes, as dense tables; and the kinds of bytes that keep them alive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, CompileBudget

DEAD, START = 0, 1
# Kinds of bytes that patterns seldom distinguish, so that whole branches of a token trie are accepted at once.
_KINDS = [b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEF", b"GHIJKLMNOPQRSTUVWXYZ", b"_", b"-", b".", b" "]
_KINDS += [b"/", b":", b"@", b"!#$%&'()*+,;<=>?[]^`{|}~"]
NUM_KINDS = len(_KINDS)
# Kind of each byte. Quotes, backslashes, control characters and bytes outside ASCII have none: `NUM_KINDS`.
KIND = np.full(256, NUM_KINDS, np.uint8)
for _number, _bytes in enumerate(_KINDS):
    KIND[list(_bytes)] = _number


@dataclass(frozen=True, eq=False)
class Dfa:
    """Automaton of S states over C equivalence classes of bytes.

    State 0 is dead, state 1 the start. From every other state an accepting one can be reached. The start of an
    automaton that accepts nothing reaches none.
    """

    table: NDArray[np.int32]  # [S, C]
    class_of: NDArray[np.uint8]  # [256]
    accepting: NDArray[np.bool_]  # [S]

    @property
    def num_states(self) -> int:
        """Number of states, with the dead one."""
        return len(self.table)

    @property
    def is_empty(self) -> bool:
        """True if no text is accepted."""
        return not self.accepting.any()

    def walk(self, state: int, data: Iterable[int]) -> int:
        """Return the state after the bytes, DEAD if there is none."""
        for byte in data:
            state = int(self.table[state, self.class_of[byte]])
        return state

    def accepts(self, data: bytes) -> bool:
        """Return True if the whole text is accepted."""
        return bool(self.accepting[self.walk(START, data)])


def trimmed_dfa(table: NDArray[np.int32], class_of: NDArray[np.uint8], accepting: NDArray[np.bool_]) -> Dfa:
    """Build an automaton without unreachable states and states that reach no accepting one; merge equal classes."""
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


def without_empty(dfa: Dfa) -> Dfa:
    """Accept the same texts but the empty one."""
    table = np.where(dfa.table == START, dfa.num_states, dfa.table)
    accepting = np.append(dfa.accepting, dfa.accepting[START])
    accepting[START] = False
    return trimmed_dfa(np.vstack([table, table[START]]).astype(np.int32), dfa.class_of, accepting)


def intersect(a: Dfa, b: Dfa, budget: CompileBudget) -> Dfa:
    """Accept what both accept: the pairs of states are found breadth first. Raises GrammarError beyond the budget."""
    pairs, class_of = np.unique(np.stack([a.class_of, b.class_of]), axis=1, return_inverse=True)
    table_a, table_b = a.table[:, pairs[0]], b.table[:, pairs[1]]
    codes = np.array([START * b.num_states + START], np.int64)  # sorted codes of the pairs on the frontier
    number = {int(codes[0]): START}
    rows: list[NDArray[np.int32]] = [np.zeros((1, pairs.shape[1]), np.int32)]
    accepting: list[NDArray[np.bool_]] = [np.zeros(1, np.bool_)]
    frontier = codes
    while len(frontier):
        budget.check(len(number), len(frontier) * pairs.shape[1] * INTERPRETED)
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
    """Return which states are reachable from `start` over the edges: bool[num_states]."""
    order = np.argsort(sources, kind="stable")
    targets = targets[order]
    first = np.searchsorted(sources[order], np.arange(num_states + 1))
    reached = np.zeros(num_states, np.bool_)
    reached[start] = True
    frontier = start
    while len(frontier):
        found = targets[_ranges(first[frontier], first[frontier + 1])]
        frontier = np.unique(found[~reached[found]])
        reached[frontier] = True
    return reached


def _ranges(starts: NDArray[np.integer], ends: NDArray[np.integer]) -> NDArray[np.int64]:
    """Concatenate the integers of half-open intervals."""
    counts = ends - starts
    skipped = np.cumsum(counts) - counts
    return np.repeat(starts - skipped, counts) + np.arange(counts.sum())


def free_kinds(dfa: Dfa, within: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Find byte kinds that keep the automaton alive (inside the states `within`, if given).

    Returns for each state a bit set of kinds, and a length: every text of these kinds that is not longer leads to a
    live state. int32[S] each. Kinds are added greedily, one after another, so the set need not be the largest one.
    """
    from . import dfa_kernel  # not at the top: it imports numba

    kept = np.ones(dfa.num_states, np.bool_) if within is None else within.copy()
    kept[DEAD] = False
    return dfa_kernel.free_kinds(np.ascontiguousarray(dfa.table), dfa.class_of, KIND, NUM_KINDS, kept)
