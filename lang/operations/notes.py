"""Notes for servers that keep records: what only the program knows of its operations."""

from __future__ import annotations

import linecache
import sys
import threading
import time
from collections.abc import Mapping

from ...runtime.protocol.session import MAX_NOTE, Note, ReadWait
from .operation_log import OperationLog
from .recording import ThreadWait, add_wait, waiting_place

MAX_CODE = 200  # characters of a source line
MAX_WAITS = 100  # of one thread between two operations


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
        self._num_joins: dict[int, int] = {}  # of each state's joins, those that are told

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
        told = self._num_joins.get(log.number, 0)
        for _, joined, place in log.joins[told:]:
            numbers = tuple(one.number for one in joined)
            notes.append(Note(op=first, gathered=numbers, gathered_at=place[:MAX_NOTE]))
        self._num_joins[log.number] = len(log.joins)
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
