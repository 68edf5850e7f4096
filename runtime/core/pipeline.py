"""The order in which steps are planned, computed and committed: one after the other, or one ahead.

Ahead, a step is planned and launched while the one before still computes; the device then goes from one to the next
without waiting for Python (docs/decisions/0011). Knows the two that it drives by their verbs, and no sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from ..protocol.core import FromCore
from ..scheduler.plan import ForwardPlan, ForwardResult, SamplingPlan


class StepHandle(Protocol):
    """A step that a device computes."""

    def sample(self, sampling: SamplingPlan) -> None:
        """What an open plan's following rows sample: once, when the plan before has been waited for."""

    def wait(self) -> ForwardResult:
        """Once, in the order of launching."""


class StepLauncher(Protocol):
    def launch(self, plan: ForwardPlan) -> StepHandle: ...


class StepPlanner(Protocol):
    """As `scheduler.Scheduler`."""

    def plan(self, now: float) -> ForwardPlan | None: ...
    def answers(self) -> list[FromCore]: ...
    def commit(self, plan: ForwardPlan, result: ForwardResult, now: float) -> list[FromCore]: ...
    def sampling(self) -> SamplingPlan | None: ...


@dataclass(frozen=True)
class PendingStep:
    plan: ForwardPlan
    launched: StepHandle


class Pipeline:
    """`ahead`: plan a step while the one before computes."""

    def __init__(
        self,
        engine: StepLauncher,
        scheduler: StepPlanner,
        *,
        ahead: bool,
        on_step: Callable[[ForwardPlan, float], None] = lambda plan, seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_step` is told of each step that is over, and of the seconds from the end of the one before to its own."""
        self._engine = engine
        self._scheduler = scheduler
        self._ahead = ahead
        self._on_step = on_step
        self._clock = clock
        self._last: PendingStep | None = None  # launched, and not waited for
        self._since: float | None = None  # when the last result was there, if there has been something to do since

    def rested(self) -> None:
        """There was nothing to do until now: the next step begins with itself, not with the end of the last."""
        self._since = None

    def turn(self) -> Iterator[list[FromCore]]:
        """Plan and launch a step, if there is anything to do, and commit the one before; that one too, unless ahead.
        Answers come as they are there; take them all."""
        began = self._clock()
        self._since = began if self._since is None else self._since
        plan = self._scheduler.plan(began)
        yield self._scheduler.answers()
        before, self._last = self._last, None if plan is None else PendingStep(plan, self._engine.launch(plan))
        if before is not None:
            yield self._commit(before)
        if not self._ahead and self._last is not None:
            last, self._last = self._last, None
            yield self._commit(last)

    def _commit(self, step: PendingStep) -> list[FromCore]:
        assert self._since is not None
        result, now = step.launched.wait(), self._clock()
        # What the economy of guesses judges is all that a step takes, not only what the engine measures of it.
        seconds, self._since = now - self._since, now
        answers = self._scheduler.commit(step.plan, replace(result, seconds=seconds), now)
        sampling = self._scheduler.sampling()
        if sampling is not None:
            assert self._last is not None
            self._last.launched.sample(sampling)  # before anything else: the device is about to need it
        self._on_step(step.plan, seconds)
        return answers
