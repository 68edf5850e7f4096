"""Forecasts learned from waits, judged by counting returns, and by order."""

from __future__ import annotations

import random

import pytest

from ramiform.radix.cache import PrefixCache
from ramiform.radix.reuse_forecast import MAX_KINDS, OTHER, ReuseForecast, WaitGroup

from .test_eviction import prefix, store_soft_pinned, victims


def play(forecast: ReuseForecast, owner: str, kind: str, seconds: float) -> None:
    forecast.begin_wait(owner, kind)
    forecast.now += seconds
    forecast.end_wait(owner)


def test_a_rate_is_that_of_the_waits_seen() -> None:
    forecast, draw = ReuseForecast(), random.Random(0)
    for number in range(4000):
        play(forecast, f"owner {number}", "tool", draw.expovariate(1 / 10))
    # Of waits without memory the rate is the inverse of their mean, however long they have lasted.
    for seconds in (0.0, 5.0, 20.0):
        assert forecast.rate(WaitGroup("tool", 0), forecast.now - seconds) == pytest.approx(0.1, rel=0.1)


def test_rates_never_grow_with_the_time_waited() -> None:
    forecast, draw = ReuseForecast(), random.Random(1)
    for number in range(500):
        play(forecast, f"owner {number % 7}", draw.choice("ab"), draw.choice([0.1, 3.0, 3.0, 100.0, 5000.0]))
        rates = [forecast.rate(WaitGroup("a", 0), forecast.now - 1.3**step) for step in range(40)]
        assert rates == sorted(rates, reverse=True)


def test_a_wait_that_lost_its_prefix_counts_as_time_without_a_return() -> None:
    counted, lost = ReuseForecast(), ReuseForecast()
    for forecast in (counted, lost):
        for _ in range(10):
            play(forecast, "owner", "tool", 5.0)
        forecast.begin_wait("other", "tool")
        forecast.now += 50.0
    lost.note_lost("other")
    lost.note_lost("nobody")
    group = WaitGroup("tool", 0)
    assert lost.rate(group, lost.now) < counted.rate(group, counted.now)
    # When it returns, no second is counted twice.
    for forecast in (counted, lost):
        forecast.now += 20.0
        forecast.end_wait("other")
    assert lost.rate(group, lost.now) == pytest.approx(counted.rate(group, counted.now))


def test_an_owner_that_returns_later_than_others_is_expected_later() -> None:
    forecast = ReuseForecast()
    for _ in range(20):
        for owner, seconds in (("quick", 2.0), ("usual", 20.0), ("slow", 200.0)):
            play(forecast, owner, "tool", seconds)
    for owner in ("quick", "usual", "slow"):
        forecast.begin_wait(owner, "tool")
    levels = [forecast.wait(owner).group.level for owner in ("slow", "usual", "quick")]
    assert levels == sorted(levels)
    assert levels[0] < 0 < levels[2]
    forecast.forget("slow")
    forecast.begin_wait("slow", "tool")
    assert forecast.wait("slow").group.level == 0


def test_kinds_are_bounded() -> None:
    forecast = ReuseForecast()
    for number in range(2 * MAX_KINDS):
        forecast.begin_wait(number, f"tool {number}")
    forecast.set_kind(0, "one more")
    assert forecast.wait(0).group.kind == forecast.wait(2 * MAX_KINDS - 1).group.kind == OTHER
    assert forecast.wait(1).group.kind == "tool 1"


def test_the_prefix_whose_owner_waits_for_something_slow_goes_first() -> None:
    cache = PrefixCache(9, 16, strategy="program")
    for _ in range(20):
        play(cache.forecast, "a", "tool", 5.0)
        play(cache.forecast, "b", "user", 500.0)
    for name, kind in ((1, "tool"), (2, "user"), (3, "tool")):
        store_soft_pinned(cache, prefix(name), str(name), 48)
        cache.begin_wait(str(name), kind)
        cache.forecast.now += 1.0
    assert victims(cache, prefix(1), prefix(2), prefix(3)) == [1, 0, 2]


def test_what_is_learned_late_about_a_wait_moves_its_prefix() -> None:
    cache = PrefixCache(6, 16, strategy="program")
    for _ in range(20):
        play(cache.forecast, "a", "tool", 5.0)
        play(cache.forecast, "b", "user", 500.0)
    for name in (1, 2):
        store_soft_pinned(cache, prefix(name), str(name), 48)
        cache.begin_wait(str(name), "tool")
        cache.forecast.now += 1.0
    cache.set_wait_kind("2", "user")
    cache.set_wait_kind("nobody", "user")
    assert victims(cache, prefix(1), prefix(2)) == [1, 0]


def test_what_ended_programs_leave_takes_no_host_page_from_live_ones() -> None:
    cache = PrefixCache(6, 16, num_host_pages=3, strategy="program")
    store_soft_pinned(cache, prefix(1), "live", 48)
    store_soft_pinned(cache, prefix(2), "ended", 48)
    lease = cache.acquire(prefix(3), "newcomer", num_tokens=48)
    assert lease is not None
    assert cache.num_host_cached == 3
    cache.drop_soft_pin("ended")
    assert cache.extend(lease, 96)
    assert (cache.match(prefix(1)), cache.match(prefix(2))) == (48, 0)


def test_what_a_client_asked_to_keep_goes_last_until_its_time_is_over() -> None:
    def filled() -> PrefixCache:
        cache = PrefixCache(9, 16, strategy="program")
        cache.forecast.now = 1.0
        for name, seconds in (("long", 500.0), ("short", 50.0)):
            cache.forecast.retain(name, cache.forecast.now + seconds)
        for number, name in enumerate(("long", "short", "waiting")):
            store_soft_pinned(cache, prefix(number), name, 48)
        cache.begin_wait("waiting", "tool")
        return cache

    names = [prefix(0), prefix(1), prefix(2)]
    assert victims(filled(), *names) == [2, 1, 0]
    cache = filled()
    cache.forecast.now += 100.0
    assert victims(cache, *names) == [1, 2, 0]
    cache = filled()
    cache.forecast.now += 1000.0
    assert victims(cache, *names) == [0, 1, 2]
