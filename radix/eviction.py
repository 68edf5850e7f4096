"""Finds the leaf that a strategy gives up first. Knows nodes' keys and pins; knows nothing of pages or of tiers."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from .strategies import EvictionStrategy
from .tree import TreeNode


class EvictionHeap:
    """The evictable leaves of one tier, smallest key first, in O(log n) and without walking the tree.

    Deletion is lazy: an entry counts only while the node holds its ticket. A queued node's entry is never above the
    node's key, so keys that grew are put right when they come up; one that fell is offered, and queued, again.
    """

    def __init__(self, strategy: EvictionStrategy, tickets: Iterator[int]) -> None:
        """`tickets` never repeat, also not in another heap that a node may move to."""
        self._key = strategy.key
        self._entries: list[tuple[tuple[int, ...], int, TreeNode]] = []
        self._tickets = tickets  # they break ties too, so that nodes are never compared
        self._compact_at = 64

    def __len__(self) -> int:
        return len(self._entries)

    def offer(self, node: TreeNode) -> None:
        """Call when a node may have become evictable, or its key smaller."""
        if not node.evictable:
            return
        key = self._key(node)
        if node.ticket is not None and node.queued_as <= key:
            return
        self._push(node, key)
        if len(self._entries) > self._compact_at:
            self._compact()

    def withdraw(self, node: TreeNode) -> None:
        """Forget a node that leaves this tier."""
        node.ticket = None

    def pop(self) -> TreeNode | None:
        """The evictable leaf with the smallest key, or None. Offer it again if it stays."""
        while self._entries:
            queued_as, ticket, node = heappop(self._entries)
            if node.ticket != ticket:
                continue
            node.ticket = None
            if not node.evictable:
                continue  # it is offered again when that changes
            key = self._key(node)
            if key == queued_as:
                return node
            self._push(node, key)
        return None

    def _push(self, node: TreeNode, key: tuple[int, ...]) -> None:
        node.ticket = next(self._tickets)
        node.queued_as = key
        heappush(self._entries, (key, node.ticket, node))

    def _compact(self) -> None:
        """Drop the entries that do not count, so that the heap stays as small as the tree."""
        kept = []
        for entry in self._entries:
            _, ticket, node = entry
            if node.ticket != ticket:
                continue
            if node.evictable:
                kept.append(entry)
            else:
                node.ticket = None
        heapify(kept)
        self._entries = kept
        self._compact_at = 2 * len(kept) + 64
