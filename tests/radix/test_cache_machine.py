"""The prefix cache against the naive model, by rules in any order and, for depth, by long random walks."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramiform.radix.eviction.strategies import STRATEGIES

from .naive_cache import Model, Sequence

# Mostly the beginning of one long sequence, so that much is computed twice.
sequences = st.lists(st.integers(0, 1), min_size=1, max_size=30) | st.integers(1, 40).map(lambda n: [0] * n)
continuations = st.lists(st.integers(0, 1), max_size=6) | st.integers(1, 12).map(lambda n: [0] * n)
limits = st.none() | st.none() | st.integers(0, 40)
namespaces = st.sampled_from(["", "", "other"])
priorities = st.integers(-1, 2)
program_ids = st.sampled_from([None, "one", "two"])
owners = st.integers(0, 3)
live = precondition(lambda self: self.model.live)


class CacheMachine(RuleBasedStateMachine):
    @initialize(
        num_pages=st.integers(4, 24),
        num_host_pages=st.sampled_from([0, 0, 1, 3, 8, 40]),
        strategy=st.sampled_from([*STRATEGIES, "program"]),
        enabled=st.sampled_from([True, True, True, True, False]),
    )
    def start(self, num_pages: int, num_host_pages: int, strategy: str, enabled: bool) -> None:
        self.model = Model(num_pages, num_host_pages, strategy, enabled)

    def sequence(self, which: int) -> Sequence:
        return self.model.live[which % len(self.model.live)]

    @rule(
        tokens=sequences,
        namespace=namespaces,
        limit=limits,
        more=st.integers(0, 9),
        spare=st.integers(0, 3),
        priority=priorities,
        program_id=program_ids,
    )
    def acquire(
        self,
        tokens: list[int],
        namespace: str,
        limit: int | None,
        more: int,
        spare: int,
        priority: int,
        program_id: str | None,
    ) -> None:
        self.model.acquire(tokens, namespace, limit, more, spare, priority, program_id)

    @rule(tokens=sequences, namespace=namespaces, priority=priorities, program_id=program_ids)
    def serve(self, tokens: list[int], namespace: str, priority: int, program_id: str | None) -> None:
        """A request from its beginning to its end."""
        sequence = self.model.acquire(tokens, namespace, None, 0, 0, priority, program_id)
        if sequence is not None:
            self.model.compute(sequence, len(tokens), [])
            self.model.release(sequence)

    @live
    @rule(which=st.integers(0, 9), num_tokens=st.integers(1, 24), more=continuations)
    def compute(self, which: int, num_tokens: int, more: list[int]) -> None:
        self.model.compute(self.sequence(which), num_tokens, more)

    @live
    @rule(which=st.integers(0, 9))
    def commit(self, which: int) -> None:
        self.model.commit(self.sequence(which))

    @live
    @rule(which=st.integers(0, 9))
    def release(self, which: int) -> None:
        self.model.release(self.sequence(which))

    @live
    @rule(which=st.integers(0, 9))
    def abort(self, which: int) -> None:
        self.model.abort(self.sequence(which))

    @live
    @rule(which=st.integers(0, 9), owner=owners, num_tokens=st.integers(0, 40), rank=st.integers(0, 3))
    def set_soft_pin(self, which: int, owner: int, num_tokens: int, rank: int) -> None:
        self.model.set_soft_pin(self.sequence(which), owner, num_tokens, rank)

    @rule(
        owner=owners, kind=st.sampled_from(["tool", "user", "change", ""]), seconds=st.sampled_from([0.0, 1.0, 500.0])
    )
    def wait(self, owner: int, kind: str, seconds: float) -> None:
        self.model.wait(owner, kind, seconds)

    @rule(owner=owners)
    def drop_soft_pin(self, owner: int) -> None:
        self.model.drop_soft_pin(owner)

    @rule()
    @precondition(lambda self: self.model.cache.num_cached)
    def flush(self) -> None:
        self.model.flush()

    @rule()
    def save(self) -> None:
        self.model.save()

    @rule()
    def settle(self) -> None:
        self.model.settle()

    @invariant()
    def the_model_agrees(self) -> None:
        if hasattr(self, "model"):
            self.model.check()


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestCacheMachine = CacheMachine.TestCase


def walk(draw: random.Random, strategy: str, num_steps: int) -> Model:
    """A busy cache that is mostly full: few different tokens, several sequences at once."""
    model = Model(draw.randrange(6, 30), draw.choice([0, 2, 6, 15, 60]), strategy, enabled=True)
    # Where most sequences begin: long runs that part late, so that nodes are long and are split.
    trunks = [draw.choices(range(2), k=draw.randrange(8, 60)) for _ in range(3)]
    most = draw.choice([1, 2, 4])

    def tokens() -> list[int]:
        trunk = draw.choice(trunks)
        return trunk[: draw.randrange(1, len(trunk) + 1)] + draw.choices(range(2), k=draw.randrange(6))

    for _ in range(num_steps):
        chance = draw.random()
        sequence = draw.choice(model.live) if model.live else None
        if sequence is None or (chance < 0.25 and len(model.live) < most):
            limit = None if draw.random() < 0.8 else draw.randrange(40)
            program_id = draw.choice([None, "one", "one", "two"])
            model.acquire(
                tokens(), "", limit, draw.randrange(10), draw.choice([0, 0, 1, 3]), draw.randrange(-1, 3), program_id
            )
        elif chance < 0.55:
            upcoming = draw.choices(range(2), k=draw.choice([0, 0, 1, 9]))
            model.compute(sequence, draw.randrange(1, 30), upcoming)
            if draw.random() < 0.8:
                model.commit(sequence)
        elif chance < 0.7:
            model.set_soft_pin(sequence, draw.randrange(5), draw.randrange(60), draw.randrange(4))
        elif chance < 0.73:
            model.drop_soft_pin(draw.randrange(5))
        elif chance < 0.76:
            model.wait(draw.randrange(5), draw.choice(["tool", "user", "change", ""]), draw.choice([0.0, 1.0, 500.0]))
        elif chance < 0.8:
            model.abort(sequence)
        elif chance < 0.805:
            model.flush()
        else:
            model.release(sequence)
        model.check()
    return model


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_long_walks_agree_with_the_model(strategy: str) -> None:
    seen = [walk(random.Random(f"{strategy} {seed}"), strategy, num_steps=120).cache.stats for seed in range(40)]
    assert all(stats.num_evicted_pages + stats.num_demoted_pages for stats in seen), "there is no pressure"
    assert sum(stats.num_promoted_pages for stats in seen) > 100
    assert sum(stats.num_host_hit_tokens for stats in seen) > 500
