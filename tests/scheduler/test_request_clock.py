"""Timings of a request. Judge: the times at which the test itself changed what the request does."""

from __future__ import annotations

import random

import pytest

from ramiform.runtime.protocol.core import Timings
from ramiform.runtime.scheduler.request import RequestClock


def test_the_phases_lie_between_the_recorded_times() -> None:
    clock = RequestClock(10.0)
    clock.run(11.0)
    clock.answer(13.0)
    clock.answer(14.0)
    assert clock.timings(17.0) == Timings(queue=1.0, prefill=2.0, decode=4.0)


def test_a_retraction_lasts_until_the_request_runs_again() -> None:
    clock = RequestClock(0.0)
    clock.run(1.0)
    clock.answer(2.0)
    clock.wait("retracted", 5.0)
    clock.run(8.0)
    assert clock.timings(9.0) == Timings(queue=1.0, prefill=1.0, decode=4.0, retracted=3.0)


def test_a_request_that_lost_its_pages_before_its_first_token_goes_on_with_its_prefill() -> None:
    clock = RequestClock(0.0)
    clock.run(1.0)
    clock.wait("retracted", 2.0)
    clock.run(4.0)
    clock.answer(7.0)
    assert clock.timings(7.0) == Timings(queue=1.0, prefill=4.0, decode=0.0, retracted=2.0)
    assert clock.since_first(7.0) == 0.0


def test_waits_for_a_grammar_count_apart_before_and_after_the_first_token() -> None:
    clock = RequestClock(0.0)
    clock.wait("grammar", 0.0)
    clock.wait("queue", 2.0)
    clock.run(3.0)
    clock.answer(4.0)
    clock.wait("grammar", 4.0)
    clock.run(6.0)
    assert clock.timings(7.0) == Timings(queue=1.0, prefill=1.0, decode=1.0, grammar=4.0)
    assert clock.since_first(7.0) == 3.0


@pytest.mark.parametrize("seed", range(20))
def test_the_phases_add_up_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    clock, now = RequestClock(1.0), 1.0
    for _ in range(draw.randrange(12)):
        now += draw.randrange(4)
        match draw.randrange(5):
            case 0:
                clock.run(now)
            case 1:
                clock.answer(now)
            case 2:
                clock.wait("grammar", now)
            case 3:
                clock.wait("retracted", now)
            case 4:
                clock.wait("queue", now)
    told = clock.timings(now + 1.0)
    assert sum(getattr(told, name) for name in told.__struct_fields__) == now
