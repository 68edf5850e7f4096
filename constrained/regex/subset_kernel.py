"""Compiled loops of the subset construction: one row of the deterministic automaton per set of NFA states.

The loops release the GIL. Import this module inside the function that needs it, because it imports numba. `subset`
describes the arrays of the NFA.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...loops import compiled

Ints = NDArray[np.int32]
ROWS_DONE, PAUSED, NEEDS_MEMBERS, NEEDS_SETS, NEEDS_CLOSURES = range(5)
_MAX_WORK = 1 << 21  # steps per call; between calls the caller checks its budget
# Indices of `counts`: sets so far (0 is the dead one), their members, rows done, closures, their members, and steps.
SETS, MEMBERS, ROWS_MADE, CLOSURES, CLOSED, WORK = range(6)
_FACTOR, _BITS = 1_000_003, (1 << 40) - 1  # of a set's hash, which stays within 63 bits


@compiled("(int32[::1], int64, boolean, int64[::1], int32[::1], boolean[::1], int32[::1])")
def _find_slot(
    found: Ints,
    size: int,
    does_end: bool,
    begins: NDArray[np.int64],
    members: Ints,
    ends: NDArray[np.bool_],
    slots: Ints,
) -> int:
    """Return the hash slot of a set; if the set is new, the free slot for it."""
    mixed = 1 + int(does_end)
    for at in range(size):
        mixed = (mixed * _FACTOR + int(found[at])) & _BITS
    mask = len(slots) - 1
    slot = (mixed ^ (mixed >> 19)) & mask
    while slots[slot] != 0:
        number = slots[slot]
        first = begins[number]
        if begins[number + 1] - first == size and ends[number] == does_end:
            same = True
            for at in range(size):
                if members[first + at] != found[at]:
                    same = False
                    break
            if same:
                return int(slot)
        slot = (slot + 1) & mask
    return int(slot)


@compiled("(int32[::1], int64, boolean, int64[::1], int64[::1], int32[::1], boolean[::1], int32[::1])")
def enter(
    found: Ints,
    size: int,
    does_end: bool,
    counts: NDArray[np.int64],
    begins: NDArray[np.int64],
    members: Ints,
    ends: NDArray[np.bool_],
    slots: Ints,
) -> int:
    """Return the number of a set, new or known; -1 without room for its members, -2 without room for its number."""
    if size == 0 and not does_end:
        return 0
    slot = _find_slot(found, size, does_end, begins, members, ends, slots)
    if slots[slot] != 0:
        return int(slots[slot])
    number, place = int(counts[SETS]), counts[MEMBERS]
    if place + size > len(members):
        return -1
    if number + 2 > len(begins) or 2 * number > len(slots):
        return -2
    for at in range(size):  # an assignment to a slice takes numba long to compile
        members[place + at] = found[at]
    ends[number] = does_end
    begins[number + 1] = place + size
    slots[slot] = number
    counts[SETS], counts[MEMBERS] = number + 1, place + size
    return number


@compiled("(int64[::1], int64[::1], int32[::1], boolean[::1], int32[::1])")
def rehash(
    counts: NDArray[np.int64], begins: NDArray[np.int64], members: Ints, ends: NDArray[np.bool_], slots: Ints
) -> None:
    """Insert all sets into an empty hash table."""
    for number in range(1, counts[SETS]):
        first, last = begins[number], begins[number + 1]
        if last > first or ends[number]:
            slots[_find_slot(members[first:last], last - first, ends[number], begins, members, ends, slots)] = number


@compiled(
    "(int64, boolean, int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int64, int64,"
    " int64[::1], int64[::1], int32[::1], boolean[::1], int32[::1], int32[::1])"
)
def _closure(
    start: int,
    at_start: bool,
    epsilon_begins: Ints,
    epsilon: Ints,
    guard_begins: Ints,
    guards: Ints,
    targets: Ints,
    absorbing: int,
    accept: int,
    counts: NDArray[np.int64],
    closure_begins: NDArray[np.int64],
    closed: Ints,
    closed_ends: NDArray[np.bool_],
    stamps: Ints,
    todo: Ints,
) -> int:
    """Compute the epsilon closure of a state: first as the text continues, then as it ends.

    Returns how many states and edges were visited, -1 without room for one more closure.
    """
    number, size = counts[CLOSURES], counts[CLOSED]
    if number + 2 > len(closure_begins) or size + len(targets) > len(closed):
        return -1
    stamps[0] += 1
    mark = stamps[0]
    stamps[1 + start] = mark
    todo[0] = start
    num_seen = 1
    at = 0
    while at < num_seen:
        state = todo[at]
        at += 1
        for edge in range(epsilon_begins[state], epsilon_begins[state + 1]):
            if stamps[1 + epsilon[edge]] != mark:
                stamps[1 + epsilon[edge]] = mark
                todo[num_seen] = epsilon[edge]
                num_seen += 1
        if at_start:
            for edge in range(guard_begins[state], guard_begins[state + 1]):
                if guards[edge] >= 0 and stamps[1 + guards[edge]] != mark:
                    stamps[1 + guards[edge]] = mark
                    todo[num_seen] = guards[edge]
                    num_seen += 1
    begin = size
    is_absorbed = absorbing >= 0 and stamps[1 + absorbing] == mark
    for place in range(num_seen):
        if targets[todo[place]] >= 0 and not is_absorbed:
            closed[size] = todo[place]
            size += 1
    if is_absorbed:
        closed[size] = absorbing
        size += 1
    closed[begin:size].sort()
    # As the text ends, guards for its end hold too, and the edges behind them are followed.
    at = 0
    num_going_on = num_seen
    while at < num_seen:
        state = todo[at]
        if at >= num_going_on:
            for edge in range(epsilon_begins[state], epsilon_begins[state + 1]):
                if stamps[1 + epsilon[edge]] != mark:
                    stamps[1 + epsilon[edge]] = mark
                    todo[num_seen] = epsilon[edge]
                    num_seen += 1
        for edge in range(guard_begins[state], guard_begins[state + 1]):
            target = guards[edge] if guards[edge] >= 0 else -1 - guards[edge]
            if (guards[edge] < 0 or at_start) and stamps[1 + target] != mark:
                stamps[1 + target] = mark
                todo[num_seen] = target
                num_seen += 1
        at += 1
    closed_ends[number] = stamps[1 + accept] == mark
    closure_begins[number + 1] = size
    counts[CLOSURES], counts[CLOSED] = number + 1, size
    return num_seen


@compiled(
    "(int64, int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int64, int64, int64[::1],"
    " int64[::1], int32[::1], boolean[::1], int32[::1], int64[::1], int32[::1], boolean[::1], int32[::1],"
    " int32[::1])"
)
def begin(
    entry: int,
    epsilon_begins: Ints,
    epsilon: Ints,
    guard_begins: Ints,
    guards: Ints,
    targets: Ints,
    absorbing: int,
    accept: int,
    counts: NDArray[np.int64],
    begins: NDArray[np.int64],
    members: Ints,
    ends: NDArray[np.bool_],
    slots: Ints,
    closure_begins: NDArray[np.int64],
    closed: Ints,
    closed_ends: NDArray[np.bool_],
    stamps: Ints,
    todo: Ints,
) -> None:
    """Enter the start's set as number 1; it may be empty. The arrays have room for it."""
    _closure(
        entry, True, epsilon_begins, epsilon, guard_begins, guards, targets, absorbing, accept, counts, closure_begins,
        closed, closed_ends, stamps, todo,
    )  # fmt: skip
    size = counts[CLOSED]
    for at in range(size):
        members[at] = closed[at]
    ends[1] = closed_ends[0]
    begins[2] = size
    counts[SETS], counts[MEMBERS] = 2, size
    if size or ends[1]:
        slots[_find_slot(members, size, ends[1], begins, members, ends, slots)] = 1


@compiled("(int32[::1], int64, int32[::1], int32[::1], int32[::1])")
def _drop_subsumed(found: Ints, size: int, chains: Ints, ranks: Ints, lowest: Ints) -> int:
    """Keep the first state of each chain, in their order; return how many states are left."""
    for at in range(size):
        if chains[found[at]] >= 0:
            lowest[chains[found[at]]] = ranks[found[at]]
    for at in range(size):
        chain = chains[found[at]]
        if chain >= 0 and ranks[found[at]] < lowest[chain]:
            lowest[chain] = ranks[found[at]]
    kept = 0
    for at in range(size):
        chain = chains[found[at]]
        if chain < 0 or ranks[found[at]] == lowest[chain]:
            found[kept] = found[at]
            kept += 1
    return kept


@compiled(
    "(int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int64, int64,"
    " int64[::1], int64[::1], int32[::1], boolean[::1], int32[::1], int32[::1], int64[::1], int32[::1],"
    " boolean[::1], int32[:,::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1])"
)
def extend(
    epsilon_begins: Ints,
    epsilon: Ints,
    guard_begins: Ints,
    guards: Ints,
    move_begins: Ints,
    classes: Ints,
    targets: Ints,
    absorbing: int,
    accept: int,
    counts: NDArray[np.int64],
    begins: NDArray[np.int64],
    members: Ints,
    ends: NDArray[np.bool_],
    slots: Ints,
    closure_of: Ints,
    closure_begins: NDArray[np.int64],
    closed: Ints,
    closed_ends: NDArray[np.bool_],
    table: Ints,
    stamps: Ints,
    todo: Ints,
    found: Ints,
    chains: Ints,
    ranks: Ints,
    lowest: Ints,
) -> int:
    """Compute rows from the next one on; return ROWS_DONE, PAUSED, or the array that must grow first.

    A row that was interrupted is computed again from its beginning.
    """
    num_classes = table.shape[1]
    counted = np.zeros(num_classes + 1, np.int64)
    last_work = counts[WORK] + _MAX_WORK
    while counts[ROWS_MADE] < counts[SETS]:
        row = counts[ROWS_MADE]
        first, last = begins[row], begins[row + 1]
        # Group the targets of the set's states by class of characters.
        counted[:] = 0
        for place in range(first, last):
            state = members[place]
            for at in range(move_begins[state], move_begins[state + 1]):
                counted[classes[at] + 1] += 1
        for label in range(num_classes):
            counted[label + 1] += counted[label]
        grouped = np.empty(counted[num_classes], np.int32)
        place_of = counted.copy()
        for place in range(first, last):
            state = members[place]
            for at in range(move_begins[state], move_begins[state + 1]):
                grouped[place_of[classes[at]]] = targets[state]
                place_of[classes[at]] += 1
        counts[WORK] += len(grouped) + num_classes
        for label in range(num_classes):
            low, high = counted[label], counted[label + 1]
            table[row, label] = 0
            if low == high:
                continue
            # Classes with equal targets are mostly neighbours.
            if label > 0 and counted[label] - counted[label - 1] == high - low:
                same = True
                for at in range(high - low):
                    if grouped[low + at] != grouped[counted[label - 1] + at]:
                        same = False
                        break
                if same:
                    table[row, label] = table[row, label - 1]
                    continue
            for at in range(low, high):
                if closure_of[grouped[at]] < 0:
                    size = _closure(
                        grouped[at], False, epsilon_begins, epsilon, guard_begins, guards, targets, absorbing, accept,
                        counts, closure_begins, closed, closed_ends, stamps, todo,
                    )  # fmt: skip
                    if size < 0:
                        return NEEDS_CLOSURES
                    closure_of[grouped[at]] = counts[CLOSURES] - 1
                    counts[WORK] += size
            size, does_end = 0, False
            stamps[0] += 1
            for at in range(low, high):
                closure = closure_of[grouped[at]]
                does_end = does_end or closed_ends[closure]
                for inner in range(closure_begins[closure], closure_begins[closure + 1]):
                    state = closed[inner]
                    if stamps[1 + state] != stamps[0]:
                        stamps[1 + state] = stamps[0]
                        found[size] = state
                        size += 1
                counts[WORK] += closure_begins[closure + 1] - closure_begins[closure]
            counts[WORK] += 3 * size  # they are sorted, compared and perhaps stored
            if absorbing >= 0 and stamps[1 + absorbing] == stamps[0]:
                found[0] = absorbing
                size = 1
            elif len(lowest) > 0:
                size = _drop_subsumed(found, size, chains, ranks, lowest)
            if high - low > 1:
                found[:size].sort()
            number = enter(found, size, does_end, counts, begins, members, ends, slots)
            if number < 0:
                return NEEDS_MEMBERS if number == -1 else NEEDS_SETS
            table[row, label] = number
        counts[ROWS_MADE] += 1
        if counts[WORK] > last_work:
            return PAUSED
    return ROWS_DONE
