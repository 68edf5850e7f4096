"""Invariants of a prefix cache that hold between any two operations, checked by brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ramiform.radix.cache import Lease, PrefixCache
from ramiform.radix.child_index import ParentNode
from ramiform.radix.packed_tokens import TOKEN_BYTES
from ramiform.radix.tree import TreeNode


def check_invariants(cache: PrefixCache, live_leases: Sequence[Lease]) -> None:
    """Raise AssertionError unless every page has one owner, every pin a lease, and every evictable leaf a heap entry.

    `live_leases` are all leases of the cache that have not been released.
    """
    nodes = list(cache.tree.nodes())
    assert len(nodes) == cache.tree.num_nodes
    _check_pages(cache, nodes, live_leases)
    _check_holds(cache, nodes, live_leases)
    for root in cache.tree.roots():
        assert root.children, "an empty namespace is still in the tree"
        _check_branch(root)
    for node in nodes:
        _check_branch(node)
        _check_node(cache, node)
    _check_claims(cache, nodes)
    _check_states(cache, nodes, live_leases)
    _check_windows(cache, nodes, live_leases)
    for lease in live_leases:
        _check_lease(cache, lease)
    for heap in (cache.tiers.device_heap, cache.tiers.host_heap):
        assert len(heap) <= 2 * len(nodes) + 64 * 3, "the heap is much larger than the tree"


def path_from_root(node: TreeNode) -> list[TreeNode]:
    """The nodes from the root's child down to `node`, which is the last one."""
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
    assert everywhere == list(range(cache.num_pages)), "a page is not exactly one of free, in the tree, leased"
    assert sorted([*host.free_pages(), *on_host]) == list(range(cache.num_pages, num_all))
    assert (len(on_device), len(on_host)) == (cache.num_cached, cache.num_host_cached)
    assert cache.tiers.num_available == cache.num_pages - len(owned) - sum(
        len(node.pages) for node in nodes if node.ref_count and not node.on_host
    )


def _check_holds(cache: PrefixCache, nodes: list[TreeNode], leases: Sequence[Lease]) -> None:
    ref_count = Counter(id(lease.node) for lease in leases if lease.node is not None)
    ref_count.update(id(node.parent) for node in nodes if node.ref_count and isinstance(node.parent, TreeNode))
    counted = {id(node): node.ref_count for node in nodes if node.ref_count}
    assert counted == dict(ref_count), "a reference count is not the number of leases and pinned children"
    assert not any(node.on_host for node in nodes if node.ref_count), "a pinned node is on the host"


def _check_branch(branch: ParentNode[TreeNode]) -> None:
    assert branch.keys() == sorted(branch.children), "the sorted keys differ from the children's"
    assert branch.num_device_children == sum(not child.on_host for child in branch.children.values())
    for key, child in branch.children.items():
        assert child.key == key
        assert child.parent is branch


def _check_node(cache: PrefixCache, node: TreeNode) -> None:
    page_bytes = cache.page_size * TOKEN_BYTES
    assert node.attached
    assert node.key == node.run[:page_bytes]
    assert len(node.pages) == -(-len(node.run) // page_bytes) > 0
    assert len(node.run) % page_bytes == 0 or not node.children, "an inner node ends inside a page"
    parent, unsaved = node.parent, cache.tree.unsaved
    num_whole = len(node.run) // page_bytes
    assert len(node.saved_keys) <= num_whole
    assert unsaved is None or node in unsaved or len(node.saved_keys) == num_whole, "a page will never be saved"
    if isinstance(parent, TreeNode):
        assert not node.saved_keys or len(parent.saved_keys) == len(parent.pages), "a page is saved before its prefix"
        assert node.on_host or not parent.on_host, "a device node is below a host node"
        assert parent.ref_count or not node.ref_count, "a pinned node is below an unpinned one"
    if node.evictable:
        assert node.ticket is not None, "an evictable leaf is not in the heap"
        assert not cache.tree.is_covered(node), "a sibling holds everything that this leaf holds"


def _check_claims(cache: PrefixCache, nodes: list[TreeNode]) -> None:
    soft_pins = cache.tiers.soft_pins
    assert all(node.soft_pins is None or node.soft_pins for node in nodes)
    noted = {owner: frozenset(n for n in nodes if owner in (n.soft_pins or ())) for owner in soft_pins.owners()}
    assert noted == {owner: soft_pins.nodes_of(owner) for owner in noted}
    assert all(noted.values()), "a soft pin is on no node"
    assert all(owner in noted for node in nodes for owner in node.soft_pins or ())
    for node in nodes:
        if node.on_host and node.soft_pins and isinstance(node.parent, TreeNode):
            pins = (node.parent.soft_pins or {}).items()
            assert node.soft_pins.items() <= pins, "a soft pin of a host node is missing on its parent"


def _check_states(cache: PrefixCache, nodes: list[TreeNode], leases: Sequence[Lease]) -> None:
    if cache.states is None:
        assert not any(node.checkpoints for node in nodes)
        return
    kept = {slot: node for node in nodes for slot in node.checkpoints.values()}
    own = [
        slot
        for lease in leases
        if lease.states
        for slot in (lease.states.slot, *(s for _, s, _ in lease.states.planned))
    ]
    everywhere = sorted([*cache.states._free, *kept, *own])
    assert everywhere == list(range(cache.states.num_slots)), "a slot is not exactly one of free, a checkpoint, leased"
    assert kept == cache.states._weak | cache.states._strong, "a checkpoint is not known by its node"
    assert all(0 < offset <= node.num_tokens for node in nodes for offset in node.checkpoints)


def _check_windows(cache: PrefixCache, nodes: list[TreeNode], leases: Sequence[Lease]) -> None:
    windows = cache.windows
    if windows is None:
        return
    first = windows._num_first
    held = Counter(
        page
        for lease in leases
        for page in (*lease.pages[: min(first, lease.window_start)], *lease.pages[lease.window_start :])
    )
    assert held == windows._holds, "a window page is not held as often as leases look at it"
    assert not windows._weak.keys() & windows._strong.keys()
    assert windows._of.keys() == windows._holds.keys() | windows._weak.keys() | windows._strong.keys()
    everywhere = sorted([*windows._pool.free_pages(), *windows._of.values()])
    assert everywhere == list(range(windows.num_pages)), "a window page is not exactly one of free, a page's"
    cached = {page for node in nodes for page in node.pages}
    assert windows._weak.keys() | windows._strong.keys() <= cached, "a window page that nobody holds is not cached"


def _check_lease(cache: PrefixCache, lease: Lease) -> None:
    assert lease.live
    nodes = path_from_root(lease.node) if lease.node is not None else []
    assert [page for node in nodes for page in node.pages] == lease.pages[: cache.pages_for(lease.num_published)]
    assert sum(node.num_tokens for node in nodes) == lease.num_published
    assert not nodes or nodes[0].parent is cache.tree.root(lease.namespace)
