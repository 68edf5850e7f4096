"""Tokens as a trie in flat arrays: what may follow a text is one stretch of bytes, most of which a walk refuses without
looking at anything else, and what follows that lies near.

Knows bytes and token ids; no automaton.
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

# Columns of `nodes`. The children of a node are those from FIRST_CHILD on, before LAST_CHILD, sorted by byte.
# tokens[FIRST_TOKEN:OWN_END] end at the node, tokens[FIRST_TOKEN:LAST_TOKEN] there or in its subtree. KINDS is the set
# of the kinds of bytes that lead to the node and to what is in its subtree, HEIGHT how many bytes lead from its parent
# to the deepest of these.
FIRST_CHILD, LAST_CHILD, FIRST_TOKEN, OWN_END, LAST_TOKEN, KINDS, HEIGHT = range(7)
NUM_COLUMNS = 8  # a row is half a line of the cache


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """N nodes: the root, then the children of each node in one stretch, these stretches depth first. data[n] is the
    byte that leads to n."""

    data: NDArray[np.uint8]  # [N]
    nodes: NDArray[np.int32]  # [N, 8]
    tokens: NDArray[np.int32]  # [T], sorted by their bytes
    max_depth: int

    @cached_property
    def packed(self) -> NDArray[np.int64]:
        """Where the arrays lie, and how many rows each has: [6]. For compiled code with few arguments."""
        return addresses(self.data, self.nodes, self.tokens)

    @classmethod
    def build(cls, tokens: Sequence[bytes | None], kept: Iterable[int] | None = None) -> TokenTrie:
        """Of all tokens that are not None or empty, or those of them that are `kept`."""
        ids = [token for token in (range(len(tokens)) if kept is None else kept) if tokens[token]]
        words = [tokens[token] or b"" for token in ids]
        order = sorted(range(len(ids)), key=words.__getitem__)
        words = [words[number] for number in order]
        lengths = np.array([len(word) for word in words], np.int64)
        common = _common_prefixes(words, lengths)
        num_new = lengths - common  # nodes that each word adds; none when it equals the one before
        num_nodes = 1 + int(num_new.sum())
        last = np.cumsum(num_new)  # the node where each word ends, depth first
        owner = np.repeat(np.arange(len(words)), num_new)
        depth = np.zeros(num_nodes, np.int64)
        depth[1:] = np.arange(1, num_nodes) - (last - lengths)[owner]
        text = np.frombuffer(b"".join(words), np.uint8)
        start = np.cumsum(lengths) - lengths
        first_token = np.searchsorted(last, np.arange(num_nodes + 1))
        own = np.zeros((num_nodes, NUM_COLUMNS), np.int32)  # depth first so far
        own[:, FIRST_TOKEN], own[:, OWN_END], own[:, LAST_TOKEN] = first_token[:-1], first_token[1:], first_token[1:]
        data = np.zeros(num_nodes, np.uint8)
        data[1:] = text[start[owner] + depth[1:] - 1]
        own[1:, KINDS], own[1:, HEIGHT] = 1 << KIND[data[1:]].astype(np.int32), 1
        parent = np.zeros(num_nodes, np.int64)
        levels = [np.flatnonzero(depth == level) for level in range(int(depth.max()) + 1)]
        for above, here in reversed(list(pairwise(levels))):
            parents = parent[here] = above[np.searchsorted(above, here) - 1]  # the last one before is it
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
    """Of contiguous arrays, each with its number of rows. Whoever uses them keeps the arrays alive."""
    return np.array([n for array in arrays for n in (array.__array_interface__["data"][0], len(array))], np.int64)


def _common_prefixes(words: Sequence[bytes], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes each word shares with the one before it."""
    common = np.zeros(len(words), np.int64)
    text = np.frombuffer(b"".join(words), np.uint8)
    start = np.cumsum(lengths) - lengths
    active = np.arange(1, len(words))
    for depth in range(int(lengths.max(initial=0))):
        active = active[np.minimum(lengths[active], lengths[active - 1]) > depth]
        active = active[text[start[active] + depth] == text[start[active - 1] + depth]]
        common[active] = depth + 1
    return common
