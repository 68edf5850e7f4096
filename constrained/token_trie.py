"""Tokens as a trie in flat arrays, depth first, so that a walk goes forward through memory and skips what is refused.

Knows bytes and token ids; no automaton.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .byte_kinds import KIND

BYTE, END, FIRST_TOKEN, DEPTH, KINDS, DEEPEST = range(6)  # columns of `nodes`
NUM_COLUMNS = 6


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """N nodes in depth-first order, the root (depth 0) first, and one sentinel after the last.

    nodes[n] is the byte that leads to n, the node after n's subtree, the first of its tokens, and its depth: node n is
    the end of tokens[nodes[n, FIRST_TOKEN]:nodes[n + 1, FIRST_TOKEN]]. KINDS is the set of the kinds of bytes that lead
    to n and to what is in its subtree, DEEPEST the largest depth in it.
    """

    nodes: NDArray[np.int32]  # [N + 1, 6]
    tokens: NDArray[np.int32]  # [T]
    max_depth: int

    @cached_property
    def packed(self) -> NDArray[np.int64]:
        """Where `nodes` and `tokens` lie, and how many there are of each: [4]. For compiled code with few arguments."""
        return addresses(self.nodes, self.tokens)

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
        last = np.cumsum(num_new)  # the node where each word ends
        nodes = np.zeros((num_nodes + 1, NUM_COLUMNS), np.int32)
        owner = np.repeat(np.arange(len(words)), num_new)
        nodes[1:-1, DEPTH] = np.arange(1, num_nodes) - (last - lengths)[owner]
        text = np.frombuffer(b"".join(words), np.uint8)
        start = np.cumsum(lengths) - lengths
        nodes[1:-1, BYTE] = text[start[owner] + nodes[1:-1, DEPTH] - 1]
        nodes[:, FIRST_TOKEN] = np.searchsorted(last, np.arange(num_nodes + 1))
        depth = nodes[:, DEPTH]
        for level in range(int(depth.max()) + 1):
            at = np.flatnonzero(depth[:-1] == level)
            bounds = np.append(np.flatnonzero(depth[:-1] <= level), num_nodes)
            nodes[at, END] = bounds[np.searchsorted(bounds, at, side="right")]
        nodes[1:-1, KINDS] = 1 << KIND[nodes[1:-1, BYTE]].astype(np.int32)
        nodes[:, DEEPEST] = depth
        for level in range(int(depth.max()), 1, -1):
            at = np.flatnonzero(depth[:-1] == level)
            above = np.flatnonzero(depth[:-1] == level - 1)
            above = above[np.searchsorted(above, at) - 1]  # the last one before is the node's parent
            np.bitwise_or.at(nodes[:, KINDS], above, nodes[at, KINDS])
            np.maximum.at(nodes[:, DEEPEST], above, nodes[at, DEEPEST])
        return cls(nodes, np.array(ids, np.int32)[order].astype(np.int32), int(depth.max()))


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
