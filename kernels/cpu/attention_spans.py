"""What the tokens of a small step see, from its rows.

Legend: T tokens, R rows, L keys of the longest row, P pages of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..reference.attention_layout import RowSpan
from .attention import NO_TREE, AttentionSpans, find_slots

MAX_TOKENS = (
    32  # of a step with rows of several; beyond it products of keys that tokens share are worth their gathering
)
_MAX_NODES = 64  # of a tree: bits of a word


def spans_of_rows(rows: Sequence[RowSpan], page_size: int, window: int | None) -> AttentionSpans | None:
    """As `Ops.attention` has it. None: too many tokens in rows of several, or a tree that a word's bits, or places as
    positions in a window, do not tell."""
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
    # A window's first place lies before the tree: it is larger than that.
    begin_T = np.zeros_like(end_T) if window is None else np.maximum(position_T + 1 - window, 0)
    return AttentionSpans(slots_RL, row_T, begin_T, end_T, tree_T, ancestors_T)


def _ancestors(tree: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Of each node: its ancestors and itself as bits, and how deep it is."""
    bits: list[int] = []
    depths: list[int] = []
    for node, parent in enumerate(tree):
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << node)
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return np.array(bits, dtype=np.uint64), depths
