"""Compiled loops that build states: rows of blocks, and the trie of given texts beside the block of all other texts.

Import this module inside the function that needs it, because it imports numba.
"""

# ruff: noqa: SIM109  (spelled out because it is compiled)

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...loops import compiled
from .actions import (
    ARGUMENT,
    CHECK,
    CLASSES,
    COUNT,
    DEAD,
    FEWEST,
    FILLED,
    FLAGS,
    FREE,
    GOTO,
    HEAD,
    LENGTH,
    LIKE,
    LOOPS,
    MARKS,
    MOST,
    POP_COUNTED,
    ROW,
    SHIFT,
)

Ints = NDArray[np.int32]


@compiled(
    "(uint8[::1], int32[::1], int32[::1], int32[:,::1], int32[:,::1], int64, int64, int64, int32[:,::1], uint8[::1],"
    " boolean[::1], int32[::1])"
)
def insert_texts(
    text: NDArray[np.uint8],
    starts: Ints,
    actions: Ints,
    states: Ints,
    edges: Ints,
    root: int,
    num_edges: int,
    base: int,
    table: Ints,
    class_of: NDArray[np.uint8],
    begins: NDArray[np.bool_],
    counts: Ints,
) -> tuple[int, int]:
    """Insert sorted texts into the trie at `root`, whose states are the rows of `states` after it.

    Unless `base` is 0, every other byte acts as in the block at `base`, along which the texts run. If `begins` is not
    empty, characters are counted from these of its states on; `counts` gets the count of each new state. Returns the
    number of edges in all, and the number of states used.
    """
    counting = len(begins) > 0
    path = np.zeros(len(text) + 1, np.int32)
    along = np.zeros(len(text) + 1, np.int32)
    path[0] = root
    along[0] = 1
    if base > 0:
        for column in (ROW, CLASSES, FLAGS, MARKS, FREE, LENGTH):
            states[root, column] = states[base + 1, column]
        if counting:
            states[root, FREE] = 0
        states[root, FLAGS] &= ~LOOPS
        states[root, LIKE] = base + 1
    num_states = 1
    previous, previous_length = 0, 0
    for number in range(len(actions)):
        first, last = starts[number], starts[number + 1]
        common = 0
        while (
            common < previous_length and common < last - first - 1 and text[previous + common] == text[first + common]
        ):
            common += 1
        previous, previous_length = first, last - first - 1
        for at in range(common, last - first):
            source = path[at]
            if at == last - first - 1:
                code = actions[number]
            else:
                target = root + num_states
                num_states += 1
                path[at + 1] = target
                operation = GOTO
                counts[num_states - 1] = counts[source - root]
                if base > 0:
                    local = table[along[at], class_of[text[first + at]]]
                    if counting and begins[along[at]]:
                        operation = COUNT
                        counts[num_states - 1] += 1
                    along[at + 1] = local
                    if local > 0:
                        for column in (ROW, CLASSES, FLAGS, MARKS, FREE, LENGTH):
                            states[target, column] = states[base + local, column]
                        if counting:
                            states[target, FREE] = 0
                        states[target, FLAGS] &= ~LOOPS
                        states[target, LIKE] = base + local
                code = (operation << SHIFT) | target
            edges[num_edges, 0] = text[first + at]
            edges[num_edges, 1] = code
            edges[num_edges, 2] = states[source, HEAD]
            states[source, HEAD] = num_edges
            num_edges += 1
    return num_edges, num_states


@compiled(
    "(int32[:,::1], int32[:,::1], uint8[:,::1], int32[::1], int32[:,::1], int64, int64, int32[::1])",
)
def trim_texts(
    states: Ints,
    edges: Ints,
    classes: NDArray[np.uint8],
    targets: Ints,
    pushes: Ints,
    root: int,
    num_states: int,
    counts: Ints,
) -> bool:
    """Refuse the bytes that lead only to refused texts, in states that `insert_texts` has made.

    Returns False if no text is left.
    """
    alive = np.zeros(num_states, np.bool_)
    has_edge = np.zeros(256, np.bool_)
    for node in range(num_states - 1, -1, -1):  # states come after those that lead to them
        state = root + node
        has_edge[:] = False
        edge = states[state, HEAD]
        while edge >= 0:
            operation, argument = edges[edge, 1] >> SHIFT, edges[edge, 1] & ARGUMENT
            if (operation == GOTO or operation == COUNT) and not alive[argument - root]:
                edges[edge, 1] = DEAD
            if edges[edge, 1] != DEAD:
                alive[node] = True
            has_edge[edges[edge, 0]] = True
            edge = edges[edge, 2]
        byte = 0
        while byte < 256 and not alive[node]:
            if not has_edge[byte]:
                code = targets[states[state, ROW] + classes[states[state, CLASSES], byte]]
                operation, argument = code >> SHIFT, code & ARGUMENT
                if operation == COUNT or operation == CHECK:
                    count = counts[node] + (operation == COUNT)
                    alive[node] = states[argument, FEWEST] <= count and count <= states[argument, MOST]
                elif operation == POP_COUNTED:
                    while counts[node] > pushes[argument, 0]:
                        argument += 1
                    alive[node] = pushes[argument, 1] >= 0
                else:
                    alive[node] = code != DEAD
            byte += 1
    return bool(alive[0])


@compiled("(uint8[::1], int32[:,::1], int32[:,::1], int64, int64, int64)")
def remove_text(
    text: NDArray[np.uint8], states: Ints, edges: Ints, root: int, num_states: int, num_edges: int
) -> tuple[int, int, int]:
    """Add the states from `root` on without a text, and share all others; `num_states` and `num_edges` are used so far.

    The states along the text have only edges. Returns the state in place of `root`, 0 if no text is left, and the
    numbers of states and edges used then. If `edges` is too short, nothing is added, and the state is -1.
    """
    path = np.zeros(len(text), np.int32)
    needed = num_edges
    state = root
    for at in range(len(text)):
        path[at] = state
        edge = states[state, HEAD]
        while edge >= 0:
            if edges[edge, 0] == text[at]:
                state = edges[edge, 1] & ARGUMENT
            needed += 1
            edge = edges[edge, 2]
    if needed > len(edges):
        return -1, num_states, needed
    below = 0
    for at in range(len(text) - 1, -1, -1):
        first = num_edges
        edge = states[path[at], HEAD]
        while edge >= 0:
            is_removed = edges[edge, 0] == text[at]
            if not is_removed or below > 0:
                edges[num_edges, 0] = edges[edge, 0]
                edges[num_edges, 1] = (GOTO << SHIFT) | below if is_removed else edges[edge, 1]
                edges[num_edges, 2] = num_edges + 1
                num_edges += 1
            edge = edges[edge, 2]
        below = 0
        if num_edges > first:
            edges[num_edges - 1, 2] = -1
            below = num_states
            num_states += 1
            states[below, HEAD] = first
            states[below, FILLED] = 1
    return below, num_states, num_edges


@compiled("(int32[:,::1], int32[::1], int32[::1], int64, int64, int64, int32[:,::1])")
def lay_out(table: Ints, operations: Ints, ends: Ints, like: int, base: int, offset: int, actions: Ints) -> None:
    """Write the actions of a block whose state s becomes `base` + s, and whose results by count begin at row `offset`.

    `blocks.BlockLayout` describes the other arguments.
    """
    num_classes = table.shape[1]
    for state in range(len(operations)):
        operation = operations[state] + np.int32(base)
        for number in range(num_classes):
            target = table[state + 1, number]
            actions[state, number] = operation + target if target != 0 else 0
        if len(ends) > 0:
            code = ends[state]
            actions[state, num_classes] = code + offset if code >= 0 else actions[state, like]
