"""Forecasts of pages and output lengths. Judges: the requests' futures step by step, and the mean
of observed lengths."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.scheduler.memory_forecast import (
    MAX_SAFETY_FACTOR,
    NUM_PRIOR,
    NUM_RECENT,
    MemoryGrowth,
    OutputLengthEstimator,
    peak_pages,
)

growths = st.builds(MemoryGrowth, st.integers(0, 60), st.integers(-16, 100), st.integers(0, 300))


@given(st.lists(growths, max_size=8), st.sampled_from([1, 4, 16]))
def test_the_peak_is_the_most_that_is_needed_at_any_step(running: list[MemoryGrowth], page_size: int) -> None:
    worst = 0
    for step in range(max((growth.num_steps for growth in running), default=0) + 1):
        alive = [growth for growth in running if growth.num_steps >= step]
        freed = sum(growth.num_freed for growth in running if growth.num_steps < step)
        worst = max(worst, sum(growth.num_wanted + step + page_size for growth in alive) - freed)
    assert peak_pages(sorted(running), page_size) == -(-worst // page_size)


def test_a_request_that_ends_soon_makes_room_for_one_that_goes_on() -> None:
    ends, goes_on = MemoryGrowth(2, 0, 320), MemoryGrowth(300, 0, 0)
    assert peak_pages([ends, goes_on], 16) < 300 // 16


EVENLY = [(i + 0.5) / 1000 for i in range(1000)]


def test_expectations_are_spread_like_the_residual_lengths_that_were_seen() -> None:
    draw = random.Random(1)
    lengths = OutputLengthEstimator()
    seen = [draw.randrange(1, 100) for _ in range(3 * NUM_RECENT)]
    for length in seen:
        lengths.record(length)
    recent = seen[-NUM_RECENT:]
    for num_tokens in (0, 20, 60):
        longer = sorted(length - num_tokens for length in recent if length > num_tokens)
        expected = [lengths.remaining(num_tokens, 150, quantile) for quantile in EVENLY]
        assert expected[: len(longer)] == sorted(expected[: len(longer)])
        mean = sum(longer) / len(longer)
        assert abs(sum(expected) / len(expected) - mean) < 150 * NUM_PRIOR / len(longer)
        for share in (0.1, 0.5, 0.8):
            assert abs(expected[int(share * 1000)] - longer[int(share * len(longer))]) <= 150 * NUM_PRIOR / len(longer)


def test_before_anything_was_seen_any_share_of_the_limit_is_expected() -> None:
    assert [OutputLengthEstimator().remaining(7, 100, quantile) for quantile in (0.0, 0.25, 0.5)] == [0, 25, 50]


def test_no_output_is_expected_to_exceed_its_limit() -> None:
    lengths = OutputLengthEstimator()
    for _ in range(20):
        lengths.record(500)
        lengths.record_retraction()
    assert lengths.remaining(3, 10, 0.5) == 10
    assert lengths.remaining(3, 0, 0.5) == 0


def test_retractions_make_it_careful_and_endings_relax_it() -> None:
    lengths = OutputLengthEstimator()
    for _ in range(NUM_RECENT):
        lengths.record(10)
    calm = lengths.remaining(0, 1000, 0.5)
    lengths.record_retraction()
    careful = lengths.remaining(0, 1000, 0.5)
    assert calm < careful <= MAX_SAFETY_FACTOR * calm + 1
    for _ in range(100):
        lengths.record(10)
    assert lengths.remaining(0, 1000, 0.5) == calm
