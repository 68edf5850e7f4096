"""Groups in flight: starts the runs of examples, and hands over batches of groups whose runs have ended. How old these
are is bounded. Knows nothing of programs, rewards or weights."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

E = TypeVar("E")
R = TypeVar("R")


@dataclass(eq=False)
class StartedGroup(Generic[E, R]):
    """A group that was started and is not handed over. Batch number `due` is the last that may have it."""

    number: int
    example: E
    due: int
    results: dict[int, R] = field(default_factory=dict)  # by the run's number


class GroupsInFlight(Generic[E, R]):
    """Runs `run(number of the example, example, number of the run)` `group` times for each example.

    At most `concurrency` runs are in flight. `batches` hands over `batch` groups at a time, those that were started
    first among the finished ones. A group is handed over at most `max_staleness` batches after the one that was waited
    for when it started: no more groups start than later batches have room for, and a batch waits for a group that
    would be too old for the next.
    """

    def __init__(
        self,
        examples: Iterator[E],
        run: Callable[[int, E, int], Awaitable[R]],
        *,
        group: int,
        batch: int,
        max_staleness: int,
        concurrency: int,
    ) -> None:
        self._examples = examples
        self._run = run
        self._group = group
        self._batch = batch
        self._max_staleness = max_staleness
        self._concurrency = concurrency
        self._started: dict[int, StartedGroup[E, R]] = {}
        self._num_started = 0
        self._num_batches = 0  # handed over
        self._waiting: deque[tuple[StartedGroup[E, R], int]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_exhausted = False
        self._error: BaseException | None = None

    async def batches(self) -> AsyncGenerator[list[tuple[E, list[R]]]]:
        """Yield batches of groups, each in the order of its examples; the last one may be smaller.

        Groups that may start do so while the caller works on a batch; further ones start when it asks for the next.
        Raises what a run or the examples raise. Closing it cancels the runs.
        """
        try:
            while True:
                self._start_runs()
                while (found := self._next_batch()) is None:
                    await self._changed.wait()
                    self._changed.clear()
                    if self._error is not None:
                        raise self._error
                if not found:
                    return
                for one in found:
                    del self._started[one.number]
                yield [(one.example, [one.results[run] for run in range(self._group)]) for one in found]
                self._num_batches += 1
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _next_batch(self) -> list[StartedGroup[E, R]] | None:
        """Return the groups of the next batch: none after the last one. None while a group has to be waited for."""
        size = min(self._batch, len(self._started)) if self._is_exhausted else self._batch
        finished = [one for one in self._started.values() if len(one.results) == self._group]
        if len(finished) < size:
            return None
        left = [one.due - self._num_batches for one in {*self._started.values()} - {*finished[:size]}]
        for ahead in range(self._max_staleness):
            if sum(due <= ahead for due in left) > ahead * self._batch:
                return None  # the batches up to that one have no room for all that are due
        return finished[:size]

    def _start_runs(self) -> None:
        while len(self._tasks) < self._concurrency and self._error is None:
            if not self._waiting and not self._start_group():
                return
            task = asyncio.create_task(self._work(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._end_run)

    def _start_group(self) -> bool:
        """Put the runs of one more example into the queue, if there is one and a batch has room for it."""
        if self._num_started == (self._num_batches + 1 + self._max_staleness) * self._batch or self._is_exhausted:
            return False
        try:
            example = next(self._examples)
        except StopIteration:
            self._is_exhausted = True
            return False
        except Exception as error:
            self._fail(error)
            return False
        started: StartedGroup[E, R] = StartedGroup(self._num_started, example, self._num_batches + self._max_staleness)
        self._started[self._num_started] = started
        self._num_started += 1
        self._waiting += [(started, run) for run in range(self._group)]
        return True

    async def _work(self, started: StartedGroup[E, R], run: int) -> None:
        started.results[run] = await self._run(started.number, started.example, run)

    def _end_run(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fail(error)
        self._start_runs()
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.set()
