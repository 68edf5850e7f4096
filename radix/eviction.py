"""Which unpinned leaf goes first. Knows node ages and pins; knows nothing of pages or devices."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from .tree import Node


class LruHeap:
    """Least recently used first, in O(log n) per eviction, without walking the tree.

    Deletion is lazy. A node has at most one entry, at an age that may be out of date but is never too young; entries
    that are out of date are put right when they come up.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Node]] = []
        self._serial = count()  # breaks ties, so that nodes are never compared
        self._compact_at = 64

    def __len__(self) -> int:
        return len(self._entries)

    def offer(self, node: Node) -> None:
        """Call when a node may have become evictable: it lost its last pin, or its last child."""
        if not node.evictable or node.queued:
            return
        self._push(node)
        if len(self._entries) > self._compact_at:
            self._compact()

    def pop(self) -> Node | None:
        """The evictable leaf that was used least recently, or None when nothing can go."""
        while self._entries:
            age, _, node = heappop(self._entries)
            node.queued = False
            if not node.evictable:
                continue  # it is offered again when that changes
            if age == node.last_used:
                return node
            self._push(node)
        return None

    def _push(self, node: Node) -> None:
        node.queued = True
        heappush(self._entries, (node.last_used, next(self._serial), node))

    def _compact(self) -> None:
        """Drop the entries of nodes that went another way, so that the heap stays as small as the tree."""
        kept = []
        for entry in self._entries:
            if entry[2].evictable:
                kept.append(entry)
            else:
                entry[2].queued = False
        heapify(kept)
        self._entries = kept
        self._compact_at = 2 * len(kept) + 64
