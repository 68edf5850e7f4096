"""Trie of the vocabulary's tokens in flat arrays.

The children of a node are one contiguous stretch of bytes: a walk refuses most of them without reading anything else,
and the nodes that it visits next lie near.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..regex.dfa import KIND

# Columns of `nodes`. The children of a node are the nodes from FIRST_CHILD on, before LAST_CHILD, sorted by byte.
# tokens[FIRST_TOKEN:OWN_END] end at the node, tokens[FIRST_TOKEN:LAST_TOKEN] there or in its subtree. KINDS is the set
# of the byte kinds on the edges to the node and inside its subtree; HEIGHT is the number of bytes from its parent to
# the deepest node below.
FIRST_CHILD, LAST_CHILD, FIRST_TOKEN, OWN_END, LAST_TOKEN, KINDS, HEIGHT = range(7)
NUM_COLUMNS = 8  # a row is half a cache line


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """A trie of N nodes and T tokens: the root, then the children of each node in one stretch, depth first."""

    data: NDArray[np.uint8]  # [N], the byte on the edge to each node
    nodes: NDArray[np.int32]  # [N, 8]
    tokens: NDArray[np.int32]  # [T], sorted by their bytes
    max_depth: int

    @cached_property
    def packed(self) -> NDArray[np.int64]:
        """Addresses and row counts of the arrays, for compiled code: int64[6]."""
        return addresses(self.data, self.nodes, self.tokens)

    @classmethod
    def build(cls, tokens: Sequence[bytes | None], kept: Iterable[int] | None = None) -> TokenTrie:
        """Build the trie of the tokens that are neither None nor empty; if `kept` is given, only of these ids."""
        ids = [token for token in (range(len(tokens)) if kept is None else kept) if tokens[token]]
        words = [tokens[token] or b"" for token in ids]
        order = sorted(range(len(ids)), key=words.__getitem__)
        words = [words[number] for number in order]
        lengths = np.array([len(word) for word in words], np.int64)
        common = _common_prefixes(words, lengths)
        num_new = lengths - common  # number of nodes that each word adds; 0 if it equals the one before
        num_nodes = 1 + int(num_new.sum())
        last = np.cumsum(num_new)  # the node where each word ends, depth first
        owner = np.repeat(np.arange(len(words)), num_new)
        depth = np.zeros(num_nodes, np.int64)
        depth[1:] = np.arange(1, num_nodes) - (last - lengths)[owner]
        text = np.frombuffer(b"".join(words), np.uint8)
        start = np.cumsum(lengths) - lengths
        first_token = np.searchsorted(last, np.arange(num_nodes + 1))
        own = np.zeros((num_nodes, NUM_COLUMNS), np.int32)  # in depth-first order so far
        own[:, FIRST_TOKEN], own[:, OWN_END], own[:, LAST_TOKEN] = first_token[:-1], first_token[1:], first_token[1:]
        data = np.zeros(num_nodes, np.uint8)
        data[1:] = text[start[owner] + depth[1:] - 1]
        own[1:, KINDS], own[1:, HEIGHT] = 1 << KIND[data[1:]].astype(np.int32), 1
        parent = np.zeros(num_nodes, np.int64)
        levels = [np.flatnonzero(depth == level) for level in range(int(depth.max()) + 1)]
        for above, here in reversed(list(pairwise(levels))):
            parents = parent[here] = above[np.searchsorted(above, here) - 1]  # the nearest earlier node
            np.add.at(own[:, LAST_CHILD], parents, 1)
            np.maximum.at(own[:, LAST_TOKEN], parents, own[here, LAST_TOKEN])
            np.bitwise_or.at(own[:, KINDS], parents, own[here, KINDS])
            np.maximum.at(own[:, HEIGHT], parents, own[here, HEIGHT] + 1)
        own[:, LAST_CHILD] = 1 + np.cumsum(own[:, LAST_CHILD])
        own[:, FIRST_CHILD] = np.concatenate([[1], own[:-1, LAST_CHILD]])
        order_of_nodes = np.concatenate([[0], 1 + np.argsort(parent[1:], kind="stable")])
        return cls(
            data[order_of_nodes],
            own[order_of_nodes],
            np.array(ids, np.int32)[order].astype(np.int32),
            len(levels) - 1,
        )


def addresses(*arrays: NDArray[Any]) -> NDArray[np.int64]:
    """Return (address, number of rows) of contiguous arrays, one after another. The caller keeps the arrays alive."""
    return np.array([n for array in arrays for n in (array.__array_interface__["data"][0], len(array))], np.int64)


def _common_prefixes(words: Sequence[bytes], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many leading bytes each word shares with the one before it."""
    common = np.zeros(len(words), np.int64)
    text = np.frombuffer(b"".join(words), np.uint8)
    start = np.cumsum(lengths) - lengths
    active = np.arange(1, len(words))
    for depth in range(int(lengths.max(initial=0))):
        active = active[np.minimum(lengths[active], lengths[active - 1]) > depth]
        active = active[text[start[active] + depth] == text[start[active - 1] + depth]]
        common[active] = depth + 1
    return common
