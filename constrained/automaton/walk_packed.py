"""Token steps and walks as single compiled calls with few arguments.

numba's dispatcher takes longer to unpack a dozen arrays than a step takes. So the arrays' addresses are packed into one
array of integers, which is rebuilt when a table has grown. `walk_kernel` has the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray

from ...loops import compiled
from . import walk_kernel
from .actions import DEAD_END, FLAGS, NUM_COLUMNS, NUM_PUSH_COLUMNS
from .layout import (
    ANSWERED,
    BASE_DEPTH,
    CONTEXT_SIZE,
    COUNTED,
    DONE,
    FREE_CELL,
    LEVEL,
    NEXT,
    NUM_CELL_COLUMNS,
    NUM_WORK_COLUMNS,
    OFFSET,
    PASSED_ONCE,
    REACH,
    REFUSED,
    STATE,
    TOP,
)
from .token_trie import NUM_TRIE_COLUMNS

Ints = NDArray[np.int32]
# Indices of the array of addresses: each array has its address and its number of rows.
STATES, _EDGES, _CLASSES, TARGETS, PUSHES, _RETURNS, _WORK, CONTEXT, CODES, _TEXT, STARTS = range(0, 22, 2)
NUM_ADDRESSES = 22
NUM_WALK_ARGUMENTS = 14


def _as_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))


_pointer_to: Any = types.CPointer
_POINTERS = {name: _pointer_to(getattr(types, name)) for name in ("int32", "int64", "uint8")}


def _to_int32(_: Any, address: Any) -> Any:
    return _POINTERS["int32"](address), _as_pointer


def _to_int64(_: Any, address: Any) -> Any:
    return _POINTERS["int64"](address), _as_pointer


def _to_uint8(_: Any, address: Any) -> Any:
    return _POINTERS["uint8"](address), _as_pointer


_int32s: Any = intrinsic(_to_int32)
_int64s: Any = intrinsic(_to_int64)
_bytes: Any = intrinsic(_to_uint8)


@compiled("(int64, int64, int64, int64, int64, int32[:,::1], int32[:,::1], int64[::1])")
def _start(
    state: int, top: int, free: int, counted: int, offset: int, cells: Ints, work: Ints, context: NDArray[np.int64]
) -> None:
    """Begin a step or a walk at a configuration."""
    work[0, STATE] = state
    work[0, TOP] = top
    work[0, FREE_CELL] = free
    work[0, COUNTED] = counted
    work[0, NEXT] = -1
    context[REACH] = 0
    context[BASE_DEPTH] = cells[top, LEVEL]
    context[OFFSET] = offset
    context[PASSED_ONCE] = 0
    context[ANSWERED] = 0


@compiled("(int64[::1],)")
def _tables(packed: NDArray[np.int64]) -> tuple[Ints, Ints, NDArray[np.uint8], Ints, Ints, Ints]:
    """Return the arrays of an automaton, as the loops take them."""
    return (
        carray(_int32s(packed[STATES]), (packed[STATES + 1], NUM_COLUMNS)),
        carray(_int32s(packed[_EDGES]), (packed[_EDGES + 1], 3)),
        carray(_bytes(packed[_CLASSES]), (packed[_CLASSES + 1], 256)),
        carray(_int32s(packed[TARGETS]), (packed[TARGETS + 1],)),
        carray(_int32s(packed[PUSHES]), (packed[PUSHES + 1], NUM_PUSH_COLUMNS)),
        carray(_int32s(packed[_RETURNS]), (packed[_RETURNS + 1],)),
    )


@compiled(f"({', '.join(['int64'] * NUM_WALK_ARGUMENTS)})")
def walk(
    state: int,
    top: int,
    free: int,
    counted: int,
    offset: int,
    depth: int,
    tokens_of: int,
    cells_address: int,
    num_cells: int,
    trie_address: int,
    base_address: int,
    out_address: int,
    num_words: int,
    packed_address: int,
) -> tuple[int, int]:
    """Write the mask at `base_address` (0: none), and the bits of the trie's tokens that are allowed.

    If `depth` is not negative, resume an interrupted walk at that row, of the same arguments. Returns the status and
    the row, as `walk_kernel.walk`.
    """
    packed = carray(_int64s(packed_address), (NUM_ADDRESSES,))
    trie = carray(_int64s(trie_address), (6,))
    out = carray(_int32s(out_address), (num_words,))
    work = carray(_int32s(packed[_WORK]), (packed[_WORK + 1], NUM_WORK_COLUMNS))
    context = carray(_int64s(packed[CONTEXT]), (CONTEXT_SIZE,))
    cells = carray(_int32s(cells_address), (num_cells, NUM_CELL_COLUMNS))
    if depth < 0:
        depth = 0
        if base_address == 0:
            out[:] = 0
        else:
            out[:] = carray(_int32s(base_address), (num_words,))
        _start(state, top, free, counted, offset, cells, work, context)
    return walk_kernel.walk(
        carray(_bytes(trie[0]), (trie[1],)),
        carray(_int32s(trie[2]), (trie[3], NUM_TRIE_COLUMNS)),
        carray(_int32s(trie[4]), (trie[5],)),
        out,
        depth,
        tokens_of,
        carray(_int32s(packed[CODES]), (256,)),
        *_tables(packed),
        cells,
        work,
        context,
    )


@compiled(f"({', '.join(['int64'] * 10)})")
def advance(
    token: int,
    at: int,
    state: int,
    top: int,
    free: int,
    counted: int,
    offset: int,
    cells_address: int,
    num_cells: int,
    packed_address: int,
) -> tuple[int, int, int, int]:
    """Consume the bytes of a token from a configuration; if `at` is not -1, resume an interrupted step at that byte.

    Returns the four fields of the new configuration, or -1 - status and the byte to resume at. The context holds the
    request of an interrupted step, as `walk_kernel.advance` leaves it.
    """
    packed = carray(_int64s(packed_address), (NUM_ADDRESSES,))
    tables = _tables(packed)
    work = carray(_int32s(packed[_WORK]), (packed[_WORK + 1], NUM_WORK_COLUMNS))
    context = carray(_int64s(packed[CONTEXT]), (CONTEXT_SIZE,))
    cells = carray(_int32s(cells_address), (num_cells, NUM_CELL_COLUMNS))
    starts = carray(_int64s(packed[STARTS]), (packed[STARTS + 1],))
    text = carray(_bytes(packed[_TEXT]), (packed[_TEXT + 1],))
    if at < 0:
        at = 0
        _start(state, top, free, counted, offset, cells, work, context)
    first, last = starts[token], starts[token + 1]
    status, at = walk_kernel.advance(
        text[first:last],
        at,
        *tables,
        cells,
        work,
        context,
    )
    if status != DONE:
        return -1 - status, at, 0, 0
    end = last - first
    if tables[0][work[end, STATE], FLAGS] & DEAD_END != 0:
        return -1 - REFUSED, at, 0, 0
    return work[end, STATE], work[end, TOP], work[end, FREE_CELL], work[end, COUNTED]


@compiled("(int64[:,::1], int64[:,::1])")
def walk_all(rows: NDArray[np.int64], results: NDArray[np.int64]) -> None:
    """Run one walk for each row, which has the arguments of `walk`, and write its status and depth."""
    for number in range(len(rows)):
        row = rows[number]
        status, depth = walk(
            row[0],
            row[1],
            row[2],
            row[3],
            row[4],
            row[5],
            row[6],
            row[7],
            row[8],
            row[9],
            row[10],
            row[11],
            row[12],
            row[13],
        )
        results[number, 0] = status
        results[number, 1] = depth
