"""The clairvoyant's figures, judged by trying everything, and by what a real cache hits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.bench.scheduling.programs import Asked, Event, Workload
from ramiform.bench.scheduling.simulation import simulate
from ramiform.bench.scheduling.workloads import make_workloads
from ramiform.runtime.protocol.config import CoreConfig

from .optimum import bounded_hits, optimal_hits

few = st.integers(0, 1)  # few different tokens, so that prefixes are shared
asked = st.builds(
    lambda prompt, output: Asked(prompt, 0.0, output),
    st.lists(few, min_size=1, max_size=4),
    st.lists(few, min_size=1, max_size=2),
)


@st.composite
def schedules(draw: st.DrawFn) -> list[Event]:
    """Requests that start one after the other, and end whenever."""
    events: list[Event] = []
    running: list[Asked] = []
    for request in draw(st.lists(asked, max_size=5)):
        for _ in range(draw(st.integers(0, len(running)))):
            events.append(("ends", running.pop(draw(st.integers(0, len(running) - 1)))))
        events.append(("starts", request))
        running.append(request)
    return [*events, *(("ends", request) for request in running)]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.slow
@given(st.lists(asked, max_size=5))
def test_no_order_hits_more_than_the_optimum(requests: list[Asked]) -> None:
    def hits(order: Sequence[Asked]) -> int:
        """An endless cache, one request after the other."""
        return sum(
            max((common(request.prompt[:-1], other.computed) for other in order[:index]), default=0)
            for index, request in enumerate(order)
        )

    assert max(hits(order) for order in permutations(requests)) <= optimal_hits(requests)


def test_the_optimum_is_that_of_the_best_order() -> None:
    # The long one first: the short one then computes its last token again, which the other order saves.
    requests = [Asked([1, 2, 3], 0.0, [9]), Asked([1, 2], 0.0, [8])]
    assert optimal_hits(requests) == 2
    # A conversation: everything but the last output token, which nobody has computed.
    requests = [Asked([1, 2, 3], 0.0, [4, 5]), Asked([1, 2, 3, 4, 5, 6], 0.0, [7])]
    assert optimal_hits(requests) == 4


@pytest.mark.slow
@settings(deadline=None)
@given(schedules(), st.integers(0, 5))
def test_no_choice_of_tokens_to_keep_hits_more_than_the_bound(events: list[Event], num_slots: int) -> None:
    def prefixes(request: Asked) -> list[tuple[int, ...]]:
        return [tuple(request.computed[:end]) for end in range(1, len(request.computed) + 1)]

    @cache
    def best(index: int, kept: frozenset[tuple[int, ...]]) -> int:
        """Hits from event `index` on. When a request ends, whatever nobody holds then may be kept or dropped."""
        if index == len(events):
            return 0
        kind, request = events[index]
        running = [r for k, r in events[:index] if k == "starts" and ("ends", r) not in events[:index]]
        if kind == "starts":
            there = kept.union(*(prefixes(other) for other in running))
            hits = sum(prefix in there for prefix in prefixes(request)[: request.num_hittable])
            return hits + best(index + 1, kept.difference(prefixes(request)))
        held = {prefix for other in running if other is not request for prefix in prefixes(other)}
        known = sorted(kept.union(prefixes(request)) - held)
        choices = combinations(known, min(num_slots, len(known)))
        return max(best(index + 1, frozenset(choice)) for choice in choices)

    assert bounded_hits(events, num_slots) == best(0, frozenset())


def tiny(seed: int) -> list[Workload]:
    return make_workloads(range(1000), size=0.1, length=0.3, seed=seed)


@pytest.mark.slow
def test_no_cache_beats_the_bounds_and_a_large_one_comes_close() -> None:
    for workload in tiny(0):
        ample = simulate(workload, CoreConfig(), 4096)
        optimum = optimal_hits(ample.run.requests)
        assert 0.98 * optimum <= ample.run.num_hits <= optimum
        longest = max(len(request.computed) for request in ample.run.requests)
        num_pages = max(ample.peak_pages // 2, -(-longest // 16))
        small = simulate(workload, CoreConfig(), num_pages)
        assert small.run.num_hits <= bounded_hits(small.events, 16 * num_pages) <= optimum


def test_memory_changes_neither_the_requests_nor_the_tokens() -> None:
    def requests(workload: Workload, num_pages: int) -> list[tuple[list[int], list[int]]]:
        run = simulate(workload, CoreConfig(), num_pages).run
        return sorted((list(request.prompt), request.output) for request in run.requests)

    for workload in tiny(1):
        assert requests(workload, 4096) == requests(workload, 48)


def test_the_prompts_of_a_conversation_grow_by_what_was_generated() -> None:
    chat = next(workload for workload in tiny(2) if workload.name == "multi-turn chat")
    one = Workload(chat.name, chat.programs[:1], 1)
    run = simulate(one, CoreConfig(), 4096).run
    assert len(run.requests) == 6
    for before, after in pairwise(run.requests):
        history = [*before.prompt, *before.output]
        assert list(after.prompt[: len(history)]) == history
        assert after.num_cached == len(history) - 1
        assert before.first_token is not None
        assert before.submitted < before.first_token < after.submitted
