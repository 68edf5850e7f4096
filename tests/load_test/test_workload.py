"""Requests of a load test are drawn from their seed, and have the lengths, prefixes and arrivals that were asked."""

from __future__ import annotations

import json
import random
import statistics
from itertools import pairwise
from pathlib import Path

import pytest

import ramiform
from ramiform.tools.load_test.workload import (
    Length,
    LoadRequest,
    LoadWorkload,
    arrival_times,
    read_arrivals,
    read_prompts,
)

FIXED = Length("fixed", (16.0,))


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("128", 128, 0),
        ("uniform:50,150", 100, 100 / 12**0.5),
        ("normal:200,20", 200, 20),
        ("lognormal:100,0.1", 100, 10),
    ],
)
def test_lengths_have_their_distribution(text: str, mean: float, deviation: float) -> None:
    rng = random.Random(1)
    values = [Length.parse(text, "--prompt-tokens").draw(rng) for _ in range(4000)]
    assert statistics.fmean(values) == pytest.approx(mean, rel=0.02)
    assert statistics.pstdev(values) == pytest.approx(deviation, rel=0.1, abs=0.1)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "uniform:5", "uniform:9,3", "normal:nan,1", "zipf:2"])
def test_other_lengths_are_refused_by_name(text: str) -> None:
    with pytest.raises(ramiform.RequestError) as caught:
        Length.parse(text, "--output-tokens")
    assert caught.value.param == "--output-tokens"


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_are_gamma_distributed(burstiness: float) -> None:
    times = arrival_times(8000, 20.0, burstiness, random.Random(2))
    gaps = [after - before for before, after in pairwise(times)]
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.pvariance(gaps) == pytest.approx(1 / 20**2 / burstiness, rel=0.1)


def test_a_seed_draws_the_same_requests_and_rounds_differ() -> None:
    workload = LoadWorkload(20, FIXED, FIXED, structured_share=0.5, seed=3)
    assert workload.jobs(1) == LoadWorkload(20, FIXED, FIXED, structured_share=0.5, seed=3).jobs(1)
    assert workload.jobs(1) != workload.jobs(2)
    assert {len(str(job.messages[0]["content"]).split()) for job in workload.jobs(1)} == {16}
    assert 0 < sum(job.is_structured for job in workload.jobs(1)) < 20


def test_prompts_of_a_group_share_their_prefix() -> None:
    jobs = LoadWorkload(60, FIXED, FIXED, prefix_tokens=50, prefix_groups=3).jobs(1)
    prefixes = {tuple(str(job.messages[0]["content"]).split()[:50]) for job in jobs}
    assert len(prefixes) == 3
    assert len({str(job.messages[0]["content"]) for job in jobs}) == 60


def test_files_hold_prompts_in_three_forms_and_arrival_times(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "b"}]
    lines.write_text(json.dumps({"prompt": "a", "max_tokens": 5}) + "\n" + json.dumps({"messages": messages}))
    assert read_prompts(lines, FIXED, 0) == (
        LoadRequest([{"role": "user", "content": "a"}], 5),
        LoadRequest(messages, 16),
    )
    shared = tmp_path / "sharegpt.json"
    shared.write_text(json.dumps([{"conversations": [{"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]}]))
    assert read_prompts(shared, FIXED, 0) == (LoadRequest([{"role": "user", "content": "c"}], 16),)
    times = tmp_path / "times"
    times.write_text("12.5\n10\n11\n")
    assert read_arrivals(times) == [0.0, 1.0, 2.5]
    for path, text in ((lines, '{"text": 1}'), (lines, "nonsense"), (lines, "")):
        path.write_text(text)
        with pytest.raises(ramiform.RequestError):
            read_prompts(path, FIXED, 0)
    times.write_text("soon")
    with pytest.raises(ramiform.RequestError, match="arrival times"):
        read_arrivals(times)
