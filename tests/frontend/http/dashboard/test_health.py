"""Points of health: rates and percentiles of an interval, a bounded history, one second while somebody looks."""

from __future__ import annotations

import asyncio
import random
import statistics

import pytest

from ramiform.runtime.frontend.http.dashboard import health
from ramiform.runtime.frontend.http.dashboard.health import HealthSample, point_between
from ramiform.runtime.protocol.core import CoreStats
from ramiform.runtime.protocol.metrics import FrontendMetrics, sum_metrics

from ...harness import run
from ...served import served


def stats(**fields: int) -> CoreStats:
    required = dict.fromkeys(
        "num_running num_waiting num_pages num_free_pages num_cached_pages num_steps num_prompt_tokens "
        "num_cached_tokens num_output_tokens num_retractions num_evicted_pages".split(),
        0,
    )
    return CoreStats(**required | {"num_pages": 100, "num_free_pages": 40} | fields)


def test_a_point_says_what_happened_in_its_interval() -> None:
    metrics = FrontendMetrics()
    for _ in range(50):
        metrics.ttft.observe(100.0)  # before the interval: counts for nothing
    metrics.count("stop")
    before = HealthSample(10.0, stats(num_prompt_tokens=1000, num_cached_tokens=900), sum_metrics([metrics]))
    metrics.count("stop")
    metrics.count("error")
    metrics.itl.observe(0.02, 10)
    core = stats(
        num_running=3,
        num_waiting=2,
        num_cached_pages=25,
        num_prompt_tokens=1400,
        num_cached_tokens=1000,
        num_output_tokens=60,
        num_guessed_tokens=20,
        num_accepted_tokens=5,
        num_evicted_pages=4,
        num_retractions=1,
    )
    point = point_between(before, HealthSample(12.0, core, sum_metrics([metrics])), 1e9)
    assert (point.running, point.waiting, point.kv_use, point.cached_share) == (3, 2, 0.6, 0.25)
    assert (point.prompt_rate, point.output_rate, point.hit_rate, point.accept) == (200.0, 30.0, 0.25, 0.25)
    assert (point.evicted_pages, point.retractions, point.errors, point.requests) == (4, 1, 1, 2)
    assert point.ttft is None
    assert point.itl is not None
    assert 0.01 <= point.itl[0] <= point.itl[1] <= 0.025
    again = point_between(HealthSample(12.0, core, sum_metrics([metrics])), HealthSample(13.0, core, metrics), 1e9)
    assert (again.hit_rate, again.accept, again.itl, again.requests) == (None, None, None, 0)


def test_percentiles_are_those_of_the_values_to_a_bucket() -> None:
    draw = random.Random(3)
    values = [draw.expovariate(5) for _ in range(2000)]
    metrics = FrontendMetrics()
    before = HealthSample(0.0, stats(), sum_metrics([metrics]))
    for value in values:
        metrics.ttft.observe(value)
    found = point_between(before, HealthSample(1.0, stats(), metrics), 0.0).ttft
    exact = statistics.quantiles(values, n=100)
    bounds = [0.0, *metrics.ttft.bounds]
    for estimate, true in zip(found or (), (exact[49], exact[94]), strict=True):
        low = max(bound for bound in bounds if bound <= true)
        high = min(bound for bound in bounds if bound >= true)
        assert low <= estimate <= high


@pytest.mark.exhaustive
def test_points_come_by_themselves_and_faster_while_somebody_looks() -> None:
    async def main() -> None:
        async with served() as (built, client):
            history = built.frontend._page._history  # type: ignore[union-attr]
            intervals = []
            wait = history._pause

            async def noted(since: float) -> None:
                intervals.append(health.WATCHED_INTERVAL if history._is_watched else health.INTERVAL)
                await wait(since)

            history._pause = noted  # type: ignore[method-assign]
            with history.watching():
                async with asyncio.timeout(60):
                    while len(history.points) < 2:
                        await asyncio.sleep(0.05)
            assert intervals[-1] == health.WATCHED_INTERVAL
            answer = (await client.get("/v1/ramiform/health")).json()
            assert answer["interval"] == health.INTERVAL
            assert [point["t"] for point in answer["points"]][:2] == [point.t for point in history.points][:2]

    run(main())


@pytest.mark.slow
def test_only_the_last_minutes_are_kept() -> None:
    async def main() -> None:
        async with served() as (built, _):
            history = built.frontend._page._history  # type: ignore[union-attr]
            sample = HealthSample(0.0, stats(), FrontendMetrics())
            for second in range(0, 3000, 5):
                history._add(point_between(sample, sample, float(second)))
            times = [point.t for point in history.points]
            assert times[-1] - times[0] == health.KEPT_SECONDS

    run(main())
