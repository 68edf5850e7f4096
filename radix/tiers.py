"""The pages of the device and of the host: who gives them up, and what is copied where. Knows nothing of leases.

Copies are a log, in the order of the decisions: whoever owns the memory makes them one after the other, before
anything is written that was decided later. So a page may be promised to somebody else while a copy still has to read
it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from .child_index import ParentNode
from .events import EventLog
from .eviction import EvictionHeap
from .strategies import EvictionStrategy
from .tree import RadixTree, TreeNode


class PagePool:
    """Pages [first, first + num_pages), each either free or taken by exactly one owner."""

    def __init__(self, num_pages: int, first: int = 0) -> None:
        self.num_pages = num_pages
        self._free = list(range(first + num_pages - 1, first - 1, -1))  # a stack: what is given back last goes first
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_pages(self) -> frozenset[int]:
        return frozenset(self._free)

    def take(self, num_pages: int) -> list[int]:
        assert 0 <= num_pages <= len(self._free)
        at = len(self._free) - num_pages
        pages = self._free[at:]
        del self._free[at:]
        self._taken.update(pages)
        pages.reverse()
        return pages

    def give_back(self, pages: Sequence[int]) -> None:
        num_left = len(self._taken) - len(pages)
        self._taken.difference_update(pages)
        assert len(self._taken) == num_left, f"of the pages {list(pages)} some are given back twice"
        self._free.extend(pages)


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


class Copy(NamedTuple):
    """The first `num_tokens` slots of page `source` are needed at the start of page `target` too."""

    source: int
    target: int
    num_tokens: int


@dataclass
class CacheStats:
    """Totals since start."""

    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_host_hit_tokens: int = 0  # of them, those that were on the host
    num_evicted_pages: int = 0  # forgotten for want of room, on whichever tier they were last
    num_demoted_pages: int = 0  # device to host
    num_promoted_pages: int = 0  # host to device


class Tiers:
    """Device pages [0, num_pages), host pages [num_pages, num_pages + num_host_pages).

    A leaf of the device's part of the tree gives up as many pages as are needed, the last ones first. They go to the
    host when there is one, which makes room for them among what the strategy would give up before them.
    """

    def __init__(
        self,
        tree: RadixTree,
        num_pages: int,
        num_host_pages: int,
        strategy: EvictionStrategy,
        stats: CacheStats,
        events: EventLog | None,
    ) -> None:
        self.device = PagePool(num_pages)
        self.host = PagePool(num_host_pages, first=num_pages)
        tickets = count()
        self.device_heap = EvictionHeap(strategy, tickets)
        self.host_heap = EvictionHeap(strategy, tickets)
        self.claims = SoftPins()
        self.copies: list[Copy] = []
        self._tree = tree
        self._key = strategy.key
        self._stats = stats
        self._events = events

    @property
    def num_available(self) -> int:
        """Device pages that can be had now: free ones, and those that can leave."""
        return self.device.num_free + self._tree.num_device_pages - self._tree.num_held_pages

    def take(self, num_pages: int, keep: int | None = None) -> list[int]:
        """Device pages, with whatever has to leave for them. `keep` is a page, the first of a node, that stays."""
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
        return self.device.take(num_pages)

    def promote(self, node: TreeNode, pages: list[int]) -> None:
        """Copy a held node up, to device pages. Its parent is there."""
        page_size = self._tree.page_size
        self.copies += [Copy(low, high, page_size) for low, high in zip(node.pages, pages, strict=True)]
        self._stats.num_promoted_pages += len(pages)
        self.move_up(node, pages)

    def move_up(self, node: TreeNode, pages: list[int]) -> None:
        """The node's content is in these device pages, or will be: no need for the host's."""
        self.host_heap.withdraw(node)
        self.host.give_back(self._tree.move(node, pages))
        if self._events is not None:
            self._events.moved(node)

    def split(self, node: TreeNode, num_pages: int) -> TreeNode:
        upper = self._tree.split(node, num_pages)
        if node.on_host:
            # What the device has of this path is claimed through its deepest node.
            self.claims.share(node, upper)
        return upper

    def join(self, node: TreeNode) -> None:
        """Undo a split of what nobody holds, where no decision can tell the parts apart."""
        if len(node.children) != 1 or node.holds:
            return
        (child,) = node.children.values()
        if (
            child.on_host == node.on_host
            and child.family == node.family
            and child.claims == node.claims
            and self._key(child) == self._key(node)
        ):
            self._tree.join(node)
            self.claims.leave(child, node)
            self.offer(node)

    def offer(self, node: TreeNode) -> None:
        (self.host_heap if node.on_host else self.device_heap).offer(node)

    def forget(self, leaf: TreeNode) -> None:
        """Remove a leaf, and free its pages."""
        parent = leaf.parent
        self.claims.leave(leaf, parent)
        if self._events is not None:
            self._events.removed(leaf, len(leaf.pages))
        (self.host if leaf.on_host else self.device).give_back(self._tree.remove(leaf))
        if isinstance(parent, TreeNode):
            self.offer(parent)

    def _demote(self, node: TreeNode, num_pages: int, keep: int | None) -> None:
        """The node's last `num_pages` pages leave the device: down, as far as there is room, or for good."""
        num_lost = num_pages - self._host_room(num_pages, self._key(node), keep)
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
        pages = self.host.take(len(node.pages))
        page_size = self._tree.page_size
        self.copies += [Copy(high, low, page_size) for high, low in zip(node.pages, pages, strict=True)]
        num_short = len(pages) * page_size - node.num_tokens
        if num_short:
            self.copies[-1] = self.copies[-1]._replace(num_tokens=page_size - num_short)
        self._stats.num_demoted_pages += len(pages)
        self.device_heap.withdraw(node)
        self.device.give_back(self._tree.move(node, pages))
        if self._events is not None:
            self._events.moved(node)
        self.claims.share(node, node.parent)
        # Pages that leave one by one would leave a node each.
        self.join(node)
        self.host_heap.offer(node)

    def _host_room(self, num_pages: int, key: tuple[int, ...], keep: int | None) -> int:
        """How many host pages, at most `num_pages`, can be had of those that are free or go before `key` does."""
        kept: list[TreeNode] = []
        while self.host.num_free < num_pages and (leaf := self.host_heap.pop()) is not None:
            num_given = min(num_pages - self.host.num_free, len(leaf.pages) - (leaf.pages[0] == keep))
            if self._key(leaf) > key or num_given == 0:
                kept.append(leaf)
                if num_given:
                    break
                continue
            self._drop(leaf, num_given)
        for leaf in kept:
            self.host_heap.offer(leaf)
        return min(num_pages, self.host.num_free)

    def _drop(self, leaf: TreeNode, num_pages: int) -> None:
        """The leaf's last pages go for good."""
        self._stats.num_evicted_pages += num_pages
        if num_pages == len(leaf.pages):
            self.forget(leaf)
            return
        if self._events is not None:
            self._events.removed(leaf, num_pages)
        (self.host if leaf.on_host else self.device).give_back(self._tree.cut(leaf, num_pages))
        self.offer(leaf)
