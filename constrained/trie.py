"""The vocabulary's tokens as a trie in flat arrays, walked level by level beside an automaton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dfa import DEAD, Dfa, ranges


@dataclass(frozen=True, eq=False)
class TokenTrie:
    """N nodes, the root first, level by level, children side by side. T tokens, sorted by their node."""

    byte: NDArray[np.uint8]  # [N] the byte that leads to the node
    first_child: NDArray[np.int64]  # [N + 1] children of n: nodes [first_child[n], first_child[n + 1])
    tokens: NDArray[np.int64]  # [T] token ids
    first_token: NDArray[np.int64]  # [N + 1] tokens that end at n: tokens[first_token[n]:first_token[n + 1]]

    @classmethod
    def build(cls, tokens: Sequence[bytes | None]) -> TokenTrie:
        """Of all tokens that are not None or empty."""
        ids = sorted((token for token, data in enumerate(tokens) if data), key=lambda token: tokens[token] or b"")
        words = [tokens[token] or b"" for token in ids]
        text = np.frombuffer(b"".join(words), np.uint8)
        lengths = np.array([len(word) for word in words], np.int64)
        offsets = np.cumsum(lengths) - lengths
        node = np.zeros(len(ids), np.int64)  # where each token has come to
        active = np.arange(len(ids))
        parents, byte_levels, num_nodes, depth = [np.array([-1])], [np.zeros(1, np.uint8)], 1, 0
        while len(active):
            parent, byte = node[active], text[offsets[active] + depth]
            is_new = np.ones(len(active), np.bool_)  # tokens are sorted: equal prefixes are neighbours
            is_new[1:] = (np.diff(parent) != 0) | (np.diff(byte.astype(np.int16)) != 0)
            node[active] = num_nodes + np.cumsum(is_new) - 1
            parents.append(parent[is_new])
            byte_levels.append(byte[is_new])
            num_nodes += int(is_new.sum())
            depth += 1
            active = active[lengths[active] > depth]
        order = np.argsort(node, kind="stable")
        numbers = np.arange(num_nodes + 1)
        return cls(
            byte=np.concatenate(byte_levels),
            first_child=np.searchsorted(np.concatenate(parents), numbers),
            tokens=np.array(ids, np.int64)[order],
            first_token=np.searchsorted(node[order], numbers),
        )

    def walk(self, dfa: Dfa, state: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The tokens that lead on from `state`, and the states they lead to."""
        nodes, states = np.array([0], np.int64), np.array([state], np.int32)
        all_nodes, all_states = [], []
        while len(nodes):
            first, end = self.first_child[nodes], self.first_child[nodes + 1]
            children = ranges(first, end)
            after = dfa.table[np.repeat(states, end - first), dfa.class_of[self.byte[children]]]
            kept = after != DEAD
            nodes, states = children[kept], after[kept]
            all_nodes.append(nodes)
            all_states.append(states)
        nodes, states = np.concatenate(all_nodes), np.concatenate(all_states)
        first, end = self.first_token[nodes], self.first_token[nodes + 1]
        return self.tokens[ranges(first, end)], np.repeat(states, end - first)
