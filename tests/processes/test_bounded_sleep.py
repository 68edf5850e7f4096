"""Bounded sleep and polling, with a fake clock."""

from __future__ import annotations

import asyncio

import pytest

from ramiform.runtime.processes import bounded_sleep as bounded_sleep_module
from ramiform.runtime.processes.bounded_sleep import STEP_SECONDS, bounded_sleep, poll_until


def test_a_suspension_takes_at_most_one_step_of_a_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(bounded_sleep_module.time, "sleep", slept.append)
    bounded_sleep(1.2)
    assert sum(slept) == pytest.approx(1.2)
    assert max(slept) == STEP_SECONDS  # which is all that ends while everything stands still


@pytest.mark.parametrize(("looks", "found"), [(0, True), (1, True), (5, True), (6, False)])
def test_polling_sees_a_condition_that_becomes_true_in_time(
    monkeypatch: pytest.MonkeyPatch, looks: int, found: bool
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(bounded_sleep_module.asyncio, "sleep", sleep)
    assert asyncio.run(poll_until(lambda: len(slept) >= looks, 5 * STEP_SECONDS)) is found
    assert slept == [STEP_SECONDS] * min(looks, 5)
