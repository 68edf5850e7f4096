"""Who may use which KV pages: cached prefixes are leased, extended and published here.

Knows tokens and page numbers; knows nothing of requests, of devices, or of what is computed when. A page is at every
moment exactly one of: free, a node's (in the tree, for everybody to read), or a lease's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from .child_index import ParentNode
from .events import CacheEvent, EventLog
from .packed_tokens import common_prefix_length, pack
from .strategies import STRATEGIES, StrategyName
from .tiers import CacheStats, Copy, Tiers
from .tree import PrefixMatch, RadixTree, TreeNode


@dataclass(eq=False, slots=True)
class Lease:
    """From `acquire` to `release`. `pages` is the page table: position p lives in `pages[p // page_size]`."""

    # [0, num_published)    in the tree, held by us through `node`, the deepest; an unfinished page is our own
    # [num_published, end)  ours alone
    namespace: str
    family: str | None
    priority: int
    matched: int  # tokens at the start whose KV was there, or is once the copies are made
    pages: list[int]
    node: TreeNode | None
    num_published: int  # tokens
    leaf: TreeNode | None = None  # what we last put into the tree; as long as it is a leaf and only ours, it grows
    live: bool = True

    @property
    def may_grow_leaf(self) -> bool:
        leaf = self.leaf
        return leaf is not None and leaf is self.node and leaf.holds == 1 and not leaf.children and not leaf.claims


__all__ = ["CacheStats", "Copy", "Lease", "PrefixCache"]


@dataclass
class PrefixCache:
    """The prefix cache over a pool of `num_pages` pages of `page_size` tokens. Reuse is token-exact.

    Its decisions take effect in order: whoever owns the memory makes the copies of `take_copies` one after the other,
    before anything is written that was decided later. So a page may be promised to somebody else while a copy still
    has to read it.

    `enabled=False` manages the same pages without ever sharing one. With `num_host_pages`, what leaves the device is
    copied to the host and found there.
    """

    num_pages: int
    page_size: int = 16
    enabled: bool = True
    _: KW_ONLY
    num_host_pages: int = 0
    strategy: StrategyName = "lru"
    events: bool = False
    stats: CacheStats = field(default_factory=CacheStats, init=False)

    def __post_init__(self) -> None:
        assert self.num_pages > 0
        strategy = STRATEGIES[self.strategy]
        self._heeds_claims = strategy.heeds_claims
        self._events = EventLog(self.page_size) if self.events else None
        self.tree = RadixTree(self.page_size)
        self.tiers = Tiers(self.tree, self.num_pages, self.num_host_pages, strategy, self.stats, self._events)
        self._clock = 0

    @property
    def num_free(self) -> int:
        return self.tiers.device.num_free

    @property
    def num_cached(self) -> int:
        """Device pages in the tree, pinned or not."""
        return self.tree.num_device_pages

    @property
    def num_host_cached(self) -> int:
        return self.tree.num_host_pages

    @property
    def num_available(self) -> int:
        """Device pages that can be had now: free ones, and those that can be evicted."""
        return self.tiers.num_available

    @property
    def num_slots(self) -> int:
        """Tokens that fit at once."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def match(self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None) -> int:
        """How many tokens at the start of `tokens[:limit]` are cached, on either tier. Changes nothing."""
        return self._match(tokens, namespace, limit).num_tokens

    def acquire(
        self,
        tokens: Sequence[int],
        namespace: str = "",
        *,
        limit: int | None = None,
        num_tokens: int = 0,
        spare: int = 0,
        priority: int = 0,
        family: str | None = None,
    ) -> Lease | None:
        """Pin the longest cached prefix of `tokens[:limit]`, with pages for `num_tokens` tokens in all.

        When the prefix ends inside a cached page, that part of it is copied to a page of the lease's own, and what is
        on the host is copied up: see `take_copies`. None, and nothing changed, when the pages cannot be had or fewer
        than `spare` pages could be had afterwards. `priority` and `family`, the program that asks, are for the
        strategies of those names.
        """
        found = self._match(tokens, namespace, limit)
        num_needed = self._num_needed(found, num_tokens, spare)
        if num_needed is None:
            # Without the boundary page its source can be evicted.
            found = found.whole_pages()
            num_needed = self._num_needed(found, num_tokens, spare)
            if num_needed is None:
                return None
        self.stats.num_queried_tokens += len(tokens)
        self.stats.num_hit_tokens += found.num_tokens
        if self.num_host_pages:
            self.stats.num_host_hit_tokens += _num_host_tokens(found)
        boundary = found.boundary
        lease = Lease(namespace, family, priority, found.num_tokens, [], None, 0)
        self._pin(lease, found)
        if boundary is None:
            pages = self.tiers.take(num_needed)
        else:
            # The boundary page stays until it is copied. If it has to go for this lease, then now, after the copy.
            num_first = num_needed if num_needed < self.num_available else 1
            pages = self.tiers.take(num_first, keep=boundary)
            self.tiers.copies.append(Copy(boundary, pages[0], found.num_boundary_tokens))
            pages += self.tiers.take(num_needed - num_first)
        for node in found.nodes:
            if node.on_host:
                num_left = len(pages) - len(node.pages)
                self.tiers.promote(node, pages[num_left:])
                del pages[num_left:]
            lease.pages += node.pages
        lease.pages += pages
        return lease

    def take_copies(self) -> list[Copy]:
        """The copies decided since the last call, to be made in this order.

        Pages [0, num_pages) are the device's, [num_pages, num_pages + num_host_pages) the host's.
        """
        copies, self.tiers.copies = self.tiers.copies, []
        return copies

    def take_events(self) -> list[CacheEvent]:
        """What was stored and removed since the last call, in this order. Empty without `events`."""
        return [] if self._events is None else self._events.take()

    def extend(self, lease: Lease, num_tokens: int) -> bool:
        """Make the page table cover `num_tokens` tokens, evicting what is unpinned as the strategy says.

        False, and nothing changed, when there are not enough pages.
        """
        assert lease.live
        num_needed = self.pages_for(num_tokens) - len(lease.pages)
        if num_needed > self.tiers.num_available:
            return False
        if num_needed > 0:
            lease.pages += self.tiers.take(num_needed)
        return True

    def commit(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish `tokens`, all of whose KV is computed, so that others share it while the lease lives.

        An unfinished last page is published as well: later tokens go to slots that its readers do not look at. Where
        somebody published the same pages first, the lease moves over to theirs, so `lease.pages` may change.
        """
        assert lease.live
        assert self.pages_for(len(tokens)) <= len(lease.pages)
        if self.enabled and len(tokens) > lease.num_published:
            if lease.num_published % self.page_size:
                self._lengthen(lease, tokens)
            else:
                self._publish(lease, tokens)

    def release(self, lease: Lease, tokens: Sequence[int]) -> None:
        """End the lease: publish `tokens`, those whose KV is computed, and unpin. The lease is dead afterwards."""
        self.commit(lease, tokens)
        lease.live = False
        self.tiers.device.give_back(lease.pages[self.pages_for(lease.num_published) :])
        node = lease.node
        if node is None:
            return
        self._clock += 1
        self.tree.let_go(node, self._clock)
        if node.evictable and self.tree.superseded(node):
            self.tiers.forget(node)
        else:
            self.tiers.offer(node)
        # What was split for somebody who is gone is one again, now that it has one age.
        branch = node.parent
        while isinstance(branch, TreeNode) and not branch.holds:
            self.tiers.join(branch)
            branch = branch.parent

    def claim(self, lease: Lease, claimant: Hashable, num_tokens: int, rank: int) -> None:
        """The claimant will ask for the first `num_tokens` published tokens of the lease again.

        No pin: strategies that heed claims give such pages up last, those of the largest rank first. Replaces the
        claimant's earlier claim.
        """
        assert lease.live
        self.drop_claim(claimant)
        num_pages = self.pages_for(min(num_tokens, lease.num_published))
        if not self._heeds_claims or not num_pages:
            return
        node = lease.node
        assert node is not None
        first = self.pages_for(lease.num_published) - len(node.pages)
        while first >= num_pages:
            assert isinstance(node.parent, TreeNode)
            node = node.parent
            first -= len(node.pages)
        if num_pages - first < len(node.pages):
            # What lies behind is not claimed.
            node = self.tiers.split(node, num_pages - first)
        self.tiers.claims.add(claimant, node, rank)

    def drop_claim(self, claimant: Hashable) -> None:
        """The claimant asks for nothing any more. Unknown claimants are fine."""
        for node in self.tiers.claims.drop(claimant):
            self.tiers.offer(node)

    def flush(self) -> int:
        """Forget every prefix that is not pinned, on both tiers. Returns how many pages that frees."""
        num_flushed = 0
        for node in reversed(list(self.tree.nodes())):
            if not node.holds:
                num_flushed += len(node.pages)
                self.tiers.forget(node)
        if self._events is not None and not self.tree.num_nodes:
            self._events.cleared()
        return num_flushed

    def _match(self, tokens: Sequence[int], namespace: str, limit: int | None) -> PrefixMatch:
        if not self.enabled:
            return PrefixMatch([], None, 0, 0, 0)
        return self.tree.match(tokens, namespace, len(tokens) if limit is None else min(limit, len(tokens)))

    def _num_needed(self, found: PrefixMatch, num_tokens: int, spare: int) -> int | None:
        """How many device pages a lease takes beside those it finds there, or None if they cannot be had."""
        num_on_host, num_pinned = _count_pages(found)
        num_matched = found.num_tokens // self.page_size
        num_needed = self.pages_for(max(num_tokens, found.num_tokens)) - num_matched + num_on_host
        num_available = self.tiers.num_available - num_pinned
        if num_needed + spare > num_available:
            return None
        if found.boundary is not None and not self.tiers.device.num_free:
            # The page that the boundary is copied to cannot be the boundary's.
            assert found.last is not None
            if num_available == (not found.last.on_host and not found.last.holds):
                return None
        return num_needed

    def _pin(self, lease: Lease, found: PrefixMatch) -> None:
        nodes = found.nodes
        if found.num_last_pages:
            # What lies behind is not pinned.
            assert found.last is not None
            nodes.append(self.tiers.split(found.last, found.num_last_pages))
        if not nodes:
            return
        self.tree.hold(nodes[-1])
        for node in nodes:
            node.num_hits += 1
            node.note_use(lease.family, lease.priority)
        lease.node = nodes[-1]
        lease.num_published = found.num_tokens - found.num_boundary_tokens

    def _lengthen(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish more of the lease's own unfinished page, and what follows."""
        node = lease.node
        assert node is not None
        start = lease.num_published // self.page_size * self.page_size
        if len(node.pages) == 1:
            # Siblings may hold as much of it, or more.
            first = pack(tokens[start : start + self.page_size])
            if node.parent.covering(first) is not None:
                if start + self.page_size <= len(tokens):
                    self._withdraw(lease)
                    self._publish(lease, tokens)
                return
        if lease.may_grow_leaf:
            self._grow(lease, tokens)
            return
        end = min(start + self.page_size, len(tokens))
        self._grow(lease, tokens[:end])
        if end < len(tokens):
            self._publish(lease, tokens)

    def _publish(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish from a page boundary on: along what others published, then what is new."""
        size = self.page_size
        while (start := lease.num_published) < len(tokens):
            branch: ParentNode[TreeNode] = lease.node or self.tree.root(lease.namespace)
            first = pack(tokens[start : start + size])
            covering = branch.covering(first)
            if covering is None:
                self._publish_new(lease, branch, first, tokens)
            elif start + size > len(tokens):
                # Nothing new. An unfinished page stays ours: its other owner writes its next slots, and so do we.
                return
            else:
                run = first + pack(tokens[start + size : start + covering.num_tokens])
                self._move_over(lease, covering, common_prefix_length(run, covering.run) // size)

    def _publish_new(self, lease: Lease, branch: ParentNode[TreeNode], first: bytes, tokens: Sequence[int]) -> None:
        for node in self.tree.covered(branch, first):
            self.tiers.forget(node)
        if lease.may_grow_leaf:
            self._grow(lease, tokens)
        else:
            self._insert(lease, branch, tokens)

    def _move_over(self, lease: Lease, node: TreeNode, num_pages: int) -> None:
        """The lease's next pages are a node's first `num_pages`, published by somebody else: use theirs."""
        if num_pages < len(node.pages):
            node = self.tiers.split(node, num_pages)
        at = lease.num_published // self.page_size
        own = lease.pages[at : at + num_pages]
        if node.on_host:
            self.tiers.move_up(node, own)
        else:
            self.tiers.device.give_back(own)
            lease.pages[at : at + num_pages] = node.pages
        node.note_use(lease.family, lease.priority)
        self._hold_instead(lease, node)
        lease.num_published += num_pages * self.page_size

    def _grow(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish what is new in the lease's own leaf."""
        leaf = lease.node
        assert leaf is not None
        first_page = self.pages_for(lease.num_published)
        self.tree.grow(leaf, pack(tokens[lease.num_published :]), lease.pages[first_page : self.pages_for(len(tokens))])
        lease.num_published = len(tokens)
        for node in self.tree.covered(leaf.parent, leaf.key):
            self.tiers.forget(node)
        if self._events is not None:
            self._events.stored(leaf)

    def _insert(self, lease: Lease, branch: ParentNode[TreeNode], tokens: Sequence[int]) -> None:
        """Publish what is new in a leaf of its own."""
        start = lease.num_published
        pages = lease.pages[start // self.page_size : self.pages_for(len(tokens))]
        leaf = self.tree.insert(branch, pack(tokens[start:]), pages)
        leaf.family = lease.family
        leaf.priority = lease.priority
        self._hold_instead(lease, leaf)
        lease.leaf = leaf
        lease.num_published = len(tokens)
        if self._events is not None:
            self._events.stored(leaf)

    def _withdraw(self, lease: Lease) -> None:
        """Take the lease's own unfinished page, a node by itself, back out of the tree: somebody has the whole page."""
        node = lease.node
        assert node is not None
        parent = node.parent
        if isinstance(parent, TreeNode):
            self.tree.hold(parent)
        self.tree.let_go(node, self._clock)
        self.tiers.claims.leave(node, parent)
        self.tree.remove(node)
        lease.node = parent if isinstance(parent, TreeNode) else None
        lease.num_published -= node.num_tokens

    def _hold_instead(self, lease: Lease, node: TreeNode) -> None:
        self.tree.hold(node)
        if lease.node is not None:
            self.tree.let_go(lease.node, self._clock)
        lease.node = node


def _count_pages(found: PrefixMatch) -> tuple[int, int]:
    """Of the whole pages matched: those on the host, and those on the device that nobody holds yet."""
    num_on_host = num_unheld = 0
    last = found.last
    if last is not None and last.on_host:
        num_on_host = found.num_last_pages
    elif last is not None and not last.holds:
        num_unheld = found.num_last_pages
    for node in reversed(found.nodes):
        if node.on_host:
            num_on_host += len(node.pages)
        elif node.holds:
            break  # and so is what leads there
        else:
            num_unheld += len(node.pages)
    return num_on_host, num_unheld


def _num_host_tokens(found: PrefixMatch) -> int:
    num_whole = sum(node.num_tokens for node in found.nodes)
    num_tokens = sum(node.num_tokens for node in found.nodes if node.on_host)
    if found.last is not None and found.last.on_host:
        num_tokens += found.num_tokens - num_whole
    return num_tokens
