"""Recordings of runs: the operation logs of a run's states, and when each operation was sent and answered.

A `Trace` is made from a recording. Servers that keep records get notes: what only the program knows of its operations.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...runtime.protocol.session import MAX_NOTE, Note, ReadWait
from .operation_log import OperationLog
from .source_location import program_location

MAX_CODE = 200  # characters of a source line
MAX_WAITS = 100  # of one thread between two operations
NEAR = 1e-4  # seconds: waits of a line that are this close together count as one

_EVENT_LOOP = os.path.join(os.path.dirname(contextlib.__file__), "asyncio", "")

_all: list[Recording] | None = None


@dataclass
class OperationTimes:
    """Times of one state's operations, in seconds since the program was called."""

    recorded: list[float] = field(default_factory=list)  # by operation
    answered: list[float] = field(default_factory=list)  # by operation
    first_text: dict[int, float] = field(default_factory=dict)  # of streamed operations, by index
    threads: list[int] = field(default_factory=list)  # that recorded each operation


@dataclass(slots=True)
class ThreadWait:
    """A time in which a thread waited for a value, and the program's line; "" if a task of the event loop waited."""

    start: float
    end: float
    place: str


class Recording:
    """The logs and times of a run. It keeps the logs, and thereby all texts of the run, alive.

    `called_at` is the `time.perf_counter()` of the program's call; None: now.
    """

    def __init__(self, title: str, called_at: float | None = None) -> None:
        now = time.perf_counter()
        self._began = now if called_at is None else called_at
        self.title = title
        self.began_at = time.time() - (now - self._began)  # seconds since the epoch
        self.body_began = now - self._began
        self.body_ended: float | None = None
        self.body_thread: int | None = None  # that ended the body
        self.sent: float | None = None  # when the operations of a compiled program were sent together
        self.logs: list[tuple[int, OperationLog]] = []  # with their states' numbers, in the order of the states
        self.times: list[OperationTimes] = []
        self.waits: dict[int, list[ThreadWait]] = {}  # by thread
        if _all is not None:
            _all.append(self)

    def add(self, number: int, log: OperationLog) -> None:
        """Record a state's operations from now on."""
        times = OperationTimes()

        def note() -> None:
            now = time.perf_counter() - self._began
            if num_new := len(log.operations) - len(times.recorded):
                times.recorded += [now] * num_new
                times.threads += [threading.get_ident()] * num_new
            times.answered += [now] * (len(log.done) - len(times.answered))
            if log.partial:
                times.first_text.setdefault(len(log.done), now)

        log.watch(note)
        log.on_waited.append(self.note_wait)
        self.times.append(times)
        self.logs.append((number, log))

    def note_wait(self, began: float) -> None:
        """Record that the calling thread has waited since `began`."""
        start, end = began - self._began, time.perf_counter() - self._began
        add_wait(self.waits.setdefault(threading.get_ident(), []), start, end, waiting_place())

    def note_sent(self) -> None:
        """Record that the operations so far are sent now, together."""
        self.sent = time.perf_counter() - self._began

    def note_body_end(self) -> None:
        """Record that the program's function has returned."""
        self.body_ended = time.perf_counter() - self._began
        self.body_thread = threading.get_ident()

    def discard(self) -> None:
        """Remove the recording of a run that did not take place from those of `record_all`."""
        if _all is not None and self in _all:
            _all.remove(self)


def waiting_place() -> str:
    """Return `file:line` of the program that waits; "" if a task of the event loop does."""
    place = program_location()
    return "" if place.startswith(_EVENT_LOOP) else place  # `asyncio.gather(s.get("x"))`: no line waits itself


def add_wait(waits: list[ThreadWait], start: float, end: float, place: str) -> None:
    """Add a thread's latest wait, as one with the wait before it if that was a moment ago at the same line."""
    if waits and start - waits[-1].end < NEAR and waits[-1].place == place:
        waits[-1].end = end
    else:
        waits.append(ThreadWait(start, end, place))


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


def traceparent() -> str | None:
    """Return the current span of OpenTelemetry, in the form of W3C Trace Context, if the program uses it."""
    trace = sys.modules.get("opentelemetry.trace")
    span = None if trace is None else trace.get_current_span().get_span_context()
    if span is None or not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{int(span.trace_flags):02x}"


class NoteTaker:
    """Makes the notes of one run. The text of a source line goes with its first operation only."""

    def __init__(self) -> None:
        self._told: set[str] = set()  # places whose lines are told
        self._waits: dict[int, list[ThreadWait]] = {}  # by thread, since its last operation
        self._num_ties: dict[int, int] = {}  # of each state's ties, those that are told

    def note_wait(self, began: float) -> None:
        """Note that the calling thread has waited since `began`, on the clock `time.perf_counter`."""
        waits = self._waits.setdefault(threading.get_ident(), [])
        if len(waits) < MAX_WAITS:
            add_wait(waits, began, time.perf_counter(), waiting_place())

    def notes(
        self, log: OperationLog, first: int, location: str, names: Mapping[int, str], *, ended: bool = False
    ) -> list[Note]:
        """Return the notes of operations that are sent now, the first of which has the number `first`.

        `names` are their variables, by index among these. `ended`: there are none, and the function has returned.
        """
        now = time.perf_counter()
        waits = [
            ReadWait(now - wait.start, now - wait.end, wait.place[:MAX_NOTE], self._code(wait.place))
            for wait in self._waits.pop(threading.get_ident(), ())
        ]
        notes = []
        told = self._num_ties.get(log.number, 0)
        for tie in log.ties[told:]:
            numbers, place = tie.states, tie.place[:MAX_NOTE]
            if tie.called is None:
                notes.append(Note(op=first, gathered=numbers, gathered_at=place))
            else:
                notes.append(Note(op=first, called=numbers, called_at=place, label=tie.called[:MAX_NOTE]))
        self._num_ties[log.number] = len(log.ties)
        if ended:
            return [*notes, Note(op=first, waits=waits, ended=True)]
        notes.append(
            Note(op=first, place=location[:MAX_NOTE], code=self._code(location), name=names.get(0), waits=waits)
        )
        notes += [Note(op=first + index, name=name[:MAX_NOTE]) for index, name in names.items() if index]
        return notes

    def _code(self, place: str) -> str:
        if place in self._told:
            return ""
        self._told.add(place)
        file, _, number = place.rpartition(":")
        return linecache.getline(file, int(number)).strip()[:MAX_CODE] if number.isdecimal() else ""
