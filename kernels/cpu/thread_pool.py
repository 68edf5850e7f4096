"""Thread pool for a step's compiled loops, in which the calling thread works too.

The loops release the GIL; what a task does in Python should be little. Handing tasks out takes some fifty microseconds,
most of which is waking a thread. Where no other processor is idle, the caller runs all tasks itself, and waits only for
those that another thread has begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Task = Callable[[], object]

_MIN_NUMBERS = 1 << 17  # for each thread: reading them takes 0.1 ms, twice what waking the thread takes


class _TaskBatch:
    """Tasks of one `run_tasks` call that no thread has taken yet, and the outcomes of the others."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._waiting = deque(tasks)
        self.outcomes: SimpleQueue[BaseException | None] = SimpleQueue()  # None: the task succeeded

    def work(self) -> None:
        """Run tasks until none is left to take."""
        while True:
            try:
                task = self._waiting.popleft()
            except IndexError:
                return
            try:
                task()
            except BaseException as error:  # `run_tasks` raises it
                self.outcomes.put(error)
            else:
                self.outcomes.put(None)


_batches: SimpleQueue[_TaskBatch] = SimpleQueue()
_workers: list[threading.Thread] = []
_num_threads = 1


def set_num_threads(num_threads: int) -> None:
    """Set how many threads of this process share tasks from now on, callers included. Surplus threads sleep; none
    ends."""
    global _num_threads
    _num_threads = num_threads
    while len(_workers) < num_threads - 1:
        _workers.append(threading.Thread(target=_work, name=f"worker-{len(_workers)}", daemon=True))
        _workers[-1].start()


def num_threads() -> int:
    return _num_threads


def run_tasks(tasks: Sequence[Task]) -> None:
    """Run all tasks, in any order, and return when they are done; raise the error of the first that failed.

    A task must not call `run_tasks` itself.
    """
    num_workers = min(len(tasks), _num_threads) - 1
    if num_workers <= 0:
        for task in tasks:
            task()
        return
    batch = _TaskBatch(tasks)
    for _ in range(num_workers):
        _batches.put(batch)
    batch.work()
    errors = [error for error in [batch.outcomes.get() for _ in tasks] if error is not None]
    if errors:
        raise errors[0]


def share_rows(x: torch.Tensor, compute: Callable[[slice], object]) -> None:
    """Call `compute` for all rows of `x`, in slices that threads share if there are enough numbers."""
    share_range(lambda first, last: compute(slice(first, last)), x.shape[0], x.numel())


def share_range(compute: Callable[[int, int], object], size: int, num_numbers: int) -> None:
    """Call `compute` for ranges that make up `size` items, which threads share if they have enough numbers together."""
    count = min(num_threads(), size, num_numbers // _MIN_NUMBERS)
    if count < 2:
        compute(0, size)
    else:
        run_tasks([partial(compute, size * part // count, size * (part + 1) // count) for part in range(count)])


def _work() -> None:
    while True:
        _batches.get().work()
