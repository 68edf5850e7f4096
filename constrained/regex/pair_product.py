"""Two finite automata side by side, as one table. Knows tables; not what the columns or the states mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

START = 1
Lives = Literal["both", "first", "either"]


def pair_product(
    a: NDArray[np.int32], b: NDArray[np.int32], lives: Lives, check: Callable[[int], None]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The pairs of states that are come to from the two starts, found breadth first.

    a is int32[SA, C], b int32[SB, C], over the same columns. A pair is dead unless what `lives` says is not. The table
    int32[S, C], and the pairs int32[S, 2]; state 0 is dead, 1 the start. `check` is told the number of states now and
    then, and may raise.
    """
    from . import dfa_kernel as kernel  # here, for it imports numba

    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)  # the loops are compiled for these only
    num_classes = a.shape[1]
    which = {"both": kernel.BOTH, "first": kernel.FIRST, "either": kernel.EITHER}[lives]
    room, at, number = num_classes + max(len(a), len(b)), START, START + 1
    pairs, table = np.zeros((room, 2), np.int32), np.zeros((room, num_classes), np.int32)
    pairs[START] = START
    slots = _slots(pairs, number)
    while True:
        at, number = kernel.extend(a, b, which, pairs, table, slots, at, number)
        check(number)
        if at == number:
            return table[:number], pairs[:number]
        if number + num_classes > len(pairs):
            more = len(pairs) + num_classes
            pairs = np.concatenate([pairs, np.zeros((more, 2), np.int32)])
            table = np.concatenate([table, np.zeros((more, num_classes), np.int32)])
            slots = _slots(pairs, number)


def _slots(pairs: NDArray[np.int32], number: int) -> NDArray[np.int32]:
    """Where the states so far are found by their pair: at least twice as many places as pairs."""
    from . import dfa_kernel as product_kernel  # here, for it imports numba

    slots = np.zeros(1 << (2 * len(pairs)).bit_length(), np.int32)
    product_kernel.enter(pairs, number, slots)
    return slots
