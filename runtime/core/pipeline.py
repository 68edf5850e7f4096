"""Order in which steps are planned, computed and committed: one after the other, or one ahead.

One ahead, a step is planned and launched while the previous one computes, so that the device goes from one to the next
without waiting for Python (docs/inside/decisions/0011).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec.structs import replace

from ..protocol.core import FromCore
from ..scheduler.plan import ForwardPlan, ForwardResult, SamplingPlan
from ..scheduler.plan_log import LoggingScheduler
from ..scheduler.scheduler import Scheduler


class StepHandle(Protocol):
    """A step that the device computes."""

    def sample(self, sampling: SamplingPlan) -> None:
        """Provide the sampling of an open plan's following rows. Call once, after waiting for the previous step."""

    def wait(self) -> ForwardResult:
        """Wait for the result. Call once, in the order of launching."""


class StepLauncher(Protocol):
    """An engine that launches steps."""

    def launch(self, plan: ForwardPlan) -> StepHandle: ...


class Pipeline:
    """Drives an engine and a scheduler. With `ahead`, plans a step while the previous one computes."""

    def __init__(
        self,
        engine: StepLauncher,
        scheduler: Scheduler | LoggingScheduler,
        *,
        ahead: bool,
        on_step: Callable[[ForwardPlan, float], None] = lambda plan, seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_step` is called for each finished step with the seconds from the previous step's end to its own."""
        self._engine = engine
        self._scheduler = scheduler
        self._ahead = ahead
        self._on_step = on_step
        self._clock = clock
        self._in_flight: tuple[ForwardPlan, StepHandle] | None = None  # launched, not waited for yet
        self._last_end: float | None = None  # time of the last result, unless there was nothing to do since

    def reset_clock(self) -> None:
        """Start timing anew: there was nothing to do since the last step."""
        self._last_end = None

    def advance(self) -> Iterator[list[FromCore]]:
        """Plan and launch a step, if there is work, and commit the previous one; commit the new one too, unless
        `ahead`.

        Yields answers as soon as they are there. Exhaust the iterator.
        """
        now = self._clock()
        self._last_end = now if self._last_end is None else self._last_end
        plan = self._scheduler.plan(now)
        yield self._scheduler.answers()
        previous = self._in_flight
        self._in_flight = None if plan is None else (plan, self._engine.launch(plan))
        if previous is not None:
            yield self._commit(*previous)
        if not self._ahead and self._in_flight is not None:
            in_flight, self._in_flight = self._in_flight, None
            yield self._commit(*in_flight)

    def _commit(self, plan: ForwardPlan, launched: StepHandle) -> list[FromCore]:
        assert self._last_end is not None
        result, now = launched.wait(), self._clock()
        # The speculation budget counts all of a step's time, not only what the engine measures.
        seconds, self._last_end = now - self._last_end, now
        answers = self._scheduler.commit(plan, replace(result, seconds=seconds), now)
        sampling = self._scheduler.sampling()
        if sampling is not None:
            assert self._in_flight is not None
            self._in_flight[1].sample(sampling)  # first: the device is about to need it
        computed = plan if result.num_decodes == plan.num_decodes else replace(plan, num_decodes=result.num_decodes)
        self._on_step(computed, seconds)
        return answers
