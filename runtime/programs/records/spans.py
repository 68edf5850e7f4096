"""Divides the time of a recorded state by cause: what was computed or waited for, from its begin to its last answer.

A state's spans follow one another without a gap, so their seconds add up to the length of its track. Spans of an
operation lie inside it; the others, the gaps, lie before it and count for the line that appended it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import msgspec

from ...protocol.core import Timings
from .events import Event, ProgramWait, RunRecord, TracedState

Cause = Literal[
    "start", "python", "tool", "wait", "queue", "grammar", "prefill", "decode", "retracted", "model", "transport"
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
MEANINGS: dict[Cause, str] = {
    "start": "from the call of run to the first line of the program: the connection to the runtime",
    "python": "the program computed before it appended an operation",
    "tool": "a tool or a choices method of the program ran",
    "wait": "the program read a value that was not there yet, or a join waited for its branches",
    "queue": "a generation waited in the runtime for its turn",
    "grammar": "a generation waited for its constraint: to be compiled, or to say which tokens may follow",
    "prefill": "the prompt was computed, up to the first token",
    "decode": "tokens were generated",
    "retracted": "a generation had lost its memory to older ones and waited to go on",
    "model": "a model computed whose runtime tells no more",
    "transport": "the rest of an operation: messages, tokenising, templates",
}


class TrackSpan(msgspec.Struct, frozen=True, gc=False):
    """A piece of a state's track. `event` is the index of the operation that it belongs to or comes before."""

    cause: Cause
    start: float
    end: float
    place: str  # file:line; "" after the last operation
    event: int
    is_gap: bool

    @property
    def seconds(self) -> float:
        return self.end - self.start


def spans_of(record: RunRecord, state: TracedState) -> list[TrackSpan]:
    """Return the spans of a state's track, in order, without those of no length."""
    return [span for span in _spans(record, state) if span.end > span.start]


def track_of(record: RunRecord, state: TracedState) -> tuple[float, float]:
    """Return the begin and end of a state's track.

    It ends with the last answer, or where the program's function ended if that was later.
    """
    ends = [event.end for event in state.events if event.end is not None]
    end = max(ends, default=state.begin)
    if state.parent is None and record.body_ended is not None and len(ends) == len(state.events):
        end = max(end, record.body_ended)
    return state.begin, end


def _spans(record: RunRecord, state: TracedState) -> Iterator[TrackSpan]:
    at, end = track_of(record, state)
    if state.parent is None and record.body_began > 0:
        until = min(record.body_began, end)
        yield TrackSpan("start", at, until, state.events[0].place if state.events else "", 0, True)
        at = until
    for index, event in enumerate(state.events):
        if event.end is None:
            return
        yield from _gap(at, event.start, event.waits, event.place, index)
        for cause, start, until in _parts(event, max(at, event.start)):
            yield TrackSpan(cause, start, until, event.place, index, False)
        at = max(at, event.end)
    yield from _gap(at, end, record.last_waits, "", len(state.events))


def _gap(at: float, end: float, waits: tuple[ProgramWait, ...], place: str, index: int) -> Iterator[TrackSpan]:
    """Yield the program's waits in a gap, and the rest of it, in which it computed."""
    for wait in waits:
        start, until = max(at, wait.start), min(end, wait.end)
        if until > start:
            yield TrackSpan("python", at, start, place, index, True)
            yield TrackSpan("wait", start, until, wait.place or place, index, True)
            at = until
    if end > at:
        yield TrackSpan("python", at, end, place, index, True)


def _parts(event: Event, start: float) -> Iterator[tuple[Cause, float, float]]:
    """Yield the parts of an operation: cause, start, end."""
    end = event.end
    assert end is not None
    match event.kind:
        case "ask":
            yield "tool", start, end
        case "join":
            yield "wait", start, end
        case "gen" | "select" | "decide":
            if (timings := event.timings) is None:
                yield "model", start, end  # the backend does not say more
                return
            yield from phases(timings, start, end)
        case _:
            yield "transport", start, end


# In the order in which a generation goes through them at first; each is one span, though it may have had several parts.
_PHASES: tuple[Literal["queue", "grammar", "prefill", "retracted", "decode"], ...] = (
    "queue",
    "grammar",
    "prefill",
    "retracted",
    "decode",
)


def phases(timings: Timings, start: float, end: float) -> Iterator[tuple[Cause, float, float]]:
    """Yield the parts of a generation by the runtime's timings, aligned to its end; what comes before is transport."""
    found: list[tuple[Cause, float, float]] = []
    until = end
    for name in reversed(_PHASES):
        begin = max(start, until - getattr(timings, name))
        found.append((name, begin, until))
        until = begin
    found.append(("transport", start, until))
    yield from reversed(found)
