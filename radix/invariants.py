"""What must hold of a prefix cache between any two operations, checked the slow way. For tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .cache import Lease, PrefixCache
from .tree import Branch, Node


def check_invariants(cache: PrefixCache, live_leases: Sequence[Lease]) -> None:
    """Raises AssertionError unless every page has one owner, every pin a lease, and every leaf its way out.

    `live_leases` are all leases of the cache that have not been released.
    """
    nodes = list(cache.tree.nodes())
    _check_pages(cache, nodes, live_leases)
    _check_pins(cache, nodes, live_leases)
    for root in cache.tree.roots():
        assert root.children, "a namespace without prefixes is forgotten"
        _check_branch(root)
    for node in nodes:
        _check_branch(node)
        _check_node(cache, node)
    for lease in live_leases:
        _check_lease(cache, lease)
    assert len(cache.eviction) <= 2 * len(nodes) + 64 * 3, "the heap outgrows the tree"


def _check_pages(cache: PrefixCache, nodes: list[Node], leases: Sequence[Lease]) -> None:
    free = cache.pool.free_pages()
    assert len(free) == cache.num_free
    assert len(nodes) == cache.num_cached
    owned = [page for lease in leases for page in lease.pages[len(lease.nodes) :]]
    everywhere = sorted([*free, *(node.page for node in nodes), *owned])
    assert everywhere == list(range(cache.num_pages)), "each page is free, in the tree, or one lease's own"


def _check_pins(cache: PrefixCache, nodes: list[Node], leases: Sequence[Lease]) -> None:
    pins = Counter(id(node) for lease in leases for node in lease.nodes)
    assert {id(node): node.pins for node in nodes if node.pins} == dict(pins)
    assert cache.tree.num_pinned == len(pins)


def _check_branch(branch: Branch) -> None:
    assert branch.order == sorted(branch.children), "the sorted keys are the children's"
    for key, child in branch.children.items():
        assert child.key == key
        assert child.parent is branch


def _check_node(cache: PrefixCache, node: Node) -> None:
    assert node.attached
    assert 0 < len(node.key) <= cache.page_size
    assert len(node.key) == cache.page_size or not node.children, "only leaves are partial"
    if isinstance(node.parent, Node) and node.pins:
        assert node.parent.pins, "the way to a pinned node is pinned"
    if node.evictable:
        assert node.queued, "an unpinned leaf can be evicted"
        assert not cache.tree.superseded(node), "no page is kept for what a sibling holds as well"


def _check_lease(cache: PrefixCache, lease: Lease) -> None:
    assert lease.live
    assert [node.page for node in lease.nodes] == lease.pages[: len(lease.nodes)]
    assert all(len(node.key) == cache.page_size for node in lease.nodes[:-1])
    parents: list[Branch] = [cache.tree.root(lease.namespace), *lease.nodes]
    assert all(node.parent is parent for node, parent in zip(lease.nodes, parents, strict=False)), "nodes are a path"
