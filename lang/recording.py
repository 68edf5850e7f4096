"""A run watched from the client's side: its states' logs, and when each operation was said and answered.

Knows logs and a clock; what they mean is `trace`'s to know.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .operation_log import OperationLog

_all: list[Recording] | None = None


@dataclass
class OperationTimes:
    """Seconds since the run began, of a state's operations in order."""

    said: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    first_text: dict[int, float] = field(default_factory=dict)  # of a streamed operation


class Recording:
    """Holds the logs of a run, and thereby all its texts, as long as it is held itself."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began_at = time.time()  # seconds since the epoch
        self.logs: list[tuple[int, OperationLog]] = []  # by their states' numbers, in order
        self.times: list[OperationTimes] = []
        self._began = time.perf_counter()
        if _all is not None:
            _all.append(self)

    def add(self, number: int, log: OperationLog) -> None:
        times = OperationTimes()

        def note() -> None:
            now = time.perf_counter() - self._began
            times.said += [now] * (len(log.operations) - len(times.said))
            times.answered += [now] * (len(log.done) - len(times.answered))
            if log.partial:
                times.first_text.setdefault(len(log.done), now)

        log.watch(note)
        self.times.append(times)
        self.logs.append((number, log))

    def discard(self) -> None:
        """It was of a run that did not take place."""
        if _all is not None and self in _all:
            _all.remove(self)


def is_recording_all() -> bool:
    return _all is not None


@contextlib.contextmanager
def record_all() -> Iterator[list[Recording]]:
    """Every program that is run inside the block is recorded, in the order in which they begin."""
    global _all
    before, _all = _all, []
    try:
        yield _all
    finally:
        _all = before
