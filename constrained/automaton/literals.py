"""Sets of given texts as chains of states, built in one compiled loop: an object's keys, an enum's strings."""

from __future__ import annotations

import numpy as np

from ..regex.dfa import Dfa
from .actions import FILLED
from .tables import Tables

_NO_TABLE, _NO_CLASSES = np.zeros((1, 1), np.int32), np.zeros(256, np.uint8)


def literal_states(tables: Tables, texts: list[tuple[bytes, int]], base: int = 0, dfa: Dfa | None = None) -> int:
    """The first state of those that read one of the texts and then do its action, at its last byte.

    The texts are sorted, none is another's beginning. What is none of them is read as by the automaton, which is the
    block at `base`; without one it is refused.
    """
    data = b"".join(text for text, _ in texts)
    starts = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text, _ in texts], out=starts[1:])
    root = tables.new_states(len(data) + 1)
    tables.reserve_edges(len(data))
    from . import walk_kernel as kernel  # here, for it imports numba

    tables.num_edges, used = kernel.insert_texts(
        np.frombuffer(bytearray(data), np.uint8),  # the loop is compiled for what can be written to
        starts,
        np.array([action for _, action in texts], np.int32),
        tables.states,
        tables.edges,
        root,
        tables.num_edges,
        base,
        _NO_TABLE if dfa is None else dfa.table,
        _NO_CLASSES if dfa is None else dfa.class_of,
    )
    tables.states[root : root + used, FILLED] = 1
    # Those reserved and not used are as new.
    tables.num_states = root + used
    return root
