"""Threads that take parts of a step's compiled loops, so that every processor computes.

The loops let others run while they compute; what a part does in Python should be little. Handing parts out takes some
fifty microseconds, most of which is waking a thread, and whoever calls takes parts too: where no other processor is
idle he does it all himself, and waits for what another thread has begun, not for those that never came.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

Task = Callable[[], object]


class _TaskBatch:
    """Parts that nobody has taken yet, and what became of those that somebody took."""

    def __init__(self, parts: Sequence[Task]) -> None:
        self._left = deque(parts)
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()

    def work(self) -> None:
        """Until no part is left to take."""
        while True:
            try:
                part = self._left.popleft()
            except IndexError:
                return
            try:
                part()
            except BaseException as error:  # whoever shared the parts raises it
                self.done.put(error)
            else:
                self.done.put(None)


_batches: SimpleQueue[_TaskBatch] = SimpleQueue()
_helpers: list[threading.Thread] = []
_num_threads = 1


def set_num_threads(num_threads: int) -> None:
    """How many threads of this process share parts from now on, callers included. None is ever ended: they sleep."""
    global _num_threads
    _num_threads = num_threads
    while len(_helpers) < num_threads - 1:
        _helpers.append(threading.Thread(target=_help, name=f"worker-{len(_helpers)}", daemon=True))
        _helpers[-1].start()


def num_threads() -> int:
    return _num_threads


def share(parts: Sequence[Task]) -> None:
    """Does all of them, in no order, and returns when they are done. They must not share parts themselves. What the
    first that failed raised, it raises."""
    helpers = min(len(parts), _num_threads) - 1
    if helpers <= 0:
        for part in parts:
            part()
        return
    batch = _TaskBatch(parts)
    for _ in range(helpers):
        _batches.put(batch)
    batch.work()
    errors = [error for error in [batch.done.get() for _ in parts] if error is not None]
    if errors:
        raise errors[0]


def _help() -> None:
    while True:
        _batches.get().work()
