"""Priority queue of evictable leaves."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from .strategies import EvictionStrategy
from .tree import TreeNode


class EvictionHeap:
    """Evictable leaves of one tier, smallest key first, in O(log n) and without walking the tree.

    Deletion is lazy: an entry counts only while its node holds the entry's ticket. An entry never sorts after its
    node's current key: an entry whose key grew is reinserted when it is popped, and a node whose key fell is offered
    again.
    """

    def __init__(self, strategy: EvictionStrategy, tickets: Iterator[int]) -> None:
        """`tickets` never repeat, not even in another heap that a node may move to."""
        self._key = strategy.key
        self._entries: list[tuple[tuple[int, ...], int, TreeNode]] = []
        self._tickets = tickets  # they also break ties, so that nodes are never compared
        self._compact_at = 64

    def __len__(self) -> int:
        return len(self._entries)

    def offer(self, node: TreeNode) -> None:
        """Add a node if it is evictable. Call when it may have become so, or its key may have fallen."""
        if not node.evictable:
            return
        key = self._key(node)
        if node.ticket is not None and node.queued_key <= key:
            return
        self._push(node, key)
        if len(self._entries) > self._compact_at:
            self._compact()

    def withdraw(self, node: TreeNode) -> None:
        """Remove a node that leaves this tier."""
        node.ticket = None

    def pop(self) -> TreeNode | None:
        """Return the evictable leaf with the smallest key, or None. Offer it again if it stays."""
        while self._entries:
            queued_key, ticket, node = heappop(self._entries)
            if node.ticket != ticket:
                continue
            node.ticket = None
            if not node.evictable:
                continue  # offered again when it becomes evictable
            key = self._key(node)
            if key == queued_key:
                return node
            self._push(node, key)
        return None

    def _push(self, node: TreeNode, key: tuple[int, ...]) -> None:
        node.ticket = next(self._tickets)
        node.queued_key = key
        heappush(self._entries, (key, node.ticket, node))

    def _compact(self) -> None:
        """Drop stale entries, so that the heap stays proportional to the tree."""
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
