"""Admission by forecast. Judge: the rule that reserves one page for each running request."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ramiform.runtime.scheduler.memory_forecast import MemoryGrowth

from .harness import Runtime, generate


def page_each(growths: Sequence[MemoryGrowth], page_size: int) -> int:
    return len(growths) - 1  # the newcomer is among them


def run(seed: int) -> tuple[int, int]:
    """Count steps and retractions. Outputs end by themselves after some seventy tokens, or at 120; few fit at once."""
    draw = random.Random(seed)
    runtime = Runtime(num_pages=128, budget=64, max_running=32, max_waiting=300)
    for i in range(100):
        prompt = draw.choices([2, 3, 4], k=draw.randrange(4, 24))
        message = generate(
            f"r{i}", prompt, temperature=1.0, seed=i, max_new_tokens=120, stop=("Stopa",), ignore_eos=True
        )
        runtime.add(message)
    runtime.finish()
    stats = runtime.scheduler.stats()
    return stats.num_steps, stats.num_retractions


@pytest.mark.exhaustive
def test_fewer_are_retracted_in_about_as_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated = [run(seed) for seed in range(3)]
    monkeypatch.setattr("ramiform.runtime.scheduler.admission.peak_pages", page_each)
    kept_in_hand = [run(seed) for seed in range(3)]
    steps, retractions = map(sum, zip(*estimated, strict=True))
    steps_before, retractions_before = map(sum, zip(*kept_in_hand, strict=True))
    assert retractions < 0.7 * retractions_before
    assert steps < 1.2 * steps_before
