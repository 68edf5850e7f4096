"""A tree of draft tokens, as a value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class DraftTree(msgspec.Struct, frozen=True):
    """Draft tokens that may follow a row's last committed token.

    `parents[i]` is an index into `tokens`, or -1 for a child of that last token. Parents come before their children,
    and siblings have different tokens. `scores[i]` is the log-probability, under the draft, that everything up to node
    i is accepted: at most 0, and at most the parent's. A grammar leaves no choice but the nodes in `forced` after their
    parents, whose scores they have: they are no guesses, and need no place among the likeliest.
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]
    forced: frozenset[int] = frozenset()

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
    def num_guesses(self) -> int:
        return len(self) - len(self.forced)

    @property
    def levels(self) -> list[int]:
        """Number of guesses on the path to each node, itself included."""
        found: list[int] = []
        for node, parent in enumerate(self.parents):
            found.append((node not in self.forced) + (found[parent] if parent >= 0 else 0))
        return found

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

    def find(self, tokens: Sequence[int], at: int = -1) -> int | None:
        """Return the node that `tokens` lead to from node `at`; None if they leave the tree."""
        for token in tokens:
            children = (node for node, parent in enumerate(self.parents) if parent == at and self.tokens[node] == token)
            if (child := next(children, None)) is None:
                return None
            at = child
        return at

    def after(self, tokens: Sequence[int]) -> DraftTree | None:
        """Return the subtree that is left when `tokens` were accepted; None if there is none."""
        at = self.find(tokens)
        if at is None or at < 0:
            return None if at is None else self
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
            frozenset(new[node] for node in self.forced if node in kept),
        )

    def best(self, num_tokens: int) -> DraftTree:
        """Return the `num_tokens` likeliest guesses, and the forced nodes after them. No child without its parent."""
        if num_tokens >= self.num_guesses:
            return self
        # No child outscores its parent, and of equals the earlier one ranks first: no parent is left out.
        guesses = (node for node in range(len(self)) if node not in self.forced)
        ranked = sorted(guesses, key=lambda node: (-self.scores[node], node))
        return self.only([*ranked[: max(0, num_tokens)], *self.forced])

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
            frozenset(new[node] for node in self.forced if node in new),
        )


class MergedTree:
    """Nodes of a draft tree. The same token after the same node is one node, with the highest of its scores."""

    def __init__(self, tree: DraftTree | None = None) -> None:
        self._nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self._scores: list[float] = []
        if tree is not None:
            self.add_tree(tree)

    def __len__(self) -> int:
        return len(self._scores)

    def add(self, parent: int, token: int, score: float) -> int:
        """Add a token after node `parent`, and return its node."""
        node = self._nodes.setdefault((parent, token), len(self._scores))
        if node == len(self._scores):
            self._scores.append(score)
        self._scores[node] = max(self._scores[node], score)
        return node

    def add_tree(self, tree: DraftTree) -> None:
        """Add the nodes of a tree of guesses."""
        at = {-1: -1}
        for node, (token, parent, score) in enumerate(zip(tree.tokens, tree.parents, tree.scores, strict=True)):
            at[node] = self.add(at[parent], token, score)

    def tree(self) -> DraftTree:
        """Return the tree as it is now."""
        return DraftTree([token for _, token in self._nodes], [parent for parent, _ in self._nodes], [*self._scores])


def depths(parents: Sequence[int]) -> list[int]:
    """Return the depth of each node, 1 for those without a parent (-1). Parents come before their children."""
    found: list[int] = []
    for parent in parents:
        found.append(1 + (found[parent] if parent >= 0 else 0))
    return found


def is_chain(parents: Sequence[int]) -> bool:
    """Return True if each node is the child of the previous one."""
    return all(parent == node - 1 for node, parent in enumerate(parents))
