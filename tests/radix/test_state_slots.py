"""Recurrent states in the radix tree. Judge: a memory of what each slot holds, and a list of all kept prefixes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.radix.cache import Lease, PrefixCache
from ramiform.radix.state_slots import SlotCopy

from .invariants import check_invariants

PAGE = 4


class Sequences:
    """A cache, its leases with the tokens of each, and the content of every slot."""

    def __init__(self, num_pages: int, num_slots: int) -> None:
        self.cache = PrefixCache(num_pages, PAGE, num_state_slots=num_slots)
        self.leases: list[tuple[Lease, list[int]]] = []
        self.slots: dict[int, tuple[int, ...]] = {}
        assert self.cache.states is not None
        self.states = self.cache.states

    def begin(self, tokens: list[int]) -> Lease | None:
        """Start a sequence, whose tokens are computed and published at once."""
        assert self.cache.match(tokens, limit=len(tokens) - 1) == self.longest(tokens)
        lease = self.cache.acquire(tokens, num_tokens=len(tokens), limit=len(tokens) - 1)
        if lease is None:
            return None
        assert lease.states is not None
        self.change()
        if lease.matched:
            assert self.slots[lease.states.slot] == tuple(tokens[: lease.matched]), "the state of another prefix"
        for position in range(lease.matched + 1, len(tokens) + 1):
            if position % 3 == 0 and (slot := lease.states.plan(position, is_strong=position % 2 == 0)) is not None:
                self.slots[slot] = tuple(tokens[:position])
        self.slots[lease.states.slot] = tuple(tokens)
        self.leases.append((lease, tokens))
        self.cache.commit(lease, tokens)
        return lease

    def longest(self, tokens: list[int]) -> int:
        """Return the length of the longest kept proper prefix of `tokens`, wherever in the tree its state is."""
        kept = [self.slots[slot] for node in self.cache.tree.nodes() for slot in node.checkpoints.values()]
        return max((len(own) for own in kept if len(own) < len(tokens) and own == tuple(tokens[: len(own)])), default=0)

    def end(self, index: int, *, poisoned: bool = False) -> None:
        lease, tokens = self.leases.pop(index)
        if poisoned:
            self.cache.discard(lease)
        else:
            self.cache.release(lease, tokens)

    def change(self) -> None:
        for change in self.states.take_changes():
            assert isinstance(change, SlotCopy)
            self.slots[change.target] = self.slots[change.source]

    def check(self) -> None:
        """Check that every checkpoint is at the place of its tokens."""
        check_invariants(self.cache, [lease for lease, _ in self.leases])
        for node in self.cache.tree.nodes():
            _, path = self.cache.tree.path_tokens(node)
            start = len(path) - node.num_tokens
            for offset, slot in node.checkpoints.items():
                assert self.slots[slot] == tuple(path[: start + offset]), "a checkpoint of other tokens"


few = st.integers(1, 2)
steps = st.lists(
    st.tuples(st.just("begin"), st.lists(few, min_size=2, max_size=22))
    | st.tuples(st.sampled_from(["end", "end", "poison"]), st.integers(0, 5)),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(steps, st.integers(8, 30), st.integers(3, 12))
def test_states_are_where_their_tokens_are(script: list[tuple[str, Any]], num_pages: int, num_slots: int) -> None:
    sequences = Sequences(num_pages, num_slots)
    for kind, value in script:
        if kind == "begin" and len(sequences.leases) < num_slots:
            sequences.begin(value)
        elif kind != "begin" and sequences.leases:
            sequences.end(value % len(sequences.leases), poisoned=kind == "poison")
        sequences.check()


def test_a_match_ends_in_the_page_that_has_the_state() -> None:
    """Two pages begin with the same tokens; the shorter match must not end in the other one."""
    sequences = Sequences(20, 9)
    for tail in ([7, 8, 9], [7, 8, 1], [7, 8, 30]):
        sequences.begin([1, 2, 3, 4, *tail])
        sequences.end(0)
    for tail in ([7, 8, 9, 5, 5], [7, 8, 1, 5, 5], [7, 8, 30, 5, 5]):
        lease = sequences.begin([1, 2, 3, 4, *tail])
        assert lease is not None
        assert lease.matched == 7


def test_every_sequence_finds_the_state_of_a_prefix_that_ends_inside_a_page() -> None:
    sequences = Sequences(200, 80)
    prefix = [1, 2, 3, 4, 5, 6]  # position 6 is kept
    for last in random.Random(1).sample(range(10, 70), 50):
        lease = sequences.begin([*prefix, last, 9])
        assert lease is not None
        assert lease.matched == (0 if len(sequences.leases) == 1 else 6)
    assert sum(6 - 4 in node.checkpoints for node in sequences.cache.tree.nodes()) == 1, "it is kept once"


def test_checkpoints_that_were_used_last_are_evicted_last() -> None:
    sequences = Sequences(40, 4)
    for first in (1, 2, 3):
        sequences.begin([first, 5])
        sequences.end(0)
    sequences.begin([1, 5, 6])  # uses the first one
    sequences.end(0)
    sequences.begin([4, 5])  # takes the slot of [2, 5]
    sequences.end(0)
    assert [sequences.cache.match([first, 5, 9]) for first in (1, 2, 3, 4)] == [2, 0, 2, 2]


def test_weak_checkpoints_are_evicted_before_strong_ones() -> None:
    sequences = Sequences(40, 4)
    for tokens in ([5, 6], [1, 2, 3, 4], [7, 8], [9, 9]):  # the second one leaves a weak checkpoint after three tokens
        sequences.begin(tokens)
        sequences.end(0)
    assert sequences.states.stats.num_evicted == 1
    assert [sequences.cache.match(tokens) for tokens in ([1, 2, 3, 9], [1, 2, 3, 4, 9], [5, 6, 9])] == [0, 4, 2]
