"""Times of requests at the frontend. Judge: the times at which the tokens came."""

from __future__ import annotations

import time

import msgspec
import pytest

from ramiform.runtime.frontend.core.request_metrics import RequestObserver
from ramiform.runtime.protocol.core import Finish, Generate, Timings, Tokens
from ramiform.runtime.protocol.sampling import SamplingParams


def test_tokens_in_bulk_are_timed_as_if_each_had_come_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    alone, together = RequestObserver(), RequestObserver()
    request = Generate(rid="r", tokens=[1, 2], sampling=SamplingParams())
    one = alone.begin(request)
    other = together.begin(msgspec.structs.replace(request, in_bulk=True))
    for number, clock[0] in enumerate((102.0, 102.5, 103.5), start=1):
        finish = Finish("length") if number == 3 else None
        one.take(Tokens(rid="r", ids=[7], num_cached=0, num_passes=number, finish=finish))
    last = Tokens(
        rid="r",
        ids=[7, 7, 7],
        num_cached=0,
        num_passes=3,
        finish=Finish("length"),
        timings=Timings(queue=0.25, prefill=1.5, decode=0.5, grammar=0.25 + 1.0),  # waited before and after the first
        since_first=1.5,
    )
    other.take(last)
    for name in ("ttft", "itl", "e2e", "output_tokens"):
        expected, measured = getattr(alone.measures, name), getattr(together.measures, name)
        assert (measured.num, measured.sum) == (expected.num, expected.sum), name
    assert together.measures.ttft.sum == 2.0


def test_an_answer_without_tokens_has_no_first_one() -> None:
    observer = RequestObserver()
    request = observer.begin(Generate(rid="r", tokens=[1, 2], sampling=SamplingParams(max_new_tokens=0), in_bulk=True))
    timings = Timings(queue=0.5, prefill=1.5, decode=0.0)
    request.take(Tokens(rid="r", ids=[], num_cached=0, finish=Finish("length"), timings=timings))
    measures = observer.measures
    assert (measures.ttft.num, measures.itl.num, measures.e2e.num) == (0, 0, 1)
