"""What must hold of a prefix cache between any two operations, checked the slow way. For tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from .cache import Lease, PrefixCache
from .child_index import ParentNode
from .packed_tokens import TOKEN_BYTES
from .tree import TreeNode


def check_invariants(cache: PrefixCache, live_leases: Sequence[Lease]) -> None:
    """Raises AssertionError unless every page has one owner, every pin a lease, and every leaf its way out.

    `live_leases` are all leases of the cache that have not been released.
    """
    nodes = list(cache.tree.nodes())
    assert len(nodes) == cache.tree.num_nodes
    _check_pages(cache, nodes, live_leases)
    _check_holds(cache, nodes, live_leases)
    for root in cache.tree.roots():
        assert root.children, "a namespace without prefixes is forgotten"
        _check_branch(root)
    for node in nodes:
        _check_branch(node)
        _check_node(cache, node)
    _check_claims(cache, nodes)
    for lease in live_leases:
        _check_lease(cache, lease)
    for heap in (cache.tiers.device_heap, cache.tiers.host_heap):
        assert len(heap) <= 2 * len(nodes) + 64 * 3, "the heap outgrows the tree"


def path_from_root(node: TreeNode) -> list[TreeNode]:
    """The node's way from its root, itself included."""
    way = [node]
    while isinstance(way[-1].parent, TreeNode):
        way.append(way[-1].parent)
    return way[::-1]


def _check_pages(cache: PrefixCache, nodes: list[TreeNode], leases: Sequence[Lease]) -> None:
    device, host = cache.tiers.device, cache.tiers.host
    on_device = [page for node in nodes if not node.on_host for page in node.pages]
    on_host = [page for node in nodes if node.on_host for page in node.pages]
    owned = [page for lease in leases for page in lease.pages[cache.pages_for(lease.num_published) :]]
    num_all = cache.num_pages + cache.num_host_pages
    everywhere = sorted([*device.free_pages(), *on_device, *owned])
    assert everywhere == list(range(cache.num_pages)), "each page is free, in the tree, or one lease's own"
    assert sorted([*host.free_pages(), *on_host]) == list(range(cache.num_pages, num_all))
    assert (len(on_device), len(on_host)) == (cache.num_cached, cache.num_host_cached)
    assert cache.num_available == cache.num_pages - len(owned) - sum(
        len(node.pages) for node in nodes if node.holds and not node.on_host
    )


def _check_holds(cache: PrefixCache, nodes: list[TreeNode], leases: Sequence[Lease]) -> None:
    holds = Counter(id(lease.node) for lease in leases if lease.node is not None)
    holds.update(id(node.parent) for node in nodes if node.holds and isinstance(node.parent, TreeNode))
    assert {id(node): node.holds for node in nodes if node.holds} == dict(holds), "holds are leases and held children"
    assert not any(node.on_host for node in nodes if node.holds), "what is held is on the device"


def _check_branch(branch: ParentNode[TreeNode]) -> None:
    assert branch.keys() == sorted(branch.children), "the sorted keys are the children's"
    assert branch.num_device_children == sum(not child.on_host for child in branch.children.values())
    for key, child in branch.children.items():
        assert child.key == key
        assert child.parent is branch


def _check_node(cache: PrefixCache, node: TreeNode) -> None:
    page_bytes = cache.page_size * TOKEN_BYTES
    assert node.attached
    assert node.key == node.run[:page_bytes]
    assert len(node.pages) == -(-len(node.run) // page_bytes) > 0
    assert len(node.run) % page_bytes == 0 or not node.children, "only a leaf's last page is unfinished"
    parent = node.parent
    if isinstance(parent, TreeNode):
        assert node.on_host or not parent.on_host, "the way to a device node is on the device"
        assert parent.holds or not node.holds, "the way to a pinned node is pinned"
    if node.evictable:
        assert node.ticket is not None, "an unpinned leaf can be evicted"
        assert not cache.tree.superseded(node), "no page is kept for what a sibling holds as well"


def _check_claims(cache: PrefixCache, nodes: list[TreeNode]) -> None:
    claims = cache.tiers.claims
    assert all(node.claims is None or node.claims for node in nodes)
    noted = {claimant: frozenset(n for n in nodes if claimant in (n.claims or ())) for claimant in claims.claimants()}
    assert noted == {claimant: claims.of(claimant) for claimant in noted}
    assert all(noted.values()), "a claim that is noted nowhere is forgotten"
    assert all(claimant in noted for node in nodes for claimant in node.claims or ())
    for node in nodes:
        if node.on_host and node.claims and isinstance(node.parent, TreeNode):
            assert node.claims.items() <= (node.parent.claims or {}).items(), "the device's part is claimed, too"


def _check_lease(cache: PrefixCache, lease: Lease) -> None:
    assert lease.live
    nodes = path_from_root(lease.node) if lease.node is not None else []
    assert [page for node in nodes for page in node.pages] == lease.pages[: cache.pages_for(lease.num_published)]
    assert sum(node.num_tokens for node in nodes) == lease.num_published
    assert not nodes or nodes[0].parent is cache.tree.root(lease.namespace)
