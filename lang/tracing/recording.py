"""Recordings of runs: the operation logs of a run's states, and when each operation was sent and answered.

A `Trace` is made from a recording.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..operation_log import OperationLog

_all: list[Recording] | None = None


@dataclass
class OperationTimes:
    """Times of one state's operations, in seconds since the run began."""

    recorded: list[float] = field(default_factory=list)  # by operation
    answered: list[float] = field(default_factory=list)  # by operation
    first_text: dict[int, float] = field(default_factory=dict)  # of streamed operations, by index


class Recording:
    """The logs and times of a run. It keeps the logs, and thereby all texts of the run, alive."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began_at = time.time()  # seconds since the epoch
        self.logs: list[tuple[int, OperationLog]] = []  # with their states' numbers, in the order of the states
        self.times: list[OperationTimes] = []
        self._began = time.perf_counter()
        if _all is not None:
            _all.append(self)

    def add(self, number: int, log: OperationLog) -> None:
        """Record a state's operations from now on."""
        times = OperationTimes()

        def note() -> None:
            now = time.perf_counter() - self._began
            times.recorded += [now] * (len(log.operations) - len(times.recorded))
            times.answered += [now] * (len(log.done) - len(times.answered))
            if log.partial:
                times.first_text.setdefault(len(log.done), now)

        log.watch(note)
        self.times.append(times)
        self.logs.append((number, log))

    def discard(self) -> None:
        """Remove the recording of a run that did not take place from those of `record_all`."""
        if _all is not None and self in _all:
            _all.remove(self)


def is_recording_all() -> bool:
    """Return whether the code runs inside `record_all`."""
    return _all is not None


@contextlib.contextmanager
def record_all() -> Iterator[list[Recording]]:
    """Record every program that runs inside the block; yield the recordings in the order in which they begin."""
    global _all
    before, _all = _all, []
    try:
        yield _all
    finally:
        _all = before
