"""Who will ask for which prefix again. Knows claimants and nodes; knows nothing of eviction or of what a claimant is.

A claim is noted on the node where its prefix ends. As only leaves go, what leads there is kept with it. When the node
goes, the claim is noted on its parent; when it moves to the host, on its parent too, which may be the device's leaf
now.
"""

from __future__ import annotations

from collections.abc import Hashable

from .child_index import ParentNode
from .tree import TreeNode


class SoftPins:
    def __init__(self) -> None:
        self._nodes: dict[Hashable, set[TreeNode]] = {}

    def add(self, claimant: Hashable, node: TreeNode, rank: int) -> None:
        self._nodes[claimant] = {node}
        self._note(node, claimant, rank)

    def drop(self, claimant: Hashable) -> set[TreeNode]:
        """Returns the nodes it was noted on; their keys may have fallen."""
        nodes = self._nodes.pop(claimant, set())
        for node in nodes:
            assert node.claims is not None
            del node.claims[claimant]
            if not node.claims:
                node.claims = None
        return nodes

    def share(self, node: TreeNode, heir: ParentNode[TreeNode]) -> None:
        """Note the node's claims on `heir` as well, unless that is a root."""
        if not node.claims or not isinstance(heir, TreeNode):
            return
        for claimant, rank in node.claims.items():
            self._nodes[claimant].add(heir)
            self._note(heir, claimant, rank)

    def leave(self, node: TreeNode, heir: ParentNode[TreeNode]) -> None:
        """The node is gone, and `heir` gets its claims. At a root they end."""
        self.share(node, heir)
        for claimant in node.claims or ():
            nodes = self._nodes[claimant]
            nodes.remove(node)
            if not nodes:
                del self._nodes[claimant]
        node.claims = None

    def of(self, claimant: Hashable) -> frozenset[TreeNode]:
        return frozenset(self._nodes.get(claimant, ()))

    def claimants(self) -> list[Hashable]:
        return list(self._nodes)

    @staticmethod
    def _note(node: TreeNode, claimant: Hashable, rank: int) -> None:
        if node.claims is None:
            node.claims = {}
        node.claims[claimant] = rank
