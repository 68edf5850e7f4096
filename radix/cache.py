"""Leases of KV pages over the prefix cache: acquire, extend, publish, release.

At every moment a page is exactly one of: free, part of a tree node (shared, read-only), or owned by one lease.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice

from .child_index import ParentNode
from .events import CacheEvent, EventLog
from .eviction.strategies import STRATEGIES, EvictionStrategy
from .lease import NO_SPARE_PAGES, NO_USER, Lease, LeaseUser, SparePages
from .packed_tokens import common_prefix_length, pack
from .reuse_forecast import ReuseForecast
from .state_slots import StateSlots
from .tiers import CacheStats, Copy, Tiers
from .tree import PrefixMatch, RadixTree, TreeNode
from .window_pages import WindowPages

MAX_CONTINUED_CHILDREN = 4  # nodes after a match that are looked at for the owners whose tokens it continues
__all__ = ["CacheStats", "Copy", "Lease", "PrefixCache"]


@dataclass
class PrefixCache:
    """Prefix cache over a pool of `num_pages` pages of `page_size` tokens. Reuse is exact to the token.

    Decisions take effect in order: the owner of the memory makes the copies of `take_copies` one after the other,
    before it writes anything that was decided later. So a page may be given away while a copy still has to read it.

    With `enabled=False` the same pages are managed, but never shared. With `num_host_pages`, pages that leave the
    device are copied to the host and found there.
    """

    num_pages: int
    page_size: int
    enabled: bool = True
    _: KW_ONLY
    num_host_pages: int = 0
    num_state_slots: int = 0  # 0: the model has no recurrent layers
    windows: WindowPages | None = None  # None: pages hold the keys and values of all layers; else there is no host
    strategy: str | EvictionStrategy = "lru"  # a key of STRATEGIES, or a strategy of the caller's
    events: bool = False
    forecast: ReuseForecast = field(default_factory=ReuseForecast)
    stats: CacheStats = field(default_factory=CacheStats, init=False)

    def __post_init__(self) -> None:
        assert self.num_pages > 0
        strategy = STRATEGIES[self.strategy](self.forecast) if isinstance(self.strategy, str) else self.strategy
        self._respects_soft_pins = strategy.respects_soft_pins
        self._events = EventLog(self.page_size) if self.events else None
        self.tree = RadixTree(self.page_size)
        self.states = StateSlots(self.num_state_slots, self.tree) if self.num_state_slots else None
        self.tiers = Tiers(
            self.tree,
            self.num_pages,
            self.num_host_pages,
            strategy,
            self.stats,
            self._events,
            self.forecast.note_lost,
        )
        if self.windows is not None:
            assert not self.num_host_pages
            self.tiers.device.note_freed = self.windows.forget
        self._clock = 0

    @property
    def clock(self) -> int:
        """Count of leases released so far: the scale of the nodes' `last_used`."""
        return self._clock

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
        """Device pages that can be allocated now: free ones, and those that can be evicted."""
        num_available = self.tiers.num_available
        return num_available if self.windows is None else min(num_available, self.windows.num_available)

    @property
    def recognises_sessions(self) -> bool:
        """True if soft pins of requests without a program are of use."""
        return self._respects_soft_pins

    @property
    def num_slots(self) -> int:
        """Tokens that fit at once."""
        return self.num_pages * self.page_size

    def pages_for(self, num_tokens: int) -> int:
        """Return the number of pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def match(self, tokens: Sequence[int], namespace: str = "", *, limit: int | None = None) -> int:
        """Count the tokens at the start of `tokens[:limit]` that are cached, on either tier. Changes nothing."""
        return self._reusable(self._match_pages(tokens, namespace, limit), tokens).num_tokens

    def acquire(
        self,
        tokens: Sequence[int],
        namespace: str = "",
        *,
        limit: int | None = None,
        num_tokens: int = 0,
        spare: SparePages = NO_SPARE_PAGES,
        user: LeaseUser = NO_USER,
        counted: bool = True,
    ) -> Lease | None:
        """Pin the longest cached prefix of `tokens[:limit]`, and allocate pages for `num_tokens` tokens in all.

        Where the prefix ends inside a cached page, that part is copied to a page of the lease's own; host pages are
        copied to the device (see `take_copies`). Returns None, with nothing changed, if the pages are not available or
        fewer than `spare` pages would be left. Without `counted`, the statistics of hits do not change.
        """
        cached = self._match_pages(tokens, namespace, limit)
        found = self._reusable(cached, tokens)
        num_needed = self._num_pages_needed(found, num_tokens, spare)
        while num_needed is None and found.num_boundary_tokens:
            # Give up the partial match: the page it would be copied from can then be evicted.
            found = self._reusable(found.whole_pages())
            num_needed = self._num_pages_needed(found, num_tokens, spare)
        if num_needed is None or (self.states is not None and not self.states.num_available):
            return None
        if counted:
            self.stats.num_queried_tokens += len(tokens)
            self.stats.num_hit_tokens += found.num_tokens
            self.stats.num_host_hit_tokens += found.num_host_tokens if self.num_host_pages else 0
        boundary = found.boundary
        lease = Lease(namespace, user, found.num_tokens, [], None, 0, continues=self._continued_owners(found))
        if self.states is not None:
            lease.states = self.states.begin(namespace, found, cached.num_tokens)
        self._pin(lease, found)
        if self.windows is not None:
            self.windows.begin(lease, found.nodes, cached.num_tokens)
        if boundary is None:
            pages = self._allocate(num_needed)
        else:
            # The boundary page stays until its copy is decided; if this lease needs its place, it goes after that.
            num_first = num_needed if num_needed < self.tiers.num_available else 1
            if self.windows is not None:
                self.windows.hold([boundary])
            pages = self._allocate(num_first, keep=boundary)
            self.tiers.copies.append(Copy(boundary, pages[0], found.num_boundary_tokens))
            if self.windows is not None:
                self.windows.copy(boundary, pages[0], found.num_boundary_tokens)
                self.windows.let_go([boundary], is_strong=True)
            pages += self._allocate(num_needed - num_first)
        for node in found.nodes:
            if node.on_host:
                num_left = len(pages) - len(node.pages)
                self.tiers.promote(node, pages[num_left:])
                del pages[num_left:]
            lease.pages += node.pages
        lease.pages += pages
        return lease

    def take_copies(self) -> list[Copy]:
        """Return the copies decided since the last call, to be made in this order.

        Pages [0, num_pages) are the device's, [num_pages, num_pages + num_host_pages) the host's.
        """
        copies, self.tiers.copies = self.tiers.copies, []
        return copies

    def take_events(self) -> list[CacheEvent]:
        """Return the events since the last call, in order. Empty without `events=True`."""
        return [] if self._events is None else self._events.take()

    def extend(self, lease: Lease, num_tokens: int) -> bool:
        """Grow the page table to cover `num_tokens` tokens, evicting unpinned pages as needed.

        Returns False, with nothing changed, if there are not enough pages.
        """
        assert lease.live
        num_needed = self.pages_for(num_tokens) - len(lease.pages)
        if num_needed > self.num_available:
            return False
        if num_needed > 0:
            lease.pages += self._allocate(num_needed)
        return True

    def commit(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish `tokens`, all of whose KV is computed, so that others can share it while the lease lives.

        An unfinished last page is published as well: later tokens go to slots that its readers do not look at. Where
        another lease published the same pages first, this lease switches to those, so `lease.pages` may change.
        """
        assert lease.live
        assert self.pages_for(len(tokens)) <= len(lease.pages)
        if self.enabled and len(tokens) > lease.num_published:
            if lease.num_published % self.page_size:
                self._extend_partial_page(lease, tokens)
            else:
                self._publish(lease, tokens)
        if lease.states is not None:
            lease.states.publish(tokens)

    def release(self, lease: Lease, tokens: Sequence[int]) -> None:
        """End the lease: publish `tokens`, those whose KV is computed, and unpin. The lease must not be used
        afterwards."""
        self.commit(lease, tokens)
        self._free_own(lease, tokens)
        node = lease.node
        if node is None:
            return
        self._clock += 1
        self.tree.unpin(node, self._clock)
        if node.evictable and self.tree.is_covered(node):
            self._remove_covered(node)
        else:
            self.tiers.offer(node)
        # Undo splits that no lease needs any more, now that both parts have the same age.
        branch = node.parent
        while isinstance(branch, TreeNode) and not branch.ref_count:
            self.tiers.join(branch)
            branch = branch.parent

    def discard(self, lease: Lease) -> None:
        """End a lease whose KV may be wrong. Removes the prefixes that it read or published, and all below them, except
        those that other leases pin. The lease must not be used afterwards."""
        assert lease.live
        self._free_own(lease, ())
        if lease.node is None:
            return
        self._clock += 1
        self.tree.unpin(lease.node, self._clock)
        top: TreeNode | None = None
        branch: ParentNode[TreeNode] = lease.node
        while isinstance(branch, TreeNode) and not branch.ref_count:
            top, branch = branch, branch.parent
        if top is not None:
            for node in reversed([top, *self.tree.below(top)]):  # nobody pins any: a pin reaches up to the root
                self.tree.wrong_keys += node.saved_keys
                self.tiers.remove_leaf(node)

    def set_soft_pin(self, lease: Lease, owner: Hashable, num_tokens: int, rank: int) -> None:
        """Soft-pin the first `num_tokens` published tokens of the lease, which `owner` is expected to request again.

        Strategies that respect soft pins evict such pages last: first those whose owners are least likely to return
        soon (see `begin_wait`), of these those of the largest rank. Replaces the owner's earlier soft pin.
        """
        assert lease.live
        self.drop_soft_pin(owner)
        num_pages = self.pages_for(min(num_tokens, lease.num_published))
        if not self._respects_soft_pins or not num_pages:
            return
        node = lease.node
        assert node is not None
        first = self.pages_for(lease.num_published) - len(node.pages)
        while first >= num_pages:
            assert isinstance(node.parent, TreeNode)
            node = node.parent
            first -= len(node.pages)
        if num_pages - first < len(node.pages):
            # The deeper part is not pinned.
            node = self.tiers.split(node, num_pages - first)
        self.tiers.soft_pins.add(owner, node, rank)

    def drop_soft_pin(self, owner: Hashable) -> None:
        """Remove the owner's soft pin, if it has one."""
        for node in self.tiers.soft_pins.drop(owner):
            self.tiers.offer(node)

    def begin_wait(self, owner: Hashable, kind: str) -> None:
        """Note that the owner of a soft pin waits from now on for something of that kind before it returns."""
        self.forecast.begin_wait(owner, kind)
        self._offer_pinned(owner)

    def set_wait_kind(self, owner: Hashable, kind: str) -> None:
        """Note what the owner waits for, if it does."""
        self.forecast.set_kind(owner, kind)
        self._offer_pinned(owner)

    def _offer_pinned(self, owner: Hashable) -> None:
        for node in self.tiers.soft_pins.nodes_of(owner):
            self.tiers.offer(node)

    def flush(self) -> int:
        """Remove every prefix that is not pinned, on both tiers. Returns the number of pages freed."""
        num_flushed = 0
        for node in reversed(list(self.tree.nodes())):
            if not node.ref_count:
                num_flushed += len(node.pages)
                self.tiers.remove_leaf(node)
        if self._events is not None and not self.tree.num_nodes:
            self._events.record_cleared()
        return num_flushed

    def _reusable(self, found: PrefixMatch, tokens: Sequence[int] = ()) -> PrefixMatch:
        """Return the part of a match of `tokens` from which a sequence can go on; without `tokens` in its nodes."""
        if self.states is not None:
            return self.states.reusable(found, tokens)
        return found if self.windows is None else self.windows.reusable(found)

    def _allocate(self, num_pages: int, keep: int | None = None) -> list[int]:
        pages = self.tiers.allocate(num_pages, keep)
        if self.windows is not None:
            self.windows.attach(pages)
        return pages

    def _match_pages(self, tokens: Sequence[int], namespace: str, limit: int | None) -> PrefixMatch:
        if not self.enabled:
            return PrefixMatch([], None, 0, 0, 0)
        return self.tree.match(tokens, namespace, len(tokens) if limit is None else min(limit, len(tokens)))

    def _continued_owners(self, found: PrefixMatch) -> list[Hashable]:
        """Return the owners of soft pins that end near the end of the match: the tokens continue theirs, at least half
        of them."""
        if not self._respects_soft_pins:
            return []
        num_above = sum(node.num_tokens for node in found.nodes)
        owners: list[Hashable] = []
        if found.last is not None and 2 * found.num_tokens >= num_above + found.last.num_tokens:
            owners += found.last.soft_pins or ()
        if found.nodes:
            owners += found.nodes[-1].soft_pins or ()
            for child in islice(found.nodes[-1].children.values(), MAX_CONTINUED_CHILDREN):
                if child is not found.last and 2 * found.num_tokens >= num_above + child.num_tokens:
                    owners += child.soft_pins or ()
        return owners

    def _free_own(self, lease: Lease, tokens: Sequence[int]) -> None:
        """End what is the lease's own; `tokens` are those of its recurrent state, if it is kept."""
        lease.live = False
        num_published = self.pages_for(lease.num_published)
        if lease.states is not None:
            lease.states.end(tokens)
        if self.windows is not None:
            self.windows.end(lease, num_published)
        self.tiers.device.free(lease.pages[num_published:])

    def _num_pages_needed(self, found: PrefixMatch, num_tokens: int, spare: SparePages) -> int | None:
        """Return the number of device pages that a lease needs beyond those matched there; None if they are not
        available."""
        num_on_host, num_unpinned = found.count_pages()
        num_matched = found.num_tokens // self.page_size
        num_needed = self.pages_for(max(num_tokens, found.num_tokens)) - num_matched + num_on_host
        num_available = self.tiers.num_available - num_unpinned
        if num_needed + spare.pages > num_available:
            return None
        if self.windows is not None and not self.windows.fits(found, num_needed + spare.window_pages):
            return None
        if found.boundary is not None and not self.tiers.device.num_free:
            # The boundary page cannot be evicted to make room for its own copy.
            assert found.last is not None
            if num_available == (not found.last.on_host and not found.last.ref_count):
                return None
        return num_needed

    def _pin(self, lease: Lease, found: PrefixMatch) -> None:
        nodes = found.nodes
        if found.num_last_pages:
            # The deeper part is not pinned.
            assert found.last is not None
            nodes.append(self.tiers.split(found.last, found.num_last_pages))
        if not nodes:
            return
        self.tree.pin(nodes[-1])
        for node in nodes:
            node.num_hits += 1
            node.note_use(*lease.user)
        if self.tree.changed is not None:
            self.tree.changed.update(nodes)
        lease.node = nodes[-1]
        lease.num_published = found.num_tokens - found.num_boundary_tokens

    def _extend_partial_page(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish more of the lease's unfinished page, and the pages that follow."""
        node = lease.node
        assert node is not None
        start = lease.num_published // self.page_size * self.page_size
        if len(node.pages) == 1:
            # A sibling may hold as much of this page, or more.
            first = pack(tokens[start : start + self.page_size])
            if node.parent.child_covering(first) is not None:
                if start + self.page_size <= len(tokens):
                    self._unpublish_partial_page(lease)
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
        """Publish from a page boundary on: follow nodes that others published, then insert the rest."""
        size = self.page_size
        while (start := lease.num_published) < len(tokens):
            branch: ParentNode[TreeNode] = lease.node or self.tree.root(lease.namespace)
            first = pack(tokens[start : start + size])
            covering = branch.child_covering(first)
            if covering is None:
                self._publish_new(lease, branch, first, tokens)
            elif start + size > len(tokens):
                # Nothing new. The unfinished page stays private: both owners go on to write its next slots.
                return
            else:
                run = first + pack(tokens[start + size : start + covering.num_tokens])
                self._adopt_published(lease, covering, common_prefix_length(run, covering.run) // size)

    def _publish_new(self, lease: Lease, branch: ParentNode[TreeNode], first: bytes, tokens: Sequence[int]) -> None:
        covered = self.tree.covered_leaves(branch, first)
        if lease.may_grow_leaf:
            self._grow(lease, tokens)
        else:
            self._insert(lease, branch, tokens)
        for node in covered:
            self._remove_covered(node)

    def _adopt_published(self, lease: Lease, node: TreeNode, num_pages: int) -> None:
        """Replace the lease's next pages by a node's first `num_pages`, which another lease published."""
        if num_pages < len(node.pages):
            node = self.tiers.split(node, num_pages)
        at = lease.num_published // self.page_size
        own = lease.pages[at : at + num_pages]
        if node.on_host:
            self.tiers.move_up(node, own)
        else:
            if self.windows is not None:
                self.windows.adopt(lease, at, node.pages)
            self.tiers.device.free(own)
            lease.pages[at : at + num_pages] = node.pages
        node.note_use(*lease.user)
        if self.tree.changed is not None:
            self.tree.changed.add(node)
        self._pin_instead(lease, node)
        lease.num_published += num_pages * self.page_size

    def _grow(self, lease: Lease, tokens: Sequence[int]) -> None:
        """Publish the new tokens in the lease's own leaf."""
        leaf = lease.node
        assert leaf is not None
        first_page = self.pages_for(lease.num_published)
        self.tree.grow(leaf, pack(tokens[lease.num_published :]), lease.pages[first_page : self.pages_for(len(tokens))])
        lease.num_published = len(tokens)
        for node in self.tree.covered_leaves(leaf.parent, leaf.key):
            self._remove_covered(node)
        if self._events is not None:
            self._events.record_stored(leaf)

    def _insert(self, lease: Lease, branch: ParentNode[TreeNode], tokens: Sequence[int]) -> None:
        """Publish the new tokens in a leaf of their own."""
        start = lease.num_published
        pages = lease.pages[start // self.page_size : self.pages_for(len(tokens))]
        leaf = self.tree.insert(branch, pack(tokens[start:]), pages)
        leaf.program_id, leaf.priority = lease.user
        self._pin_instead(lease, leaf)
        lease.leaf = leaf
        lease.num_published = len(tokens)
        if self._events is not None:
            self._events.record_stored(leaf)

    def _unpublish_partial_page(self, lease: Lease) -> None:
        """Remove the lease's unfinished page, a node by itself, from the tree: a sibling holds the whole page."""
        node = lease.node
        assert node is not None
        parent = node.parent
        if isinstance(parent, TreeNode):
            self.tree.pin(parent)
        self.tree.unpin(node, self._clock)
        self.tiers.soft_pins.move_to(node, parent)
        if self.states is not None:
            self.states.pass_on(node)
        self.tree.remove(node)
        lease.node = parent if isinstance(parent, TreeNode) else None
        lease.num_published -= node.num_tokens

    def _remove_covered(self, node: TreeNode) -> None:
        """Remove a leaf whose tokens a sibling has too."""
        if self.states is not None:
            self.states.pass_on(node)
        self.tiers.remove_leaf(node)

    def _pin_instead(self, lease: Lease, node: TreeNode) -> None:
        self.tree.pin(node)
        if lease.node is not None:
            self.tree.unpin(lease.node, self._clock)
        lease.node = node
