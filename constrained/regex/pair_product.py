"""Product of two finite automata that are given as tables over the same columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .dfa import START

Lives = Literal["both", "first", "either"]


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


def _slots(pairs: NDArray[np.int32], number: int) -> NDArray[np.int32]:
    """Build the hash table of the states so far, with at least twice as many slots as pairs."""
    from . import dfa_kernel  # not at the top: it imports numba

    slots = np.zeros(1 << (2 * len(pairs)).bit_length(), np.int32)
    dfa_kernel.enter(pairs, number, slots)
    return slots
