"""Subset construction: an expression to a deterministic automaton over classes of characters.

A state is a set of states of the nondeterministic automaton, and a flag: the text may end there. A state from which
every text is accepted absorbs all others of its set, and the lowest state of a chain those above it. Patterns with
look-around are determinised by `word_boundaries` or `lookaround` instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Values
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget
from .char_dfa import CharDfa, trimmed_char_dfa
from .charset import ALL
from .lookaround import determinise_with_lookaround
from .nfa import CharNfa, build_char_nfa
from .syntax.expression import Chars, Expression, Look, Seq, TextStart, repeat, sequence
from .word_boundaries import determinise_with_boundaries, inspects_one_character

T = TypeVar("T", bound=np.generic)


def char_dfa(expression: Expression, budget: CompileBudget) -> CharDfa:
    """Compile an expression; its anchors match at the ends of the text. Raises GrammarError beyond the budget."""
    looks, rest = _leading_looks(expression)
    nfa = build_char_nfa(rest, budget)
    found = nfa_dfa(nfa, budget)
    for look in looks:
        ahead = char_dfa(sequence(look.part, repeat(Chars(ALL), 0, None)), budget)
        found = found.minus(ahead, budget) if look.negated else found.intersect(ahead, budget)
    return found


def nfa_dfa(nfa: CharNfa, budget: CompileBudget) -> CharDfa:
    """Determinise an automaton. Raises GrammarError beyond the budget."""
    if not nfa.lookarounds:
        return _subset_construction(nfa, budget)
    if inspects_one_character(nfa):
        return determinise_with_boundaries(nfa, budget)
    return determinise_with_lookaround(nfa, budget)


def _leading_looks(expression: Expression) -> tuple[list[Look], Expression]:
    """Split off look-aheads at the start of the text: they are intersections (or differences) with the rest."""
    parts = list(expression.parts) if isinstance(expression, Seq) else []
    looks: list[Look] = []
    at = 1 if parts and parts[0] == TextStart() else 0
    while at < len(parts) and isinstance(look := parts[at], Look) and look.ahead:
        looks.append(look)
        del parts[at]
    return looks, sequence(*parts) if looks else expression


class _SubsetArrays:
    """Growing arrays of `subset_kernel`: the subsets found so far, and the closures of single states."""

    def __init__(self, nfa: CharNfa) -> None:
        self.counts = np.zeros(6, np.int64)
        self.begins, self.members = np.zeros(64, np.int64), np.zeros(256 + len(nfa.moves), np.int32)
        self.ends, self.slots = np.zeros(64, np.bool_), np.zeros(256, np.int32)
        self.closure_of = np.full(len(nfa.moves), -1, np.int32)
        self.closure_begins, self.closed_ends = (
            np.zeros(len(nfa.moves) + 3, np.int64),
            np.zeros(len(nfa.moves) + 2, np.bool_),
        )
        self.closed = np.zeros(256 + len(nfa.moves), np.int32)
        self.table = np.zeros((64, nfa.alphabet.num_classes), np.int32)

    def grow_members(self) -> None:
        self.members = _doubled(self.members)

    def grow_sets(self) -> None:
        self.begins, self.ends, self.table = _doubled(self.begins), _doubled(self.ends), _doubled(self.table)
        self.slots = np.zeros(2 * len(self.slots), np.int32)

    def grow_closures(self) -> None:
        self.closed = _doubled(self.closed)


def _doubled(array: NDArray[T]) -> NDArray[T]:
    return np.concatenate([array, np.zeros_like(array)])


def _subset_construction(nfa: CharNfa, budget: CompileBudget) -> CharDfa:
    """Run the subset construction of a pattern without look-around."""
    from . import subset_kernel as kernel  # not at the top: it imports numba

    num_states = len(nfa.moves)
    epsilon_begins, epsilon = _packed_rows(nfa.epsilon)
    # A guard for the start of the text is encoded as its target, one for the end as -1 - target.
    guarded = ([t if guard == "start" else -1 - t for guard, t in nfa.guarded.get(s, ())] for s in range(num_states))
    guard_begins, guards = _packed_rows(guarded)
    move_begins, classes = _packed_rows(() if move is None else move[0] for move in nfa.moves)
    targets = np.array([-1 if move is None or not move[0] else move[1] for move in nfa.moves], np.int32)
    edges = (epsilon_begins, epsilon, guard_begins, guards)
    absorbing = max(nfa.absorbing, default=-1)
    stamps, todo, found = (np.zeros(num_states + 1, np.int32) for _ in range(3))
    chained = [nfa.chains.get(state, (-1, 0)) for state in range(num_states)]
    chains, ranks = np.array(chained, np.int32).T.copy()
    lowest = np.empty(1 + int(chains.max()), np.int32)  # by chain
    sets = _SubsetArrays(nfa)
    kernel.begin(
        nfa.pattern.entry, *edges, targets, absorbing, nfa.pattern.accept, sets.counts, sets.begins, sets.members,
        sets.ends, sets.slots, sets.closure_begins, sets.closed, sets.closed_ends, stamps, todo,
    )  # fmt: skip
    sets.counts[kernel.ROWS_MADE] = 1
    while True:
        answer = kernel.extend(
            *edges, move_begins, classes, targets, absorbing, nfa.pattern.accept, sets.counts, sets.begins,
            sets.members, sets.ends, sets.slots, sets.closure_of, sets.closure_begins, sets.closed, sets.closed_ends,
            sets.table, stamps, todo, found, chains, ranks, lowest,
        )  # fmt: skip
        number = int(sets.counts[kernel.SETS])
        budget.check(number, int(sets.counts[kernel.WORK]))
        sets.counts[kernel.WORK] = 0
        if answer == kernel.ROWS_DONE:
            return trimmed_char_dfa(nfa.alphabet, sets.table[:number], sets.ends[:number])
        if answer == kernel.NEEDS_MEMBERS:
            sets.grow_members()
        elif answer == kernel.NEEDS_CLOSURES:
            sets.grow_closures()
        elif answer == kernel.NEEDS_SETS:
            sets.grow_sets()
            kernel.rehash(sets.counts, sets.begins, sets.members, sets.ends, sets.slots)


def _packed_rows(lists: Iterable[Values[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pack lists as compressed sparse rows: the offsets int32[N + 1], and the values one after another."""
    kept = list(lists)
    begins = np.zeros(len(kept) + 1, np.int32)
    np.cumsum([len(values) for values in kept], out=begins[1:])
    return begins, np.fromiter(chain.from_iterable(kept), np.int32, int(begins[-1]))
