"""Encoding of automata: from characters to the bytes of UTF-8 or of a JSON string, in one vectorised step.

State q over characters becomes state q over bytes. Inside a character a state is a pair of the decoder's state and the
targets of the classes that are still possible; equal pairs are one state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..budget import INTERPRETED, CompileBudget
from .byte_decoder import ByteDecoder, Encoding, byte_decoder
from .char_dfa import CharDfa
from .dfa import DEAD, Dfa


def byte_dfa(chars: CharDfa, encoding: Encoding, budget: CompileBudget | None = None) -> Dfa:
    """Accept the encodings of the texts that `chars` accepts. Raises GrammarError beyond the budget."""
    read = byte_decoder(chars.alphabet, encoding)
    budget = budget or CompileBudget()
    num_states = chars.num_states
    # The decoder is built from intervals. Inside characters, states are compared by all targets that are possible.
    different = sum(map(len, set(read.leaves)))
    budget.check(num_states, (16 * len(chars.alphabet.starts) + num_states * different // 4) * INTERPRETED)
    budget.check(num_states, 8 * num_states * len(read.leaves))
    inner, sources, readers = _inner_states(chars, read)
    budget.check(num_states + len(sources), (num_states + len(sources)) * read.table.shape[1])
    sources = np.concatenate([np.arange(num_states), sources])
    readers = np.concatenate([np.zeros(num_states, np.int64), readers])
    following = read.table[readers]  # [states, byte classes]
    rows = np.where(
        following < 0,
        chars.table[sources[:, None], np.maximum(-1 - following, 0)],
        inner[sources[:, None], np.maximum(following, 0)],
    )
    accepting = np.concatenate([chars.accepting, np.zeros(len(rows) - num_states, np.bool_)])
    return Dfa(rows, read.class_of, accepting)


def _inner_states(chars: CharDfa, read: ByteDecoder) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Number the states inside characters.

    Returns the number for each (state of `chars`, state of the decoder), 0 for dead: int32[S, N]; and for each number
    the two states of a representative pair.
    """
    inner = np.zeros((chars.num_states, len(read.leaves)), np.int32)
    groups: dict[tuple[int, ...], list[int]] = {}
    for state, leaves in enumerate(read.leaves[1:], 1):
        if leaves:
            groups.setdefault(leaves, []).append(state)
    count = chars.num_states
    sources: list[int] = []
    readers: list[int] = []
    for leaves, states in groups.items():
        targets = np.ascontiguousarray(chars.table[:, list(leaves)])
        rows = targets.view(f"V{targets.itemsize * targets.shape[1]}")[:, 0].tolist()
        known: dict[bytes, int] = {}  # first the row of the dead state, which reaches nothing
        numbers = np.array([known.setdefault(row, len(known)) for row in rows], np.int32)
        representatives = np.unique(numbers, return_index=True)[1][1:].tolist()
        for state in states:
            inner[:, state] = np.where(numbers > 0, numbers - 1 + count, DEAD)
            count += len(representatives)
            sources += representatives
            readers += [state] * len(representatives)
    return inner, np.array(sources, np.int64), np.array(readers, np.int64)
