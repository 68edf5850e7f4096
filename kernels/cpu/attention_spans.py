"""The keys that each token of a small step sees, as index arrays for the compiled attention loop.

A row's place p is the p-th key of its page table.

Legend: T tokens, R rows, L keys of the longest row, P pages of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arguments import RowSpan
from .compiled import Ints, compiled

Bits = NDArray[np.uint64]
NO_TREE = np.iinfo(np.int64).max
# Tokens of a step with rows of several. Beyond it, gathering keys pays: one product then serves all tokens of a row.
MAX_TOKENS = 32
_MAX_NODES = 64  # of a tree: bits of a word


class AttentionSpans(NamedTuple):
    """Places of its row that each token sees: those in [begin, end). From place `tree` on only those whose bits in
    `ancestors` are set, the lowest bit for place `tree`."""

    slots_RL: Ints  # slot of each place
    row_T: Ints
    begin_T: Ints
    end_T: Ints
    tree_T: Ints  # NO_TREE: the token is no node
    ancestors_T: Bits

    def for_tokens(self, own: slice) -> AttentionSpans:
        """Return the spans of some tokens."""
        slots_RL, *by_token = self
        return AttentionSpans(slots_RL, *(value_T[own] for value_T in by_token))


@compiled("void(int64[:,::1], int64, int64[:,::1])")
def find_slots(pages_RP: Ints, page_size: int, slots_RL: Ints) -> None:
    """Write the slot of each place of the rows."""
    R, L = slots_RL.shape
    for r in range(R):
        for place in range(0, L, page_size):
            first = pages_RP[r, place // page_size] * page_size
            for k in range(place, min(place + page_size, L)):
                slots_RL[r, k] = first + k - place


def spans_of_rows(rows: Sequence[RowSpan], page_size: int, window: int | None) -> AttentionSpans | None:
    """Return the spans of causal attention over `rows`, as `Ops.attention` defines it.

    None if the loop does not pay or cannot express the masks: too many tokens in rows of several, a tree of more nodes
    than a word has bits, or a window that a tree outgrows.
    """
    num_tokens = sum(row.num_tokens for row in rows)
    if num_tokens > max(MAX_TOKENS, len(rows)):
        return None
    for row in rows:
        if len(row.tree) > _MAX_NODES or (row.tree and window is not None and window <= len(row.tree)):
            return None
    ends_R = [row.first_position + row.num_tokens for row in rows]
    pages_RP = np.zeros((len(rows), max(len(row.pages) for row in rows)), dtype=np.int64)
    for pages_P, row in zip(pages_RP, rows, strict=True):
        pages_P[: len(row.pages)] = row.pages
    slots_RL = np.empty((len(rows), max(ends_R)), dtype=np.int64)
    find_slots(pages_RP, page_size, slots_RL)

    row_T = np.repeat(np.arange(len(rows)), [row.num_tokens for row in rows])
    end_T = np.concatenate([np.arange(row.first_position, end) for row, end in zip(rows, ends_R, strict=True)]) + 1
    position_T = end_T - 1
    tree_T = np.full(num_tokens, NO_TREE)
    ancestors_T = np.zeros(num_tokens, dtype=np.uint64)
    start = 0
    for row in rows:
        start += row.num_tokens
        if row.tree:
            bits, depths = _ancestors(row.tree)
            nodes = slice(start - len(row.tree), start)
            first = row.first_position + row.num_tokens - len(row.tree)
            tree_T[nodes], ancestors_T[nodes] = first, bits
            position_T[nodes] = first - 1 + np.array(depths)
    # The window is larger than the tree, so its first place lies before the tree and is a position.
    begin_T = np.zeros_like(end_T) if window is None else np.maximum(position_T + 1 - window, 0)
    return AttentionSpans(slots_RL, row_T, begin_T, end_T, tree_T, ancestors_T)


def _ancestors(tree: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Return for each node its ancestors and itself as bits, and its depth (1 for the children of -1)."""
    bits: list[int] = []
    depths: list[int] = []
    for node, parent in enumerate(tree):
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << node)
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return np.array(bits, dtype=np.uint64), depths
