"""Timings of a request. Judge: the times at which the test itself handled, planned and committed."""

from __future__ import annotations

import pytest

from ramiform.runtime.protocol.core import Timings
from ramiform.runtime.scheduler.request import RequestClock


def test_the_phases_lie_between_the_recorded_times() -> None:
    clock = RequestClock(10.0)
    clock.start(11.0)
    clock.answer(13.0)
    assert clock.timings(17.0) == Timings(queue=1.0, prefill=2.0, decode=4.0)


def test_a_retracted_request_keeps_its_first_times() -> None:
    clock = RequestClock(0.0)
    for now in (1.0, 5.0):
        clock.start(now)
        clock.answer(now + 1.0)
    assert clock.timings(8.0) == Timings(queue=1.0, prefill=1.0, decode=6.0)


@pytest.mark.parametrize("started", [None, 2.0])
def test_the_phases_add_up_whatever_has_not_happened(started: float | None) -> None:
    told = RequestClock(1.0, started).timings(4.0)
    assert told.queue + told.prefill + told.decode == 3.0
    assert told.decode == 0.0
