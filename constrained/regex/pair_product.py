"""Products of finite automata that are given as tables over the same columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..budget import CompileBudget
from .dfa import START, Dfa, trimmed_dfa

Lives = Literal["both", "first", "either"]
Factor = tuple[NDArray[np.int32], NDArray[np.int64], list[tuple[bool, ...]]]  # as `product` returns


def pair_product(
    a: NDArray[np.int32], b: NDArray[np.int32], lives: Lives, check: Callable[[int, int], None]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the table int32[S, C] and the pairs int32[S, 2] of the product, found breadth first from the two starts.

    `a` is int32[SA, C], `b` is int32[SB, C]. In both, and in the product, state 0 is dead and 1 the start. `lives`
    names the factors that must be alive in a live pair. `check` is called with the number of states and of steps since
    the last call from time to time, and may raise to stop the construction.
    """
    from . import dfa_kernel as kernel  # not at the top: it imports numba

    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)  # the loops are compiled for contiguous arrays only
    num_classes = a.shape[1]
    which = {"both": kernel.BOTH, "first": kernel.FIRST, "either": kernel.EITHER}[lives]
    room, at, number = num_classes + max(len(a), len(b)), START, START + 1
    pairs, table = np.zeros((room, 2), np.int32), np.zeros((room, num_classes), np.int32)
    pairs[START] = START
    slots = _slots(pairs, number)
    while True:
        first = at
        at, number = kernel.extend(a, b, which, pairs, table, slots, at, number)
        check(number, (at - first + 1) * num_classes)
        if at == number:
            return table[:number], pairs[:number]
        if number + num_classes > len(pairs):
            more = len(pairs) + num_classes
            pairs = np.concatenate([pairs, np.zeros((more, 2), np.int32)])
            table = np.concatenate([table, np.zeros((more, num_classes), np.int32)])
            slots = _slots(pairs, number)


def intersect(a: Dfa, b: Dfa, budget: CompileBudget) -> Dfa:
    """Accept what both accept. Raises GrammarError beyond the budget."""
    codes, class_of = np.unique(a.class_of.astype(np.int32) << 8 | b.class_of, return_inverse=True)
    table, pairs = pair_product(a.table[:, codes >> 8], b.table[:, codes & 0xFF], "both", budget.check)
    accepting = a.accepting[pairs[:, 0]] & b.accepting[pairs[:, 1]]
    return trimmed_dfa(table, class_of.astype(np.uint8), accepting)


def _slots(pairs: NDArray[np.int32], number: int) -> NDArray[np.int32]:
    """Build the hash table of the states so far, with at least twice as many slots as pairs."""
    from . import dfa_kernel  # not at the top: it imports numba

    slots = np.zeros(1 << (2 * len(pairs)).bit_length(), np.int32)
    dfa_kernel.enter(pairs, number, slots)
    return slots


def product(
    tables: Sequence[NDArray[np.int32]], accepting: Sequence[NDArray[np.bool_]], check: Callable[[int, int], None]
) -> tuple[NDArray[np.int32], NDArray[np.int64], list[tuple[bool, ...]]]:
    """Return the product of automata, of which the first must be alive: the table int32[S, C] and what accepts.

    `combination[q]` is the index of the truths of the other automata in state q, or -1 if the first does not accept.
    Automata are multiplied in pairs, the results in pairs again, so that the work does not grow with their square.
    """
    (first, first_ends), *rest = zip(tables, accepting, strict=True)
    others: list[Factor] = [(table, ends.astype(np.int64), [(False,), (True,)]) for table, ends in rest]
    while len(others) > 1:
        pairs = [multiplied(others[at], others[at + 1], check) for at in range(0, len(others) - 1, 2)]
        others = pairs + others[2 * len(pairs) :]
    if not others:
        return first, np.where(first_ends, 0, -1), [()]
    ((second, ends, truths),) = others
    table, states = pair_product(first, second, "first", check)
    used, combination = np.unique(ends[states[:, 1]], return_inverse=True)
    combination = np.where(first_ends[states[:, 0]], combination, -1)
    kept, renumbered = np.unique(combination, return_inverse=True)
    first_kept = 1 if kept[0] == -1 else 0
    chosen = [truths[used[number]] for number in kept[first_kept:].tolist()]
    return table, renumbered.reshape(-1) - first_kept, chosen


def multiplied(a: Factor, b: Factor, check: Callable[[int, int], None]) -> Factor:
    """Return the product of two automata, in which one may be dead."""
    table, states = pair_product(a[0], b[0], "either", check)
    codes = a[1][states[:, 0]] * len(b[2]) + b[1][states[:, 1]]
    used, combination = np.unique(codes, return_inverse=True)
    truths = [a[2][code // len(b[2])] + b[2][code % len(b[2])] for code in used.tolist()]
    return table, combination.reshape(-1), truths
