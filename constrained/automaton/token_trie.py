"""Trie of the vocabulary's tokens in flat arrays.

The children of a node are one contiguous stretch of bytes: a walk refuses most of them without reading anything else,
and the nodes that it visits next lie near.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_char
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
NUM_TRIE_COLUMNS = 8  # a row is half a cache line


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

    @cached_property
    def packed_address(self) -> int:
        """Address of `packed`."""
        return address_of(self.packed)

    @classmethod
    def build(cls, ids: NDArray[np.int32], words: Sequence[bytes]) -> TokenTrie:
        """Build the trie of tokens and their words, which are sorted and not empty."""
        lengths = np.fromiter(map(len, words), np.int32, len(words))
        text = np.frombuffer(b"".join(words), np.uint8)
        start = np.cumsum(lengths, dtype=np.int32) - lengths
        num_new = lengths - _common_prefixes(text, start, lengths)  # nodes that a word adds; 0 for the same again
        num_nodes = 1 + int(num_new.sum())
        last = np.cumsum(num_new, dtype=np.int32)  # the node where each word ends, depth first
        own = np.zeros((num_nodes, NUM_TRIE_COLUMNS), np.int32)  # in depth-first order so far
        data, depth = np.zeros(num_nodes, np.uint8), np.zeros(num_nodes, np.int32)
        # A word's new nodes are numbered one after another, as its last bytes are.
        depth[1:] = np.arange(1, num_nodes, dtype=np.int32) - np.repeat(last - lengths, num_new)
        data[1:] = text[np.repeat(start, num_new) + depth[1:] - 1]
        num_ended = np.cumsum(np.bincount(last, minlength=num_nodes), dtype=np.int32)  # words that end here or before
        own[1:, FIRST_TOKEN], own[:, OWN_END], own[:, LAST_TOKEN] = num_ended[:-1], num_ended, num_ended
        own[1:, KINDS], own[1:, HEIGHT] = 1 << KIND[data[1:]].astype(np.int32), 1
        parent = np.zeros(num_nodes, np.int32)
        by_depth = np.argsort(depth, kind="stable").astype(np.int32)
        levels = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])
        for above, here in reversed(list(pairwise(levels))):
            begins = np.searchsorted(here, above)  # where the children of each node above begin in `here`
            counts = np.diff(begins, append=len(here))
            inner, first = above[counts > 0], begins[counts > 0]
            parent[here] = np.repeat(above, counts)
            own[above, LAST_CHILD] = counts
            own[inner, LAST_TOKEN] = np.maximum.reduceat(own[here, LAST_TOKEN], first)
            own[inner, KINDS] |= np.bitwise_or.reduceat(own[here, KINDS], first)
            own[inner, HEIGHT] = 1 + np.maximum.reduceat(own[here, HEIGHT], first)
        own[:, LAST_CHILD] = 1 + np.cumsum(own[:, LAST_CHILD])
        own[0, FIRST_CHILD], own[1:, FIRST_CHILD] = 1, own[:-1, LAST_CHILD]
        order = np.concatenate([[0], 1 + np.argsort(parent[1:], kind="stable")])
        return cls(data[order], own[order], ids, len(levels) - 1)


def addresses(*arrays: NDArray[Any]) -> NDArray[np.int64]:
    """Return (address, number of rows) of contiguous arrays, one after another. The caller keeps the arrays alive."""
    return np.array([n for array in arrays for n in (address_of(array), len(array))], np.int64)


def address_of(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array, which the caller keeps alive."""
    if array.size and array.flags.writeable:  # then there is a faster way than numpy's
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]
    return int(array.__array_interface__["data"][0])


def _common_prefixes(
    text: NDArray[np.uint8], start: NDArray[np.int32], lengths: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return how many leading bytes each word shares with the one before it."""
    common = np.zeros(len(lengths), np.int32)
    active = np.arange(1, len(lengths))
    for depth in range(int(lengths.max(initial=0))):
        active = active[np.minimum(lengths[active], lengths[active - 1]) > depth]
        active = active[text[start[active] + depth] == text[start[active - 1] + depth]]
        common[active] = depth + 1
    return common
