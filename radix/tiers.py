"""Device and host pages: allocation, eviction, copies between the tiers, and soft pins.

Copies are a log in the order of the decisions: the owner of the memory makes them one after the other, before it writes
anything that was decided later. So a page may be given away while a copy still has to read it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import NamedTuple

from .child_index import ParentNode
from .events import EventLog
from .eviction.heap import EvictionHeap
from .eviction.strategies import EvictionStrategy, Key
from .tree import RadixTree, TreeNode


class PagePool:
    """Pages [first, first + num_pages), each either free or taken by exactly one owner."""

    def __init__(self, num_pages: int, first: int = 0) -> None:
        self.num_pages = num_pages
        self._free = list(range(first + num_pages - 1, first - 1, -1))  # a stack: the page freed last is reused first
        self._taken: set[int] = set()
        self.note_freed: Callable[[Sequence[int]], None] | None = None

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> frozenset[int]:
        return frozenset(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Take `num_pages` free pages, which the caller has made sure of."""
        assert 0 <= num_pages <= len(self._free)
        at = len(self._free) - num_pages
        pages = self._free[at:]
        del self._free[at:]
        self._taken.update(pages)
        pages.reverse()
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Return pages to the pool. Raises AssertionError for a page that is free already."""
        num_left = len(self._taken) - len(pages)
        self._taken.difference_update(pages)
        assert len(self._taken) == num_left, f"some of the pages {list(pages)} are freed twice"
        self._free.extend(pages)
        if self.note_freed is not None:
            self.note_freed(pages)


class SoftPins:
    """Soft pins: prefixes that live programs are expected to request again, by owner.

    A soft pin is noted on the node where its prefix ends. As only leaves are evicted, the path to that node is kept
    with it. When the node is removed, the soft pin moves to its parent. When the node moves to the host, the parent
    gets it too, because the parent may now be a leaf of the device's part of the tree.
    """

    def __init__(self, tree: RadixTree, note_lost: Callable[[Hashable], None]) -> None:
        """`note_lost` is called with an owner when nothing of its prefix is left."""
        self._tree = tree
        self._nodes: dict[Hashable, set[TreeNode]] = {}
        self._note_lost = note_lost

    def add(self, owner: Hashable, node: TreeNode, rank: int) -> None:
        """Note a soft pin of `owner`, which has none, on `node`."""
        self._nodes[owner] = {node}
        self._note(node, owner, rank)

    def drop(self, owner: Hashable) -> set[TreeNode]:
        """Remove the owner's soft pin. Returns the nodes it was noted on, whose eviction keys may have fallen."""
        nodes = self._nodes.pop(owner, set())
        for node in nodes:
            assert node.soft_pins is not None
            del node.soft_pins[owner]
            if not node.soft_pins:
                node.soft_pins = None
        if self._tree.changed is not None:
            self._tree.changed.update(nodes)
        return nodes

    def copy_to(self, node: TreeNode, heir: ParentNode[TreeNode]) -> None:
        """Note the node's soft pins on `heir` as well, unless that is a root."""
        if not node.soft_pins or not isinstance(heir, TreeNode):
            return
        for owner, rank in node.soft_pins.items():
            self._nodes[owner].add(heir)
            self._note(heir, owner, rank)

    def move_to(self, node: TreeNode, heir: ParentNode[TreeNode]) -> None:
        """Move the soft pins of a removed node to `heir`. At a root they end."""
        self.copy_to(node, heir)
        for owner in node.soft_pins or ():
            nodes = self._nodes[owner]
            nodes.remove(node)
            if not nodes:
                del self._nodes[owner]
                self._note_lost(owner)
        node.soft_pins = None

    def nodes_of(self, owner: Hashable) -> frozenset[TreeNode]:
        """Return the nodes on which the owner's soft pin is noted."""
        return frozenset(self._nodes.get(owner, ()))

    def owners(self) -> list[Hashable]:
        return list(self._nodes)

    def _note(self, node: TreeNode, owner: Hashable, rank: int) -> None:
        if node.soft_pins is None:
            node.soft_pins = {}
        node.soft_pins[owner] = rank
        if self._tree.changed is not None:
            self._tree.changed.add(node)


class Copy(NamedTuple):
    """Copy the first `num_tokens` slots of page `source` to the start of page `target`."""

    source: int
    target: int
    num_tokens: int


@dataclass
class CacheStats:
    """Cumulative counters of a prefix cache."""

    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_host_hit_tokens: int = 0  # the part of num_hit_tokens that was on the host
    num_evicted_pages: int = 0  # dropped for want of room, from either tier
    num_demoted_pages: int = 0  # device to host
    num_promoted_pages: int = 0  # host to device


class Tiers:
    """Device pages [0, num_pages), host pages [num_pages, num_pages + num_host_pages).

    Eviction takes as many pages as are needed from the end of a leaf of the device's part of the tree. They are demoted
    to the host if there is one. The host makes room by dropping pages that the strategy would evict before them.
    """

    def __init__(
        self,
        tree: RadixTree,
        num_pages: int,
        num_host_pages: int,
        strategy: EvictionStrategy,
        stats: CacheStats,
        events: EventLog | None,
        note_lost: Callable[[Hashable], None] = lambda owner: None,
    ) -> None:
        self.device = PagePool(num_pages)
        self.host = PagePool(num_host_pages, first=num_pages)
        tickets = count()
        self.device_heap = EvictionHeap(strategy, tickets)
        self.host_heap = EvictionHeap(strategy, tickets)
        self.soft_pins = SoftPins(tree, note_lost)
        self.copies: list[Copy] = []
        self._tree = tree
        self._key = strategy.key
        self._stats = stats
        self._events = events

    @property
    def num_available(self) -> int:
        """Device pages that can be allocated now: free ones, and those that can be evicted."""
        return self.device.num_free + self._tree.num_device_pages - self._tree.num_pinned_pages

    def allocate(self, num_pages: int, keep: int | None = None) -> list[int]:
        """Take device pages, evicting as needed. `keep` is the first page of a node; that page is not evicted."""
        num_missing = num_pages - self.device.num_free
        kept: TreeNode | None = None
        while num_missing > 0:
            node = self.device_heap.pop()
            assert node is not None, "there are unpinned pages, but no evictable leaf"
            num_given = min(num_missing, len(node.pages) - (node.pages[0] == keep))
            if num_given == 0:
                kept = node
                continue
            num_missing -= num_given
            if self.host.num_pages:
                self._demote(node, num_given, keep)
            else:
                self._drop(node, num_given)
        if kept is not None:
            self.device_heap.offer(kept)
        return self.device.allocate(num_pages)

    def promote(self, node: TreeNode, pages: list[int]) -> None:
        """Copy a pinned node from the host to device pages. Its parent is on the device."""
        page_size = self._tree.page_size
        self.copies += [Copy(low, high, page_size) for low, high in zip(node.pages, pages, strict=True)]
        self._stats.num_promoted_pages += len(pages)
        self.move_up(node, pages)

    def move_up(self, node: TreeNode, pages: list[int]) -> None:
        """Move a node to device pages that hold its content, or will; free its host pages."""
        self.host_heap.withdraw(node)
        self.host.free(self._tree.move(node, pages))
        if self._events is not None:
            self._events.record_moved(node)

    def split(self, node: TreeNode, num_pages: int) -> TreeNode:
        """Split a node after `num_pages` pages. Returns the new upper node."""
        upper = self._tree.split(node, num_pages)
        if node.on_host:
            # The device's part of the path is soft-pinned through its deepest node.
            self.soft_pins.copy_to(node, upper)
        return upper

    def join(self, node: TreeNode) -> None:
        """Undo a split of an unpinned node, where no decision can tell the two parts apart."""
        if len(node.children) != 1 or node.ref_count:
            return
        (child,) = node.children.values()
        if (
            child.on_host == node.on_host
            and child.program_id == node.program_id
            and child.soft_pins == node.soft_pins
            and self._key(child) == self._key(node)
        ):
            self._tree.join(node)
            self.soft_pins.move_to(child, node)
            self.offer(node)

    def offer(self, node: TreeNode) -> None:
        """Add a node to its tier's eviction heap."""
        (self.host_heap if node.on_host else self.device_heap).offer(node)

    def remove_leaf(self, leaf: TreeNode) -> None:
        """Remove a leaf, and free its pages."""
        parent = leaf.parent
        self.soft_pins.move_to(leaf, parent)
        if self._events is not None:
            self._events.record_removed(leaf, len(leaf.pages))
        (self.host if leaf.on_host else self.device).free(self._tree.remove(leaf))
        if isinstance(parent, TreeNode):
            self.offer(parent)

    def _demote(self, node: TreeNode, num_pages: int, keep: int | None) -> None:
        """Move the node's last `num_pages` pages to the host, as far as there is room, and drop the others."""
        # What is below the node on the host must go before it does, whatever its order.
        order = (inf,) if node.children else self.host_heap.order(node)
        num_lost = num_pages - self._host_room(num_pages, order, keep)
        if num_lost:
            self._drop(node, num_lost)
        num_down = num_pages - num_lost
        if not num_down:
            return
        upper: TreeNode | None = None
        if num_down < len(node.pages):
            upper = self.split(node, len(node.pages) - num_down)
        self._move_down(node)
        if upper is not None:
            self.offer(upper)
        elif isinstance(node.parent, TreeNode):
            self.offer(node.parent)

    def _move_down(self, node: TreeNode) -> None:
        pages = self.host.allocate(len(node.pages))
        page_size = self._tree.page_size
        self.copies += [Copy(high, low, page_size) for high, low in zip(node.pages, pages, strict=True)]
        num_short = len(pages) * page_size - node.num_tokens
        if num_short:
            self.copies[-1] = self.copies[-1]._replace(num_tokens=page_size - num_short)
        self._stats.num_demoted_pages += len(pages)
        self.device_heap.withdraw(node)
        self.device.free(self._tree.move(node, pages))
        if self._events is not None:
            self._events.record_moved(node)
        self.soft_pins.copy_to(node, node.parent)
        # Pages demoted one by one would otherwise leave one node each.
        self.join(node)
        self.host_heap.offer(node)

    def _host_room(self, num_pages: int, order: Key, keep: int | None) -> int:
        """Make room for up to `num_pages` host pages by dropping pages that are not after `order`. Returns the number
        available."""
        kept: list[TreeNode] = []
        while self.host.num_free < num_pages and (leaf := self.host_heap.pop()) is not None:
            num_given = min(num_pages - self.host.num_free, len(leaf.pages) - (leaf.pages[0] == keep))
            if self.host_heap.order(leaf) > order or num_given == 0:
                kept.append(leaf)
                if num_given:
                    break
                continue
            self._drop(leaf, num_given)
        for leaf in kept:
            self.host_heap.offer(leaf)
        return min(num_pages, self.host.num_free)

    def _drop(self, leaf: TreeNode, num_pages: int) -> None:
        """Drop the leaf's last `num_pages` pages."""
        self._stats.num_evicted_pages += num_pages
        if num_pages == len(leaf.pages):
            self.remove_leaf(leaf)
            return
        if self._events is not None:
            self._events.record_removed(leaf, num_pages)
        (self.host if leaf.on_host else self.device).free(self._tree.truncate(leaf, num_pages))
        self.offer(leaf)
