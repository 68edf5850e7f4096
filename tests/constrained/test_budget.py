"""Limits of a compilation, with a simulated clock."""

from __future__ import annotations

import pytest

from ramiform.constrained import budget as budgets
from ramiform.constrained.budget import CompileBudget
from ramiform.constrained.errors import GrammarError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def thread_time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(budgets, "time", clock)
    return clock


def test_a_suspended_machine_refuses_nothing(clock: Clock) -> None:
    budget = CompileBudget(max_cpu_seconds=0.5)
    for _ in range(4):
        clock.now += 60
        budget.check(1)


@pytest.mark.parametrize(("seconds", "steps"), [(0.01, 50), (60.0, 5)], ids=["short steps", "long steps"])
def test_a_compilation_beyond_its_cpu_time_is_refused(clock: Clock, seconds: float, steps: int) -> None:
    budget = CompileBudget(max_cpu_seconds=0.505)
    for _ in range(steps):
        clock.now += seconds
        budget.check(1)
    clock.now += seconds
    with pytest.raises(GrammarError, match=r"too complex: compiling it takes more than 0\.505 s"):
        budget.check(1)


def test_too_many_states_are_refused_at_once() -> None:
    budget = CompileBudget(max_states=10)
    budget.check(10)
    with pytest.raises(GrammarError, match="more than 10 states"):
        budget.check(11)
