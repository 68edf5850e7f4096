"""Who may use which KV pages: cached prefixes are leased, extended, published and evicted here.

Knows tokens and page numbers; knows nothing of requests, of devices, or of what is computed when. A page is at every
moment exactly one of: free, a node's (in the tree, for everybody to read), or a lease's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .eviction import LruHeap
from .pool import PagePool
from .tree import Branch, Key, Match, Node, RadixTree


@dataclass(frozen=True)
class Copy:
    """The first `num_tokens` slots of page `source` are needed at the start of page `target` too."""

    source: int
    target: int
    num_tokens: int


@dataclass(eq=False)
class Lease:
    """One sequence's hold on its pages, from `acquire` to `release`.

    `pages` is the page table: position p lives in `pages[p // page_size]`.
    """

    # pages[: len(nodes)]   in the tree, pinned by us; all whole, but the last one may be our own unfinished page
    # pages[len(nodes) :]   ours alone
    namespace: str
    matched: int  # tokens at the start whose KV was there, or is once the copies are made
    pages: list[int]
    nodes: list[Node]
    live: bool = True


@dataclass
class CacheStats:
    """Totals since start."""

    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_evicted_pages: int = 0


@dataclass
class PrefixCache:
    """The prefix cache over a pool of `num_pages` pages of `page_size` tokens. Reuse is token-exact.

    Its decisions take effect in order: whoever owns the memory makes the copies of `take_copies` one after the other,
    before anything is written that was decided later. So a page may be promised to somebody else while a copy still
    has to read it.

    `enabled=False` manages the same pages without ever sharing one.
    """

    num_pages: int
    page_size: int = 16
    enabled: bool = True
    stats: CacheStats = field(default_factory=CacheStats, init=False)

    def __post_init__(self) -> None:
        self.pool = PagePool(self.num_pages)
        self.tree = RadixTree(self.page_size)
        self.eviction = LruHeap()
        self._copies: list[Copy] = []
        self._clock = 0

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_cached(self) -> int:
        """Pages in the tree, pinned or not."""
        return self.tree.num_nodes

    @property
    def num_available(self) -> int:
        """Pages that can be had now: free ones, and those that can be evicted."""
        return self.pool.num_free + self.tree.num_unpinned

    @property
    def num_slots(self) -> int:
        """Tokens that fit at once."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def match(self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None) -> int:
        """How many tokens at the start of `tokens[:limit]` are cached. Changes nothing."""
        return self._match(tokens, namespace, limit).num_tokens

    def acquire(
        self,
        tokens: Sequence[int],
        namespace: str = "",
        *,
        limit: int | None = None,
        num_tokens: int = 0,
        spare: int = 0,
    ) -> Lease | None:
        """Pin the longest cached prefix of `tokens[:limit]`, with pages for `num_tokens` tokens in all.

        When the prefix ends inside a cached page, that part of it is copied to a page of the lease's own: see
        `take_copies`. None, and nothing changed, when the pages cannot be had or fewer than `spare` pages could be had
        afterwards.
        """
        found = self._match(tokens, namespace, limit)
        if not self._fits(found, num_tokens, spare):
            # Without the boundary page its source can be evicted.
            found = found.whole_pages()
            if not self._fits(found, num_tokens, spare):
                return None
        lease = Lease(namespace, found.num_tokens, [], [])
        if found.boundary is not None:
            self.tree.pin(found.boundary)
        for node in found.nodes:
            self._hold(lease, node)
        grown = self.extend(lease, max(num_tokens, found.num_tokens))
        assert grown
        if found.boundary is not None:
            self._copies.append(Copy(found.boundary.page, lease.pages[len(found.nodes)], found.boundary_tokens))
            self._unpin([found.boundary])
        self.stats.num_queried_tokens += len(tokens)
        self.stats.num_hit_tokens += found.num_tokens
        return lease

    def take_copies(self) -> list[Copy]:
        """The copies decided since the last call, to be made in this order."""
        copies, self._copies = self._copies, []
        return copies

    def extend(self, lease: Lease, num_tokens: int) -> bool:
        """Make the page table cover `num_tokens` tokens, evicting what is unpinned and longest unused.

        False, and nothing changed, when there are not enough pages.
        """
        assert lease.live
        num_needed = self.pages_for(num_tokens) - len(lease.pages)
        if num_needed > self.num_available:
            return False
        self._evict(num_needed - self.pool.num_free)
        lease.pages.extend(self.pool.take() for _ in range(num_needed))
        return True

    def commit(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish `tokens`, all of whose KV is computed, so that others share it while the lease lives.

        An unfinished last page is published as well: later tokens go to slots that its readers do not look at. Where
        somebody published the same page first, the lease moves over to theirs, so `lease.pages` may change.
        """
        assert lease.live
        assert self.pages_for(len(tokens)) <= len(lease.pages)
        if not self.enabled:
            return
        whole = len(lease.nodes) - (1 if self._tail(lease) else 0)
        for index in range(whole, self.pages_for(len(tokens))):
            key = tuple(tokens[index * self.page_size : (index + 1) * self.page_size])
            self._publish(lease, index, key)

    def release(self, lease: Lease, tokens: Sequence[int]) -> None:
        """End the lease: publish `tokens`, those whose KV is computed, and unpin. The lease is dead afterwards."""
        assert lease.live
        self.commit(lease, tokens)
        lease.live = False
        for page in lease.pages[len(lease.nodes) :]:
            self.pool.give_back(page)
        self._unpin(lease.nodes)

    def flush(self) -> int:
        """Forget every prefix that is not pinned. Returns how many pages that frees."""
        num_flushed = self.tree.num_unpinned
        self._evict(num_flushed)
        return num_flushed

    def _match(self, tokens: Sequence[int], namespace: str, limit: int | None) -> Match:
        if not self.enabled:
            return Match([], 0, None, 0)
        return self.tree.match(tokens, namespace, len(tokens) if limit is None else min(limit, len(tokens)))

    def _fits(self, match: Match, num_tokens: int, spare: int) -> bool:
        num_needed = self.pages_for(max(num_tokens, match.num_tokens)) - len(match.nodes)
        num_pinned = sum(node.pins == 0 for node in match.nodes)
        num_pinned += match.boundary is not None and match.boundary.pins == 0
        return num_needed + spare <= self.num_available - num_pinned

    def _tail(self, lease: Lease) -> Node | None:
        """The lease's own unfinished page, if it is published."""
        last = lease.nodes[-1] if lease.nodes else None
        return last if last is not None and len(last.key) < self.page_size else None

    def _publish(self, lease: Lease, index: int, key: Key) -> None:
        parent: Branch = lease.nodes[index - 1] if index else self.tree.root(lease.namespace)
        tail = self._tail(lease)
        covering = self.tree.covering(parent, key)
        if covering is not None and len(key) == self.page_size:
            # Somebody published the same whole page first: use theirs.
            if tail is None:
                self.pool.give_back(lease.pages[index])
            else:
                lease.nodes.pop()
            self._hold(lease, covering, index)
            if tail is not None:
                self._unpin([tail])
        elif covering is not None:
            # Nothing new. An unfinished page stays ours: its other owner writes its next slots, and so do we.
            return
        elif tail is not None:
            self.tree.lengthen(tail, key)
        else:
            self._hold(lease, self.tree.insert(parent, key, lease.pages[index]), index)
        for node in self.tree.covered(parent, key):
            self._remove(node)

    def _hold(self, lease: Lease, node: Node, index: int | None = None) -> None:
        self.tree.pin(node)
        lease.nodes.append(node)
        if index is None:
            lease.pages.append(node.page)
        else:
            lease.pages[index] = node.page

    def _unpin(self, nodes: Sequence[Node]) -> None:
        self._clock += 1
        for node in nodes:
            node.last_used = self._clock
            self.tree.unpin(node)
        for node in nodes:
            if node.evictable and self.tree.superseded(node):
                self._remove(node)
            else:
                self.eviction.offer(node)

    def _evict(self, num_pages: int) -> None:
        for _ in range(num_pages):
            node = self.eviction.pop()
            assert node is not None, "there are unpinned nodes, but no evictable leaf"
            self._remove(node)
            self.stats.num_evicted_pages += 1

    def _remove(self, node: Node) -> None:
        self.tree.remove(node)
        self.pool.give_back(node.page)
        if isinstance(node.parent, Node):
            self.eviction.offer(node.parent)
