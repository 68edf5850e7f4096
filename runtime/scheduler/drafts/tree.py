"""A tree of draft tokens, as a value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class DraftTree(msgspec.Struct, frozen=True):
    """Draft tokens that may follow a row's last committed token.

    `parents[i]` is an index into `tokens`, or -1 for a child of that last token. Parents come before their children,
    and siblings have different tokens. `scores[i]` is the log-probability, under the draft, that everything up to node
    i is accepted: at most 0, and at most the parent's.
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], scores: Sequence[float] | None = None) -> DraftTree:
        """Make a chain. Without scores, each token is certain."""
        count = len(tokens)
        return cls(list(tokens), list(range(-1, count - 1)), [0.0] * count if scores is None else list(scores))

    @property
    def depths(self) -> list[int]:
        """Depth of each node; a child of the last committed token has 1."""
        return depths(self.parents)

    @property
    def ancestors(self) -> list[int]:
        """Ancestors of each node as a bit set: bit j is set if node j is an ancestor of it, or the node itself."""
        bits: list[int] = []
        for node, parent in enumerate(self.parents):
            bits.append((bits[parent] if parent >= 0 else 0) | 1 << node)
        return bits

    def path(self, node: int) -> list[int]:
        """Return the tokens from the first one after the committed ones to `node`; none for -1."""
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def after(self, tokens: Sequence[int]) -> DraftTree | None:
        """Return the subtree that is left when `tokens` were accepted; None if there is none."""
        at = -1
        for token in tokens:
            children = (node for node, parent in enumerate(self.parents) if parent == at and self.tokens[node] == token)
            if (child := next(children, None)) is None:
                return None
            at = child
        if at < 0:
            return self
        new = {at: -1}
        for node, parent in enumerate(self.parents):
            if parent in new:
                new[node] = len(new) - 1
        kept = [node for node in new if node != at]
        if not kept:
            return None
        return DraftTree(
            [self.tokens[node] for node in kept],
            [new[self.parents[node]] for node in kept],
            [self.scores[node] - self.scores[at] for node in kept],
        )

    def best(self, num_tokens: int) -> DraftTree:
        """Return the `num_tokens` likeliest nodes. No child without its parent."""
        if num_tokens >= len(self):
            return self
        # No child outscores its parent, and of equals the earlier one ranks first: no parent is left out.
        ranked = sorted(range(len(self)), key=lambda node: (-self.scores[node], node))
        return self.only(ranked[: max(0, num_tokens)])

    def only(self, nodes: Sequence[int]) -> DraftTree:
        """Return the given nodes, in the tree's order. A node whose parent is left out is left out too."""
        chosen = frozenset(nodes)
        new = {-1: -1}
        for node, parent in enumerate(self.parents):
            if node in chosen and parent in new:
                new[node] = len(new) - 1
        kept = [node for node in new if node >= 0]
        return DraftTree(
            [self.tokens[node] for node in kept],
            [new[self.parents[node]] for node in kept],
            [self.scores[node] for node in kept],
        )


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of each node, 1 for those without a parent (-1). Parents come before their children."""
    found: list[int] = []
    for parent in parents:
        found.append(1 + (found[parent] if parent >= 0 else 0))
    return found


def is_chain(parents: Sequence[int]) -> bool:
    """Return True if each node is the child of the previous one."""
    return all(parent == node - 1 for node, parent in enumerate(parents))
