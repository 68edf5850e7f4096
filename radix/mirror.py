"""Follows the shape of a radix tree for viewers: a copy of nodes, sizes of subtrees, and the choice of what to show.

While it follows, the tree notes changed nodes in `RadixTree.changed`, and nothing else. The work is done in generators
that yield after every few nodes, so that the owner of the tree can do it in slices between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from .child_index import ParentNode
from .tree import RadixTree, TreeNode, TreeRoot

NODES_PER_YIELD = 32


class MirrorNode:
    """Copy of a node, or of a namespace's root. `num_nodes` and `num_tokens` count its whole subtree."""

    __slots__ = ("alive", "children", "num_nodes", "num_tokens", "number", "own_tokens", "parent", "source")

    def __init__(self, number: int, source: TreeNode | TreeRoot, parent: MirrorNode | None) -> None:
        self.number = number
        self.source = source
        self.parent = parent
        self.children: set[MirrorNode] | None = None
        self.own_tokens = 0
        self.num_nodes = 0
        self.num_tokens = 0
        self.alive = True

    def add(self, num_nodes: int, num_tokens: int) -> None:
        """Add to the counts of this node and all above it."""
        node: MirrorNode | None = self
        while node is not None:
            node.num_nodes += num_nodes
            node.num_tokens += num_tokens
            node = node.parent

    def attach_to(self, parent: MirrorNode) -> None:
        self.parent = parent
        if parent.children is None:
            parent.children = set()
        parent.children.add(self)
        parent.add(self.num_nodes, self.num_tokens)

    def detach(self) -> MirrorNode:
        """Leave the parent, and return it. The node keeps its own counts."""
        parent = self.parent
        assert parent is not None
        assert parent.children is not None
        parent.children.discard(self)
        parent.add(-self.num_nodes, -self.num_tokens)
        return parent


class TreeMirror:
    """Mirror of `tree`. A node keeps its number for life, also while nobody follows.

    `watches` are sets to which nodes are added that came or changed; their owners empty them.
    """

    def __init__(self, tree: RadixTree) -> None:
        self.nodes: dict[int, MirrorNode] = {}
        self.roots: set[MirrorNode] = set()
        self.in_use: set[MirrorNode] = set()  # leased or soft-pinned
        self.watches: list[set[MirrorNode]] = []
        self.version = 0  # grows with every change
        self._tree = tree
        self._numbers = count(1)

    @property
    def follows(self) -> bool:
        return self._tree.changed is not None

    def follow(self) -> Iterator[None]:
        """Begin to follow, and copy the tree. It may change between the slices."""
        self._tree.changed = set()
        stack: list[ParentNode[TreeNode]] = list(self._tree.roots())
        visited = _slices()
        while stack:
            for node in list(stack.pop().children.values()):
                self._refresh(node)
                if node.children:
                    stack.append(node)
                if visited():
                    yield

    def catch_up(self) -> Iterator[None]:
        """Apply the changes that the tree has noted until now."""
        changed, visited = self._tree.changed, _slices()
        assert changed is not None
        for _ in range(len(changed)):
            if not changed:
                return
            self._refresh(changed.pop())
            if visited():
                yield

    def stop(self) -> None:
        """Stop following, and forget the copy."""
        self._tree.changed = None
        self.nodes, self.roots, self.in_use = {}, set(), set()
        for watch in self.watches:
            watch.clear()

    def select(self, root: MirrorNode | None, limit: int) -> Generator[None, None, list[MirrorNode]]:
        """Choose up to `limit` nodes below `root`, itself included: those in use, then the largest subtrees.

        With a node come all above it, before it. Without `root`, chooses among all namespaces.
        """
        chosen: dict[MirrorNode, None] = {}
        visited = _slices()
        if self._num_below(root) > limit:  # else everything is chosen
            for node in list(self.in_use):
                way = [step for step in path_to(node, root) if step not in chosen]
                if len(chosen) + len(way) <= limit:
                    chosen.update(dict.fromkeys(way))
                if visited():
                    yield
        # A subtree is never larger than the one above it, so a parent comes out of the heap before its children.
        heap = [(-top.num_tokens, top.number, top) for top in ([root] if root is not None else self.roots)]
        heapify(heap)
        largest: list[int] = []  # tokens of the `limit` largest subtrees that were met: smaller ones are not chosen
        while heap and len(chosen) < limit:
            node = heappop(heap)[2]
            chosen[node] = None
            for child in node.children or ():
                if child.alive and (len(largest) < limit or child.num_tokens > largest[0]):
                    heappush(heap, (-child.num_tokens, child.number, child))
                    (heappush if len(largest) < limit else heapreplace)(largest, child.num_tokens)
                if visited():
                    yield
        return list(chosen)

    def _num_below(self, root: MirrorNode | None) -> int:
        return root.num_nodes + 1 if root is not None else sum(top.num_nodes + 1 for top in self.roots)

    def _refresh(self, source: TreeNode) -> None:
        """Bring the copy of a node up to date."""
        self.version += 1
        if not source.attached:
            if source.number in self.nodes:
                self._remove(self.nodes[source.number])
            return
        node = self.nodes.get(source.number) if source.number is not None else None
        if node is None:
            node = self._copy(source)
        parent = self._copy(source.parent)
        if node.parent is not parent:
            before = node.detach()
            node.attach_to(parent)
            self._tidy(before)
        num_more = source.num_tokens - node.own_tokens
        if num_more:
            node.own_tokens += num_more
            node.add(0, num_more)
        if source.ref_count or source.soft_pins:
            self.in_use.add(node)
        else:
            self.in_use.discard(node)
        for watch in self.watches:
            watch.add(node)

    def _copy(self, source: ParentNode[TreeNode]) -> MirrorNode:
        """Return the copy of a node or root, which is made, with those of the nodes above it, if there is none."""
        missing: list[TreeNode | TreeRoot] = []
        node: MirrorNode | None = None
        branch = source
        while node is None:
            assert isinstance(branch, TreeNode | TreeRoot)
            node = self.nodes.get(branch.number) if branch.number is not None else None
            if node is None:
                missing.append(branch)
                if isinstance(branch, TreeRoot):
                    break
                branch = branch.parent
        for branch in reversed(missing):
            if branch.number is None:
                branch.number = next(self._numbers)
            parent, node = node, MirrorNode(branch.number, branch, None)
            self.nodes[branch.number] = node
            if parent is None:
                self.roots.add(node)
            else:
                assert isinstance(branch, TreeNode)
                node.own_tokens = node.num_tokens = branch.num_tokens
                node.num_nodes = 1
                node.attach_to(parent)
            for watch in self.watches:
                watch.add(node)
        assert node is not None
        return node

    def _remove(self, node: MirrorNode) -> None:
        # A node below it is removed too, or stands elsewhere now: its own change takes it away, soon.
        node.add(-1, -node.own_tokens)
        node.own_tokens = 0
        node.alive = False
        del self.nodes[node.number]
        self.in_use.discard(node)
        self._tidy(node)

    def _tidy(self, node: MirrorNode) -> None:
        """Unlink the node and those above it as far as they are gone and nothing is below them."""
        while not node.children:
            if isinstance(node.source, TreeRoot):
                # A namespace without prefixes leaves the tree; it gets a new root when it comes back.
                node.alive = False
                self.roots.discard(node)
                self.nodes.pop(node.number, None)
                return
            if node.alive:
                return
            node = node.detach()


def _slices() -> Callable[[], bool]:
    """Return a function that says at every NODES_PER_YIELD-th call that it is time to yield."""
    num_calls = 0

    def visited() -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls % NODES_PER_YIELD == 0

    return visited


def path_to(node: MirrorNode, root: MirrorNode | None) -> list[MirrorNode]:
    """Return the nodes from `root`, or the namespace's root, down to `node`; empty if `root` is not above it."""
    way = [node]
    while way[-1] is not root:
        parent = way[-1].parent
        if parent is None:
            return [] if root is not None else way[::-1]
        way.append(parent)
    return way[::-1]
