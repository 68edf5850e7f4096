"""Percentiles equal numpy's; rates, goodput and times equal a count by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ramiform.tools.load_test.client import Measured, Outcome
from ramiform.tools.load_test.figures import distribution, percentile, summarise


@pytest.mark.parametrize("num", [1, 2, 7, 100])
def test_percentiles_are_numpys(num: int) -> None:
    values = [random.Random(num).expovariate(1) for _ in range(num)]
    for percent in (0, 50, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))
    assert distribution(values)["mean"] == pytest.approx(np.mean(values))
    assert set(distribution([]).values()) == {0.0}


def test_a_round_is_summarised() -> None:
    quick = Outcome(0.0, sent=0.1, ended=1.3, chunks=[0.5, 0.7, 1.3], num_prompt=10, num_cached=4, num_output=5)
    slow = Outcome(1.0, sent=1.0, ended=4.0, chunks=[3.0, 4.0], num_prompt=20, num_output=2, is_valid=True)
    counted = Outcome(2.0, sent=2.0, ended=2.5, chunks=[2.5], num_output=1, is_counted=True, is_valid=False)
    failed = Outcome(2.0, sent=2.0, ended=2.1, error="HTTP 500")
    measured = Measured([quick, slow, counted, failed], seconds=4.0, client_cpu=0.9)
    summary = summarise("concurrency 4", measured, {"ttft": 0.6, "tpot": 0.3})
    assert (summary.num_requests, summary.num_done, summary.errors) == (4, 3, {"HTTP 500": 1})
    assert (summary.request_rate, summary.output_rate, summary.total_rate) == (3 / 4, 8 / 4, 38 / 4)
    assert summary.ttft["max"] == 2.0  # from the scheduled time
    assert summary.ttft["p50"] == 0.5
    assert summary.e2e["p50"] == 1.3
    assert summary.itl["mean"] == pytest.approx((0.2 + 0.6 + 1.0) / 3)
    assert summary.tpot["mean"] == pytest.approx((0.8 / 4 + 1.0) / 2)
    assert summary.goodput == 2 / 4  # the slow one is too late; one token has no time per token
    assert (summary.num_valid, summary.num_structured, summary.num_cached) == (1, 2, 4)
    assert not summary.has_usage
    assert summary.is_client_busy
    assert summarise("", Measured(), {}).goodput is None
