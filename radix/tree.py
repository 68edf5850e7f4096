"""The radix tree of cached prefixes, one page of tokens per node. Knows pins; knows no policy and no pool.

A node's path from its root spells a prefix whose KV its pages hold. Only leaves may hold less than a page. Siblings
may share their first tokens: sequences that part inside a page have a page each, and a third one that follows either
for a while copies the part it shares (see `Match.boundary`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

Key = tuple[int, ...]


class Branch:
    """What nodes hang from: a node, or the root of a namespace."""

    __slots__ = ("children", "order")

    def __init__(self) -> None:
        self.children: dict[Key, Node] = {}
        self.order: list[Key] = []  # the children's keys, sorted: neighbours share the longest prefixes


class Root(Branch):
    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self.namespace = namespace


class Node(Branch):
    """One page of a cached prefix. `pins` counts the leases that need it; `last_used` is the cache's clock."""

    __slots__ = ("attached", "key", "last_used", "page", "parent", "pins", "queued")

    def __init__(self, key: Key, page: int, parent: Branch) -> None:
        super().__init__()
        self.key = key
        self.page = page
        self.parent = parent
        self.pins = 0
        self.last_used = 0
        self.attached = True  # False once removed from the tree
        self.queued = False  # whether the eviction heap has an entry for it

    @property
    def evictable(self) -> bool:
        return self.attached and self.pins == 0 and not self.children


@dataclass(frozen=True)
class Match:
    """The longest cached prefix: whole pages, then the first `boundary_tokens` of one more node's page."""

    nodes: list[Node]
    num_tokens: int  # all of it
    boundary: Node | None
    boundary_tokens: int

    def whole_pages(self) -> Match:
        return replace(self, num_tokens=self.num_tokens - self.boundary_tokens, boundary=None, boundary_tokens=0)


class RadixTree:
    """Prefixes by namespace. A pinned node's ancestors are pinned too: whoever pins, pins a whole path."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.num_nodes = 0
        self.num_pinned = 0
        self._roots: dict[str, Root] = {}

    @property
    def num_unpinned(self) -> int:
        """Nodes that can be removed, leaves first."""
        return self.num_nodes - self.num_pinned

    def roots(self) -> list[Root]:
        return list(self._roots.values())

    def nodes(self) -> Iterator[Node]:
        stack: list[Branch] = list(self._roots.values())
        while stack:
            children = stack.pop().children.values()
            yield from children
            stack.extend(children)

    def root(self, namespace: str) -> Root:
        """The root of a namespace; it exists as long as something hangs from it."""
        return self._roots.get(namespace) or Root(namespace)

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> Match:
        """The longest cached prefix of `tokens[:limit]`. Costs one look-up per page matched."""
        branch: Branch = self.root(namespace)
        nodes: list[Node] = []
        start = 0
        while start + self.page_size <= limit:
            node = branch.children.get(tuple(tokens[start : start + self.page_size]))
            if node is None:
                break
            nodes.append(node)
            branch = node
            start += self.page_size
        key = tuple(tokens[start : min(start + self.page_size, limit)])
        boundary, shared = _nearest(branch, key)
        return Match(nodes, start + shared, boundary, shared)

    def covering(self, branch: Branch, key: Key) -> Node | None:
        """A child whose key starts with `key`, itself included."""
        at = bisect_left(branch.order, key)
        if at < len(branch.order) and branch.order[at][: len(key)] == key:
            return branch.children[branch.order[at]]
        return None

    def covered(self, branch: Branch, key: Key) -> list[Node]:
        """Unpinned leaves next to `key` whose own keys are proper prefixes of it: nothing is lost without them."""
        found = []
        at = bisect_left(branch.order, key)
        while at > 0 and branch.order[at - 1] == key[: len(branch.order[at - 1])]:
            at -= 1
            node = branch.children[branch.order[at]]
            if node.evictable:
                found.append(node)
        return found

    def superseded(self, node: Node) -> bool:
        """Whether a sibling's key goes on where the node's ends. Sorted, such a sibling comes next."""
        order = node.parent.order
        after = bisect_left(order, node.key) + 1
        return after < len(order) and order[after][: len(node.key)] == node.key

    def insert(self, branch: Branch, key: Key, page: int) -> Node:
        node = Node(key, page, branch)
        if isinstance(branch, Root):
            self._roots[branch.namespace] = branch
        else:
            assert isinstance(branch, Node)
            assert len(branch.key) == self.page_size
            assert branch.attached
        self._attach(node)
        self.num_nodes += 1
        return node

    def lengthen(self, node: Node, key: Key) -> None:
        """The node's page holds more tokens now: `key` starts with the node's key."""
        assert node.attached
        assert key[: len(node.key)] == node.key
        self._detach(node)
        node.key = key
        self._attach(node)

    def remove(self, node: Node) -> None:
        assert node.evictable
        self._detach(node)
        node.attached = False
        self.num_nodes -= 1
        if isinstance(node.parent, Root) and not node.parent.children:
            del self._roots[node.parent.namespace]

    def pin(self, node: Node) -> None:
        assert node.attached
        node.pins += 1
        self.num_pinned += node.pins == 1

    def unpin(self, node: Node) -> None:
        assert node.pins > 0
        node.pins -= 1
        self.num_pinned -= node.pins == 0

    def _attach(self, node: Node) -> None:
        assert node.key not in node.parent.children
        node.parent.children[node.key] = node
        node.parent.order.insert(bisect_left(node.parent.order, node.key), node.key)

    def _detach(self, node: Node) -> None:
        del node.parent.children[node.key]
        del node.parent.order[bisect_left(node.parent.order, node.key)]


def _nearest(branch: Branch, key: Key) -> tuple[Node | None, int]:
    """The child that shares most of `key`'s first tokens, and how many. It is next to where `key` would be sorted."""
    at = bisect_left(branch.order, key)
    best: Node | None = None
    most = 0
    for neighbour in branch.order[max(at - 1, 0) : at + 1]:
        shared = next((i for i, (a, b) in enumerate(zip(key, neighbour, strict=False)) if a != b), None)
        shared = min(len(key), len(neighbour)) if shared is None else shared
        if shared > most:
            best, most = branch.children[neighbour], shared
    return best, most
