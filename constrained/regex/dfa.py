"""Deterministic automata over bytes, as dense tables; and the kinds of bytes that keep them alive."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
            if state == DEAD:
                break
        return state

    def accepts(self, data: bytes) -> bool:
        """Return True if the whole text is accepted."""
        return bool(self.accepting[self.walk(START, data)])


def trimmed_dfa(table: NDArray[np.int32], class_of: NDArray[np.uint8], accepting: NDArray[np.bool_]) -> Dfa:
    """Build an automaton without unreachable states and states that reach no accepting one; merge equal classes."""
    from . import dfa_kernel  # not at the top: it imports numba

    table = np.ascontiguousarray(table, np.int32)
    alive = dfa_kernel.alive(table, np.ascontiguousarray(accepting))
    alive[DEAD] = False
    kept = dfa_kernel.reached(table, alive)
    new_number = np.where(kept, np.cumsum(kept), DEAD).astype(np.int32)
    old_number = np.concatenate([[DEAD], np.flatnonzero(kept)])
    columns = np.ascontiguousarray(new_number[table[old_number]].T)
    numbers: dict[bytes, int] = {}
    merged = np.array([numbers.setdefault(column.tobytes(), len(numbers)) for column in columns])
    firsts = np.unique(merged, return_index=True)[1]
    return Dfa(np.ascontiguousarray(columns[firsts].T), merged[class_of].astype(np.uint8), accepting[old_number])


def without_empty(dfa: Dfa) -> Dfa:
    """Accept the same texts but the empty one."""
    table = np.where(dfa.table == START, dfa.num_states, dfa.table)
    accepting = np.append(dfa.accepting, dfa.accepting[START])
    accepting[START] = False
    return trimmed_dfa(np.vstack([table, table[START]]).astype(np.int32), dfa.class_of, accepting)


def free_kinds(dfa: Dfa, within: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Find byte kinds that keep the automaton alive (inside the states `within`, if given).

    Returns for each state a bit set of kinds, and a length: every text of these kinds that is not longer leads to a
    live state. int32[S] each. Kinds are added greedily, one after another, so the set need not be the largest one.
    """
    from . import dfa_kernel  # not at the top: it imports numba

    kept = np.ones(dfa.num_states, np.bool_) if within is None else within.copy()
    kept[DEAD] = False
    return dfa_kernel.free_kinds(np.ascontiguousarray(dfa.table), dfa.class_of, KIND, NUM_KINDS, kept)
