"""Compiled loops of the token walk: steps of the pushdown automaton over a token, and over the trie of all tokens.

A walk stops with a request when it meets a state without a row, or a frame whose successor is unknown. The caller fills
it in and calls again, and the walk resumes where it stopped. The modules `actions`, `layout` and `token_trie` describe
the arrays. Import this module inside the function that needs it, because it imports numba.
"""

# ruff: noqa: SIM108, SIM109  (spelled out because they are compiled)

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...loops import compiled
from .actions import (
    ARGUMENT,
    CHECK,
    CLASSES,
    COUNT,
    COUNT_LIMIT,
    COUNTS,
    DEAD,
    DEAD_END,
    FEWEST,
    FILLED,
    FLAGS,
    FREE,
    GOTO,
    GUARDED,
    HEAD,
    LENGTH,
    MOST,
    NEXT_STATE,
    NUM_RETURNS,
    ONCE,
    POP_BEFORE,
    POP_COUNTED,
    PUSH,
    PUSH_BEFORE,
    QUOTE,
    RETURNS,
    ROW,
    SHIFT,
    STAY,
    UNKNOWN,
)
from .layout import (
    ALLOWS_REPEATED,
    ANSWERED,
    AROUND,
    BASE_DEPTH,
    BEGAN,
    BEGIN,
    BELOW,
    COUNTED,
    DONE,
    ENDED_RESULT,
    FIRST_ANSWER,
    FRAME,
    FREE_CELL,
    LAST,
    LEVEL,
    MAX_DEPTH,
    NEEDS_GUARD,
    NEEDS_LIMITED,
    NEEDS_RETURN,
    NEEDS_STATE,
    NEXT,
    NO_QUOTES,
    OFFSET,
    ONLY_EDGES,
    PASSED_ONCE,
    REACH,
    REFUSED,
    SAVED,
    STATE,
    TOP,
    VALUE_END,
    WANTED,
)
from .token_trie import FIRST_CHILD, FIRST_TOKEN, HEIGHT, KINDS, LAST_CHILD, LAST_TOKEN, OWN_END

Ints = NDArray[np.int32]
# Types of the arrays that every step takes: states, edges, classes, targets, pushes, returns, cells, work, context.
_TABLES = (
    "int32[:,::1], int32[:,::1], uint8[:,::1], int32[::1], int32[:,::1], int32[::1], int32[:,::1], int32[:,::1],"
    " int64[::1]"
)


@compiled(f"(int64, int64, {_TABLES})")
def step(
    byte: int,
    depth: int,
    states: Ints,
    edges: Ints,
    classes: NDArray[np.uint8],
    targets: Ints,
    pushes: Ints,
    returns: Ints,
    cells: Ints,
    work: Ints,
    context: NDArray[np.int64],
) -> int:
    """Consume one byte, from work[depth] to work[depth + 1]; return the status."""
    num_guards = 0
    state, top, free, counted = work[depth, STATE], work[depth, TOP], work[depth, FREE_CELL], work[depth, COUNTED]
    while True:
        if states[state, FILLED] == 0:
            context[WANTED] = state
            return NEEDS_STATE
        edge = states[state, HEAD]
        while edge >= 0 and edges[edge, 0] != byte:
            edge = edges[edge, 2]
        if edge >= 0:
            code = edges[edge, 1]
        else:
            code = targets[states[state, ROW] + classes[states[state, CLASSES], byte]]
        if code == DEAD:
            return REFUSED
        operation, argument = code >> SHIFT, code & ARGUMENT
        again = False
        if operation == GOTO:
            state = argument
        elif operation == STAY:
            again = False
        elif operation == COUNT or operation == CHECK:
            counted += operation == COUNT
            if counted > states[argument, MOST] or counted < states[argument, FEWEST]:
                return REFUSED
            state = argument
        elif operation == PUSH or operation == PUSH_BEFORE:
            level = cells[top, LEVEL] + 1
            if level > MAX_DEPTH:
                return REFUSED
            state = pushes[argument, 0]
            if level == pushes[argument, 2]:
                state = pushes[argument, 3]
                if state == UNKNOWN:
                    context[WANTED] = argument
                    return NEEDS_LIMITED
            cells[free, FRAME] = pushes[argument, 1]
            cells[free, BELOW] = top
            cells[free, LEVEL] = level
            cells[free, BEGIN] = context[OFFSET] + depth + (1 if operation == PUSH else 0)
            cells[free, SAVED] = counted
            top = free
            free += 1
            counted = 0
            again = operation == PUSH_BEFORE
        else:
            if cells[top, LEVEL] == 0:
                return REFUSED
            if operation == POP_COUNTED:
                while counted > pushes[argument, 0]:
                    argument += 1
                argument = pushes[argument, 1]
                if argument < 0:
                    return REFUSED
            frame = cells[top, FRAME]
            began = cells[top, BEGIN]
            level = cells[top, LEVEL]
            if context[BASE_DEPTH] - level + 1 > context[REACH]:
                context[REACH] = context[BASE_DEPTH] - level + 1
            if states[frame, RETURNS] < 0:
                state = frame
            elif states[frame, FLAGS] & GUARDED != 0 and (
                context[ALLOWS_REPEATED] == 0 or states[frame, FLAGS] & ONCE == 0
            ):
                if num_guards >= context[ANSWERED]:
                    context[WANTED] = frame
                    context[ENDED_RESULT] = argument
                    context[BEGAN] = began
                    context[AROUND] = cells[cells[top, BELOW], BEGIN]
                    # The text of the value ends with this byte, or before it if the byte is read again.
                    context[VALUE_END] = depth + (0 if operation == POP_BEFORE else 1)
                    return NEEDS_GUARD
                state = context[FIRST_ANSWER + num_guards]
                num_guards += 1
                if state == 0:
                    return REFUSED
            else:
                if states[frame, FLAGS] & ONCE != 0:
                    context[PASSED_ONCE] = 1
                state = UNKNOWN
                if argument < states[frame, NUM_RETURNS]:
                    state = returns[states[frame, RETURNS] + argument]
                if state == UNKNOWN:
                    context[WANTED] = frame
                    context[ENDED_RESULT] = argument
                    return NEEDS_RETURN
                if state == 0:
                    return REFUSED
            counted = cells[top, SAVED]
            if states[state, FLAGS] & COUNTS != 0:
                counted += 1
                if counted == states[state, COUNT_LIMIT]:
                    state = states[state, NEXT_STATE]
                    if state == 0:
                        return REFUSED
            top = cells[top, BELOW]
            again = operation == POP_BEFORE
        if not again:
            break
    work[depth + 1, STATE] = state
    work[depth + 1, TOP] = top
    work[depth + 1, FREE_CELL] = free
    work[depth + 1, COUNTED] = counted
    return DONE


@compiled(f"(uint8[::1], int32[:,::1], int32[::1], int32[::1], int64, int64, int32[::1], {_TABLES})")
def walk(
    data: NDArray[np.uint8],
    nodes: Ints,
    tokens: Ints,
    out: Ints,
    depth: int,
    tokens_of: int,
    codes: Ints,
    states: Ints,
    edges: Ints,
    classes: NDArray[np.uint8],
    targets: Ints,
    pushes: Ints,
    returns: Ints,
    cells: Ints,
    work: Ints,
    context: NDArray[np.int64],
) -> tuple[int, int]:
    """Set the bits of all tokens that are allowed from work[0], whose NEXT is -1; start or resume at row `depth`.

    Names that have come before are allowed again (`ONCE`). Returns the status, and the row to resume at. `tokens_of`
    says which tokens are considered, as `layout` lists. With ONLY_EDGES the first state is filled and has edges.
    """
    context[ALLOWS_REPEATED] = 1
    node, last = work[depth, NEXT], work[depth, LAST]
    known = np.int32(-1)  # the state whose row the next variables hold
    head, row, class_row, free, length, most = known, known, known, known, known, known
    while True:
        state, counted = work[depth, STATE], work[depth, COUNTED]
        if state != known:
            if states[state, FILLED] == 0:
                work[depth, NEXT] = node
                context[WANTED] = state
                return NEEDS_STATE, depth
            known, head, row, class_row = state, states[state, HEAD], states[state, ROW], states[state, CLASSES]
            free, length, most = states[state, FREE], states[state, LENGTH], states[state, MOST]
        if node < 0:
            # First visit of this row.
            node, last = nodes[~node, FIRST_CHILD], nodes[~node, LAST_CHILD]
            work[depth, LAST] = last
            if depth == 0 and head >= 0:
                codes[:] = -1
                edge = head
                while edge >= 0:
                    codes[edges[edge, 0]] = edges[edge, 1]
                    edge = edges[edge, 2]
        goes_down = False
        while node < last:
            byte = data[node]
            if byte == QUOTE and tokens_of == NO_QUOTES:
                node += 1
                continue
            code = np.int32(-1)
            if head >= 0:
                if depth == 0:
                    code = codes[byte]
                    if tokens_of == ONLY_EDGES:
                        if code < 0:
                            node += 1
                            continue
                        for number in range(nodes[node, FIRST_TOKEN], nodes[node, LAST_TOKEN]):
                            token = tokens[number]
                            out[token >> 5] &= ~(np.int32(1) << np.int32(token & 31))
                else:
                    edge = head
                    while edge >= 0 and edges[edge, 0] != byte:
                        edge = edges[edge, 2]
                    if edge >= 0:
                        code = edges[edge, 1]
            if code < 0:
                code = targets[row + classes[class_row, byte]]
            if code == DEAD:
                node += 1
                continue
            first, end = nodes[node, FIRST_TOKEN], nodes[node, LAST_TOKEN]
            if free != 0 and nodes[node, KINDS] & ~free == 0:
                # Every text of such bytes stays alive, if it may be so long.
                height = nodes[node, HEIGHT]
                if height <= length and height <= most - counted:
                    for number in range(first, end):
                        token = tokens[number]
                        out[token >> 5] |= np.int32(1) << np.int32(token & 31)
                    node += 1
                    continue
            # Most bytes lead from state to state without the stack: no call is needed.
            operation, target = code >> SHIFT, code & ARGUMENT
            if operation == GOTO or operation == STAY or operation == COUNT or operation == CHECK:
                after = counted
                if operation == STAY:
                    target = state
                elif operation != GOTO:
                    after += operation == COUNT
                    if after > states[target, MOST] or after < states[target, FEWEST]:
                        node += 1
                        continue
                work[depth + 1, STATE], work[depth + 1, COUNTED] = target, after
                work[depth + 1, TOP], work[depth + 1, FREE_CELL] = work[depth, TOP], work[depth, FREE_CELL]
            else:
                status = step(byte, depth, states, edges, classes, targets, pushes, returns, cells, work, context)
                if status != DONE and status != REFUSED:
                    work[depth, NEXT] = node
                    return status, depth
                context[ANSWERED] = 0
                if status == REFUSED:
                    node += 1
                    continue
            own_end = nodes[node, OWN_END]
            if first < own_end and states[work[depth + 1, STATE], FLAGS] & DEAD_END == 0:
                for number in range(first, own_end):
                    token = tokens[number]
                    out[token >> 5] |= np.int32(1) << np.int32(token & 31)
            if own_end < end:
                goes_down = True
                break
            node += 1
        if goes_down:
            work[depth, NEXT] = node + 1
            depth += 1
            node = ~node
        elif depth == 0:
            return DONE, 0
        else:
            depth -= 1
            node, last = work[depth, NEXT], work[depth, LAST]


@compiled(f"(uint8[::1], int64, {_TABLES})")
def advance(
    data: NDArray[np.uint8],
    at: int,
    states: Ints,
    edges: Ints,
    classes: NDArray[np.uint8],
    targets: Ints,
    pushes: Ints,
    returns: Ints,
    cells: Ints,
    work: Ints,
    context: NDArray[np.int64],
) -> tuple[int, int]:
    """Consume the bytes from index `at` on, starting from work[0]. Returns the status, and the index to resume at."""
    context[ALLOWS_REPEATED] = 0
    while at < len(data):
        status = step(data[at], at, states, edges, classes, targets, pushes, returns, cells, work, context)
        if status != DONE:
            return status, at
        context[ANSWERED] = 0
        at += 1
    return DONE, at


@compiled(f"(int64, int64, {_TABLES})")
def only_byte(
    byte: int,
    found: int,
    states: Ints,
    edges: Ints,
    classes: NDArray[np.uint8],
    targets: Ints,
    pushes: Ints,
    returns: Ints,
    cells: Ints,
    work: Ints,
    context: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Find the only byte that is allowed from work[0]: -1 for none, 256 for several.

    Tries the bytes from `byte` on; `found` is the result so far. Returns the status, the byte to resume at, the result.
    """
    context[ALLOWS_REPEATED] = 0
    while byte < 256:
        status = step(byte, 0, states, edges, classes, targets, pushes, returns, cells, work, context)
        if status != DONE and status != REFUSED:
            return status, byte, found
        context[ANSWERED] = 0
        if status == DONE:
            if found >= 0:
                return DONE, byte, 256
            found = byte
        byte += 1
    return DONE, byte, found
