"""The prefix cache against a dictionary of token sequences, with the pages' contents simulated."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from ramify.radix.cache import Copy, Lease, PrefixCache
from ramify.radix.invariants import check_invariants

PAGE_SIZE = 4
# Mostly the beginning of one long sequence, so that much is computed twice.
sequences = st.lists(st.integers(0, 1), min_size=1, max_size=22) | st.integers(1, 22).map(lambda n: [0] * n)
continuations = st.lists(st.integers(0, 1), max_size=6) | st.integers(1, 6).map(lambda n: [0] * n)
namespaces = st.sampled_from(["", "other"])


@dataclass(eq=False)
class Sequence:
    """A running sequence: what it is, and how much of it is computed."""

    tokens: list[int]
    namespace: str
    lease: Lease
    num_computed: int
    published: list[int] = field(default_factory=list)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class CacheMachine(RuleBasedStateMachine):
    """Computes, copies, publishes and frees like an engine would; after each step reads every page back."""

    running = Bundle("running")

    @initialize(num_pages=st.integers(4, 40), enabled=st.sampled_from([True, True, True, False]))
    def start(self, num_pages: int, enabled: bool) -> None:
        self.cache = PrefixCache(num_pages, PAGE_SIZE, enabled)
        self.known: dict[str, list[list[int]]] = {"": [], "other": []}  # every published sequence, never forgotten
        # What the KV of a slot stands for: the token and everything before it, whole.
        self.slots: dict[int, tuple[int, ...]] = {}
        self.due: list[Copy] = []  # copies, decided but not made
        self.live: list[Sequence] = []
        self.flushed = False

    def slot(self, lease: Lease, position: int) -> int:
        return lease.pages[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE

    def settle(self) -> None:
        """Make the copies that are due, in order. Nothing may be written before."""
        self.slots = self.settled()
        self.due = []

    def settled(self) -> dict[int, tuple[int, ...]]:
        """What the slots will hold once the copies are made."""
        self.due += self.cache.take_copies()
        slots = dict(self.slots)
        for copy in self.due:
            for offset in range(copy.num_tokens):
                slots[copy.target * PAGE_SIZE + offset] = slots[copy.source * PAGE_SIZE + offset]
        return slots

    @rule(
        target=running,
        tokens=sequences,
        namespace=namespaces,
        limit=st.none() | st.integers(0, 22),
        more=st.integers(0, 9),
        spare=st.integers(0, 3),
    )
    def acquire(self, tokens: list[int], namespace: str, limit: int | None, more: int, spare: int) -> Sequence | None:
        cap = len(tokens) if limit is None else min(limit, len(tokens))
        naive = max((common(tokens[:cap], other) for other in self.known[namespace]), default=0)
        matched = self.cache.match(tokens, namespace, limit=limit)
        assert matched <= naive
        if self.cache.enabled and not self.flushed and not self.cache.stats.num_evicted_pages:
            assert matched == naive
        before = (self.cache.num_free, self.cache.num_cached, self.cache.num_available)
        lease = self.cache.acquire(tokens, namespace, limit=limit, num_tokens=matched + more, spare=spare)
        if lease is None:
            assert before == (self.cache.num_free, self.cache.num_cached, self.cache.num_available)
            assert self.live or spare or self.cache.pages_for(matched + more) > self.cache.num_pages
            return None
        assert self.cache.num_available >= spare
        assert len(lease.pages) * PAGE_SIZE >= matched + more
        assert lease.matched in (matched, matched // PAGE_SIZE * PAGE_SIZE)
        sequence = Sequence(tokens, namespace, lease, lease.matched)
        self.live.append(sequence)
        return sequence

    @rule(sequence=running, num_tokens=st.integers(1, 9), more=continuations)
    def compute(self, sequence: Sequence | None, num_tokens: int, more: list[int]) -> None:
        if sequence not in self.live:
            return
        self.settle()
        sequence.tokens = sequence.tokens + more
        end = min(sequence.num_computed + num_tokens, len(sequence.tokens))
        pages = list(sequence.lease.pages)
        room = self.cache.num_available
        if not self.cache.extend(sequence.lease, end):
            assert sequence.lease.pages == pages
            assert self.cache.num_available == room
            assert self.cache.pages_for(end) - len(pages) > room
            return
        for position in range(sequence.num_computed, end):
            self.slots[self.slot(sequence.lease, position)] = tuple(sequence.tokens[: position + 1])
        sequence.num_computed = end

    @rule(sequence=running)
    def commit(self, sequence: Sequence | None) -> None:
        if sequence in self.live:
            self.cache.commit(sequence.lease, sequence.tokens[: sequence.num_computed])
            self.publish(sequence)

    @rule(sequence=consumes(running))
    def release(self, sequence: Sequence | None) -> None:
        if sequence not in self.live:
            return
        self.cache.release(sequence.lease, sequence.tokens[: sequence.num_computed])
        self.live.remove(sequence)
        self.publish(sequence)
        with pytest.raises(AssertionError):
            self.cache.release(sequence.lease, [])
        with pytest.raises(AssertionError):
            self.cache.extend(sequence.lease, 1)

    def publish(self, sequence: Sequence) -> None:
        computed = sequence.tokens[: sequence.num_computed]
        self.known[sequence.namespace].append(computed)
        if self.cache.enabled and not self.flushed and not self.cache.stats.num_evicted_pages:
            assert self.cache.match(computed, sequence.namespace) == len(computed)

    @rule()
    @precondition(lambda self: self.cache.num_cached)
    def flush(self) -> None:
        self.cache.flush()
        self.flushed = True
        if not self.live:
            assert self.cache.num_free == self.cache.num_pages

    @invariant()
    def every_page_has_one_owner_and_holds_what_its_readers_expect(self) -> None:
        if not hasattr(self, "cache"):
            return
        check_invariants(self.cache, [sequence.lease for sequence in self.live])
        slots = self.settled()
        for sequence in self.live:
            for position in range(sequence.num_computed):
                slot = self.slot(sequence.lease, position)
                assert slots[slot] == tuple(sequence.tokens[: position + 1])
        self.every_cached_prefix_reads_back(slots)

    def every_cached_prefix_reads_back(self, slots: dict[int, tuple[int, ...]]) -> None:
        for node in self.cache.tree.nodes():
            path = [node]
            while hasattr(path[0].parent, "key"):
                path.insert(0, path[0].parent)
            spelled = tuple(token for part in path for token in part.key)
            at = len(spelled) - len(node.key)
            for offset in range(len(node.key)):
                assert slots[node.page * PAGE_SIZE + offset] == spelled[: at + offset + 1]


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestCacheMachine = CacheMachine.TestCase
