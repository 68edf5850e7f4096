"""A naive model of the prefix cache: a dictionary of token sequences, and the content of every slot of both tiers.

It drives a cache as a scheduler and an engine would, and judges every answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from ramiform.radix.cache import Copy, Lease, PrefixCache
from ramiform.radix.eviction.heap import EvictionHeap
from ramiform.radix.lease import LeaseUser, SparePages
from ramiform.radix.packed_tokens import TOKEN_BYTES, unpack
from ramiform.radix.reuse_forecast import ReuseForecast, WaitGroup
from ramiform.radix.tree import TreeNode, TreeRoot

from .event_mirror import Mirror, cached
from .invariants import check_invariants, path_from_root

PAGE_SIZE = 4


@dataclass(eq=False)
class Sequence:
    """A running sequence, and how much of it is computed."""

    tokens: list[int]
    namespace: str
    lease: Lease
    num_computed: int


@dataclass
class SoftPinned:
    """A soft pin, and the number of pages that had left their tier when it was made."""

    namespace: str
    tokens: list[int]
    rank: int
    num_moved: int  # pages that had left their tier when it was made


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def tokens_of(node: TreeNode) -> list[int]:
    return unpack(b"".join(part.run for part in path_from_root(node)))


def namespace_of(node: TreeNode) -> str:
    root = path_from_root(node)[0].parent
    assert isinstance(root, TreeRoot)
    return root.namespace


def evicted_first(strategy: str, leaves: list[TreeNode], forecast: ReuseForecast) -> list[TreeNode]:
    """Leaves that the strategy may evict first, by its definition."""

    def last_wait(leaf: TreeNode) -> tuple[float, WaitGroup]:
        waits = [forecast.wait(owner) for owner in leaf.soft_pins or ()]
        return max((wait.since, wait.group) for wait in waits)

    def rate(leaf: TreeNode) -> float:
        since, group = last_wait(leaf)
        return forecast.rate(group, since)

    if strategy == "program":
        unpinned = [leaf for leaf in leaves if not leaf.soft_pins]
        private = [leaf for leaf in unpinned if leaf.program_id is not None]
        leaves = private or unpinned or leaves
        if not unpinned:
            leaves = [leaf for leaf in leaves if rate(leaf) == min(map(rate, leaves))]
            leaves = [leaf for leaf in leaves if last_wait(leaf)[0] == min(last_wait(other)[0] for other in leaves)]
            seniority = {id(leaf): min((leaf.soft_pins or {}).values()) for leaf in leaves}
            leaves = [leaf for leaf in leaves if seniority[id(leaf)] == max(seniority.values())]
    if strategy == "lfu":
        leaves = [leaf for leaf in leaves if leaf.num_hits == min(other.num_hits for other in leaves)]
    if strategy == "priority":
        leaves = [leaf for leaf in leaves if leaf.priority == min(other.priority for other in leaves)]
    return [leaf for leaf in leaves if leaf.last_used == min(other.last_used for other in leaves)]


def page_keys(node: TreeNode) -> list[bytes]:
    """Keys of the node's whole pages, as `Model.save` names them."""
    size = PAGE_SIZE * TOKEN_BYTES
    return [bytes(node.run[at : at + size]) for at in range(0, len(node.run) // size * size, size)]


class Model:
    def __init__(self, num_pages: int, num_host_pages: int, strategy: str, enabled: bool) -> None:
        self.cache = PrefixCache(
            num_pages, PAGE_SIZE, enabled, num_host_pages=num_host_pages, strategy=strategy, events=True
        )
        self.cache.tree.unsaved = {}
        self.known: dict[str, list[list[int]]] = {}  # every published sequence by namespace, never forgotten
        # The KV of a slot stands for its token and everything before it.
        self.slots: dict[int, tuple[int, ...]] = {}
        self.due: list[Copy] = []  # copies decided but not made
        self.live: list[Sequence] = []
        self.soft_pins: dict[int, SoftPinned] = {}
        self.mirror = Mirror(PAGE_SIZE)
        self.flushed = False
        self.check_victims(self.cache.tiers.device_heap, on_host=False)
        self.check_victims(self.cache.tiers.host_heap, on_host=True)

    def check_victims(self, heap: EvictionHeap, on_host: bool) -> None:
        """Compare each victim with a search of all leaves; leaves without a ticket were popped already."""
        pop: Callable[[], TreeNode | None] = heap.pop

        def checked_pop() -> TreeNode | None:
            nodes = [node for node in self.cache.tree.nodes() if node.on_host == on_host]
            leaves = [node for node in nodes if node.evictable and node.ticket is not None]
            victim = pop()
            assert isinstance(self.cache.strategy, str)
            expected = evicted_first(self.cache.strategy, leaves, self.cache.forecast)
            assert victim in expected if leaves else victim is None
            return victim

        heap.pop = checked_pop  # type: ignore[method-assign]

    @property
    def num_lost(self) -> int:
        return self.cache.stats.num_evicted_pages + self.flushed

    @property
    def num_moved(self) -> int:
        return self.num_lost + self.cache.stats.num_demoted_pages

    @property
    def shape(self) -> tuple[int, ...]:
        cache = self.cache
        return (cache.num_free, cache.num_cached, cache.num_host_cached, cache.num_available, self.num_moved)

    def slot(self, lease: Lease, position: int) -> int:
        return lease.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE

    def settle(self) -> None:
        """Make the copies that are due, in order. Call before anything is written."""
        self.slots = self.settled()
        self.due = []

    def settled(self) -> dict[int, tuple[int, ...]]:
        """Content of the slots once the copies are made."""
        self.due += self.cache.take_copies()
        slots = dict(self.slots)
        for copy in self.due:
            assert copy.source != copy.target
            for offset in range(copy.num_tokens):
                slots[copy.target * PAGE_SIZE + offset] = slots[copy.source * PAGE_SIZE + offset]
        return slots

    def acquire(
        self,
        tokens: list[int],
        namespace: str,
        limit: int | None,
        more: int,
        spare: int,
        priority: int,
        program_id: str | None,
    ) -> Sequence | None:
        cap = len(tokens) if limit is None else min(limit, len(tokens))
        naive = max((common(tokens[:cap], other) for other in self.known.get(namespace, [])), default=0)
        matched = self.cache.match(tokens, namespace, limit=limit)
        assert matched <= naive
        if self.cache.enabled and not self.num_lost:
            assert matched == naive
        before = self.shape
        lease = self.cache.acquire(
            tokens,
            namespace,
            limit=limit,
            num_tokens=matched + more,
            spare=SparePages(spare),
            user=LeaseUser(program_id, priority),
        )
        if lease is None:
            assert self.shape == before
            assert self.cache.pages_for(matched + more) + spare > self.cache.num_available
            return None
        assert self.cache.num_available >= spare
        assert len(lease.pages) * PAGE_SIZE >= matched + more
        assert lease.matched in (matched, matched // PAGE_SIZE * PAGE_SIZE)
        sequence = Sequence(tokens, namespace, lease, lease.matched)
        self.live.append(sequence)
        return sequence

    def compute(self, sequence: Sequence, num_tokens: int, more: list[int]) -> None:
        sequence.tokens = sequence.tokens + more
        end = min(sequence.num_computed + num_tokens, len(sequence.tokens))
        pages = list(sequence.lease.pages)
        before = self.shape
        if not self.cache.extend(sequence.lease, end):
            assert sequence.lease.pages == pages
            assert self.shape == before
            assert self.cache.pages_for(end) - len(pages) > self.cache.num_available
            return
        self.settle()
        for position in range(sequence.num_computed, end):
            self.slots[self.slot(sequence.lease, position)] = tuple(sequence.tokens[: position + 1])
        sequence.num_computed = end

    def commit(self, sequence: Sequence) -> None:
        self.cache.commit(sequence.lease, sequence.tokens[: sequence.num_computed])
        self.publish(sequence)

    def release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.lease, sequence.tokens[: sequence.num_computed])
        self.live.remove(sequence)
        self.publish(sequence)
        with pytest.raises(AssertionError):
            self.cache.release(sequence.lease, [])
        with pytest.raises(AssertionError):
            self.cache.extend(sequence.lease, 1)

    def abort(self, sequence: Sequence) -> None:
        """End the sequence without publishing what was computed since the last commit."""
        self.cache.release(sequence.lease, [])
        self.live.remove(sequence)

    def set_soft_pin(self, sequence: Sequence, owner: int, num_tokens: int, rank: int) -> None:
        self.cache.set_soft_pin(sequence.lease, owner, num_tokens, rank)
        tokens = sequence.tokens[: min(num_tokens, sequence.lease.num_published)]
        self.soft_pins[owner] = SoftPinned(sequence.namespace, tokens, rank, self.num_moved)

    def drop_soft_pin(self, owner: int) -> None:
        self.cache.drop_soft_pin(owner)
        self.soft_pins.pop(owner, None)

    def wait(self, owner: int, kind: str, seconds: float) -> None:
        """Let time pass, and let the owner's wait of another kind begin or, with none, end."""
        self.cache.forecast.now += seconds
        if kind == "change":
            self.cache.set_wait_kind(owner, "tool")
        elif kind:
            self.cache.begin_wait(owner, kind)
        else:
            self.cache.forecast.end_wait(owner)
            self.drop_soft_pin(owner)

    def flush(self) -> None:
        before = self.cache.num_cached + self.cache.num_host_cached
        assert self.cache.flush() == before - self.cache.num_cached - self.cache.num_host_cached
        self.flushed = True
        assert self.cache.num_host_cached == 0
        if not self.live:
            assert self.cache.num_free == self.cache.num_pages

    def publish(self, sequence: Sequence) -> None:
        computed = sequence.tokens[: sequence.num_computed]
        self.known.setdefault(sequence.namespace, []).append(computed)
        if self.cache.enabled and not self.num_lost:
            assert self.cache.match(computed, sequence.namespace) == len(computed)

    def save(self) -> None:
        """Save some new pages below memory, a prefix before what continues it. A page's key is its tokens."""
        unsaved = self.cache.tree.unsaved
        assert unsaved is not None
        for node in list(self.cache.tree.nodes())[: 2 + len(self.live)]:
            if node in unsaved:
                node.saved_keys = page_keys(node)
                del unsaved[node]

    def check(self) -> None:
        check_invariants(self.cache, [sequence.lease for sequence in self.live])
        self.check_contents()
        self.check_soft_pins()
        self.mirror.apply(self.cache.take_events())
        assert self.mirror.cached == cached(self.cache)

    def check_contents(self) -> None:
        """Check that every page holds what its readers expect."""
        slots = self.settled()
        for sequence in self.live:
            for position in range(sequence.num_computed):
                slot = self.slot(sequence.lease, position)
                assert slots[slot] == tuple(sequence.tokens[: position + 1])
        for node in self.cache.tree.nodes():
            assert node.saved_keys == page_keys(node)[: len(node.saved_keys)]
            tokens = tokens_of(node)
            before = len(tokens) - node.num_tokens
            for at in range(node.num_tokens):
                page, offset = divmod(at, PAGE_SIZE)
                assert slots[node.pages[page] * PAGE_SIZE + offset] == tuple(tokens[: before + at + 1])

    def check_soft_pins(self) -> None:
        """Check that soft pins lie on a node inside their prefix and, unless pages left, on every leaf of it."""
        if self.cache.strategy != "program":
            assert not self.cache.tiers.soft_pins.owners()
            return
        for node in self.cache.tree.nodes():
            tokens = tokens_of(node)
            for owner, rank in (node.soft_pins or {}).items():
                pin = self.soft_pins[owner]
                assert (namespace_of(node), rank) == (pin.namespace, pin.rank)
                assert len(tokens) <= self.cache.pages_for(len(pin.tokens)) * PAGE_SIZE
                assert common(tokens, pin.tokens) == min(len(tokens), len(pin.tokens))
            if not node.evictable or len(tokens) % PAGE_SIZE:
                continue
            for owner, pin in self.soft_pins.items():
                if pin.num_moved == self.num_moved and pin.namespace == namespace_of(node):
                    needed = common(tokens, pin.tokens) == len(tokens)
                    assert not needed or owner in (node.soft_pins or {})
