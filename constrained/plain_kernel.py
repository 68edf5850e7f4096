"""From which states of an automaton any plain text leads on: loops over its table, compiled by numba.

What is plain is said by its caller: single bytes, and characters of several as (first and last byte that begins one,
first and last second byte, how many more come after that). Import this file where it is needed: it imports numba.
"""

# ruff: noqa: SIM110  (spelled out, as it is compiled)

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .automaton.walk_kernel import compiled

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


@compiled()
def _classes_of(class_of: NDArray[np.uint8], data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The classes of some bytes."""
    has = np.zeros(256, np.bool_)
    for byte in data:
        has[class_of[byte]] = True
    return np.flatnonzero(has)


@compiled()
def _classes_of_range(class_of: NDArray[np.uint8], first: int, last: int) -> NDArray[np.int64]:
    """The classes of the bytes from one to another."""
    return _classes_of(class_of, np.arange(first, last + 1).astype(np.uint8))


@compiled()
def _all_lead_to(table: Ints, state: int, labels: NDArray[np.int64], wanted: Bools) -> bool:
    """Whether all labels lead from a state to wanted ones."""
    for label in labels:
        if not wanted[table[state, label]]:
            return False
    return True


@compiled()
def _all_multibyte_lead_to(
    table: Ints, class_of: NDArray[np.uint8], state: int, several: Ints, wanted: Bools, one_more: Bools, two_more: Bools
) -> bool:
    """Whether all characters of several bytes lead from a state to wanted ones."""
    for row in range(len(several)):
        after = wanted if several[row, 4] == 0 else one_more if several[row, 4] == 1 else two_more
        last = -1
        for first in range(several[row, 0], several[row, 1] + 1):
            target = table[state, class_of[first]]
            if target == last:
                continue  # as the byte before
            last = target
            before = -1
            for second in range(several[row, 2], several[row, 3] + 1):
                label = class_of[second]
                if label != before and not after[table[target, label]]:
                    return False
                before = label
    return True


@compiled("(int32[:,::1], uint8[::1], uint8[::1], int32[:,::1])")
def plain_states(table: Ints, class_of: NDArray[np.uint8], single: NDArray[np.uint8], several: Ints) -> Bools:
    """From which states every plain text leads on, to states of which the same is true."""
    num_states = len(table)
    labels, inner = _classes_of(class_of, single), _classes_of_range(class_of, 0x80, 0xBF)
    plain = np.ones(num_states, np.bool_)
    one_more, two_more = np.zeros(num_states, np.bool_), np.zeros(num_states, np.bool_)
    plain[0] = False
    while True:
        for state in range(1, num_states):
            one_more[state] = _all_lead_to(table, state, inner, plain)
        for state in range(1, num_states):
            two_more[state] = _all_lead_to(table, state, inner, one_more)
        changed = False
        for state in range(num_states - 1, 0, -1):  # what is later is farther from the start
            if plain[state] and not (
                _all_lead_to(table, state, labels, plain)
                and _all_multibyte_lead_to(table, class_of, state, several, plain, one_more, two_more)
            ):
                plain[state] = False
                changed = True
        if not changed:
            return plain


@compiled("(int32[:,::1], uint8[::1], uint8[::1], int32[:,::1], boolean[::1])")
def looping_states(
    table: Ints, class_of: NDArray[np.uint8], single: NDArray[np.uint8], several: Ints, plain: Bools
) -> Bools:
    """Those of the plain states from which every plain character leads back to the very state."""
    num_states = len(table)
    labels, inner = _classes_of(class_of, single), _classes_of_range(class_of, 0x80, 0xBF)
    loops = np.zeros(num_states, np.bool_)
    here = np.zeros(num_states, np.bool_)
    one_more, two_more = np.zeros(num_states, np.bool_), np.zeros(num_states, np.bool_)
    for state in range(1, num_states):
        here[state] = True
        if plain[state] and _all_lead_to(table, state, labels, here):
            for other in range(1, num_states):
                one_more[other] = _all_lead_to(table, other, inner, here)
            for other in range(1, num_states):
                two_more[other] = _all_lead_to(table, other, inner, one_more)
            loops[state] = _all_multibyte_lead_to(table, class_of, state, several, here, one_more, two_more)
        here[state] = False
    return loops
