"""Priority queue of evictable leaves, with a heap for each group of the strategy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush

from ..tree import TreeNode
from .strategies import EvictionStrategy, Key

Entry = tuple[Key, int, TreeNode]


class EvictionHeap:
    """Evictable leaves of one tier, first in order first, in O(log n) and without walking the tree.

    Each group has a heap, and a pop compares their first leaves. Deletion is lazy: an entry counts only while its node
    holds the entry's ticket. An entry never sorts after its node's current place: an entry whose node has a larger key
    or another group by now is reinserted when it is met, and a node whose key or order fell is offered again.
    """

    def __init__(self, strategy: EvictionStrategy, tickets: Iterator[int]) -> None:
        """`tickets` never repeat, not even in another heap that a node may move to."""
        self._strategy = strategy
        self._groups: dict[Hashable, list[Entry]] = {}
        self._num_entries = 0
        self._tickets = tickets  # they also break ties, so that nodes are never compared
        self._compact_at = 64

    def __len__(self) -> int:
        return self._num_entries

    def order(self, node: TreeNode) -> Key:
        """Return the node's place among all nodes now, whether it is here or not."""
        return self._strategy.order(self._strategy.group(node), self._strategy.key(node))

    def offer(self, node: TreeNode) -> None:
        """Add a node if it is evictable. Call when it may have become so, or its key or order may have fallen."""
        if not node.evictable:
            return
        group, key = self._place(node)
        if node.ticket is not None and node.queued_group == group and node.queued_key <= key:
            return
        self._push(node, group, key)
        if self._num_entries > self._compact_at:
            self._compact()

    def withdraw(self, node: TreeNode) -> None:
        """Remove a node that leaves this tier."""
        node.ticket = None

    def pop(self) -> TreeNode | None:
        """Return the evictable leaf that is first in order, or None. Offer it again if it stays."""
        while sum(self._settle(group) for group in list(self._groups)):
            pass  # nodes went to groups whose first entries had held
        self._groups = {group: entries for group, entries in self._groups.items() if entries}
        if not self._groups:
            return None
        order = self._strategy.order
        first = min(self._groups, key=lambda group: order(group, self._groups[group][0][0]))
        self._num_entries -= 1
        node = heappop(self._groups[first])[2]
        node.ticket = None
        return node

    def _settle(self, group: Hashable) -> bool:
        """Remove or reinsert entries until the group's first one holds. Returns True if nodes went to other groups."""
        entries, has_moved = self._groups[group], False
        while entries:
            key, ticket, node = entries[0]
            place = self._place(node) if node.ticket == ticket and node.evictable else None
            if place == (group, key):
                break
            heappop(entries)
            self._num_entries -= 1
            if place is not None:
                self._push(node, *place)
                has_moved |= place[0] != group
            elif node.ticket == ticket:
                node.ticket = None  # offered again when it becomes evictable
        return has_moved

    def _place(self, node: TreeNode) -> tuple[Hashable, Key]:
        return self._strategy.group(node), self._strategy.key(node)

    def _push(self, node: TreeNode, group: Hashable, key: Key) -> None:
        node.ticket = next(self._tickets)
        node.queued_group, node.queued_key = group, key
        heappush(self._groups.setdefault(group, []), (key, node.ticket, node))
        self._num_entries += 1

    def _compact(self) -> None:
        """Drop stale entries, so that the heaps stay proportional to the tree."""
        self._num_entries = 0
        for group, entries in list(self._groups.items()):
            kept = []
            for entry in entries:
                _, ticket, node = entry
                if node.ticket != ticket:
                    continue
                if node.evictable:
                    kept.append(entry)
                else:
                    node.ticket = None
            heapify(kept)
            self._groups[group] = kept
            self._num_entries += len(kept)
        self._compact_at = 2 * self._num_entries + 64
