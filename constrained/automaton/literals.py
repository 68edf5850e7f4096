"""Chains of states for sets of given texts, such as member names or enumerated strings, built in a compiled loop."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..regex.dfa import Dfa
from .actions import ARGUMENT, DEAD, FILLED, GOTO, HEAD, action
from .tables import Tables

_NO_TABLE, _NO_CLASSES, _NO_STATES = np.zeros((1, 1), np.int32), np.zeros(256, np.uint8), np.zeros(0, np.bool_)

LARGE = 1 << 17  # bytes of texts: for more, states are reserved by what the texts do not share


def literal_states(
    tables: Tables,
    texts: list[tuple[bytes, int]],
    base: int = 0,
    dfa: Dfa | None = None,
    begins: NDArray[np.bool_] | None = None,
) -> int:
    """Add states that read one of the texts and do its action at its last byte. Returns the number of the first.

    The texts are sorted, and none is a prefix of another. Other texts are read by the automaton `dfa`, whose block is
    at `base`; without one they are refused. If the block counts characters, `begins` are the states of `dfa` from which
    one begins. The action `DEAD` refuses a text. Returns 0 if every text is refused.
    """
    data = b"".join(text for text, _ in texts)
    starts = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text, _ in texts], out=starts[1:])
    root = tables.new_states(1 + (len(data) if len(data) < LARGE else _num_new_bytes(texts)))
    tables.reserve_edges(len(data))
    counts = np.zeros(len(data) + 1, np.int32)
    from . import literal_kernel  # here, because it imports numba

    tables.num_edges, used = literal_kernel.insert_texts(
        np.frombuffer(bytearray(data), np.uint8),  # the loop is compiled for writable arrays
        starts,
        np.array([action for _, action in texts], np.int32),
        tables.states,
        tables.edges,
        root,
        tables.num_edges,
        base,
        _NO_TABLE if dfa is None else dfa.table,
        _NO_CLASSES if dfa is None else dfa.class_of,
        _NO_STATES if begins is None else begins,
        counts,
    )
    tables.states[root : root + used, FILLED] = 1
    # States that were reserved but not used are given back.
    tables.num_states = root + used
    if any(action == DEAD for _, action in texts):
        arrays = tables.states, tables.edges, tables.classes, tables.targets, tables.pushes
        if not literal_kernel.trim_texts(*arrays, root, used, counts):
            return 0
    return root


def without_text(tables: Tables, root: int, text: bytes) -> int | None:
    """Add states that read the texts from `root` on except one of them, and share all others. None if none is left.

    The states are those of `literal_states` without other texts.
    """
    path = [root]
    for byte in text[:-1]:
        path.append(_edges(tables, path[-1])[byte] & ARGUMENT)
    below: int | None = None
    for state, byte in zip(reversed(path), reversed(text), strict=True):
        edges = _edges(tables, state)
        if below is None:
            del edges[byte]
        else:
            edges[byte] = action(GOTO, below)
        below = None
        if edges:
            below = tables.new_states(1)
            tables.set_edges(below, edges)
            tables.states[below, FILLED] = 1
    return below


def _edges(tables: Tables, state: int) -> dict[int, int]:
    found: dict[int, int] = {}
    edge = tables.states.item(state, HEAD)
    while edge >= 0:
        byte, code, edge = tables.edges[edge].tolist()
        found[byte] = code
    return found


def _num_new_bytes(texts: list[tuple[bytes, int]]) -> int:
    """Return the number of bytes after the beginning that each of the sorted texts shares with the one before it."""
    count, previous = 0, b""
    for text, _ in texts:
        common = 0
        while common < len(text) and text[: common + 1] == previous[: common + 1]:
            common += 1
        count += len(text) - common
        previous = text
    return count
