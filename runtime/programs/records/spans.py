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


def spans_of(record: RunRecord, state: TracedState, now: float | None = None) -> list[TrackSpan]:
    """Return the spans of a state's track, in order, without those of no length. `now`: as in `track_of`."""
    return [span for span in _spans(record, state, now) if span.end > span.start]


def track_of(record: RunRecord, state: TracedState, now: float | None = None) -> tuple[float, float]:
    """Return the begin and end of a state's track.

    It ends with the last answer, or where the program's function ended if that was later. With an operation that is not
    answered it ends where the state was closed, or `now`, if that is given.
    """
    ends = [event.end for event in state.events if event.end is not None]
    end = max(ends, default=state.begin)
    all_answered = len(ends) == len(state.events)
    if not all_answered and (until := now if state.ended is None else state.ended) is not None:
        return state.begin, max(end, until)
    if state.parent is None and record.body_ended is not None and all_answered:
        end = max(end, record.body_ended)
    return state.begin, end


def _spans(record: RunRecord, state: TracedState, now: float | None) -> Iterator[TrackSpan]:
    at, end = track_of(record, state, now)
    if state.parent is None and record.body_began > 0:
        until = min(record.body_began, end)
        yield TrackSpan("start", at, until, state.events[0].place if state.events else "", 0, True)
        at = until
    for index, event in enumerate(state.events):
        if event.end is None:
            if end > at:  # it is the one that runs, or did when the state was closed
                start = min(max(at, event.start), end)
                yield from _gap(at, start, event.waits, event.place, index)
                if event.kind == "gen" and (first := event.first_text) is not None and start <= first <= end:
                    yield TrackSpan("prefill", start, first, event.place, index, False)
                    start = first
                yield TrackSpan(_running(event), start, end, event.place, index, False)
            return
        yield from _gap(at, event.start, event.waits, event.place, index)
        for cause, start, until in _parts(event, max(at, event.start)):
            yield TrackSpan(cause, start, until, event.place, index, False)
        at = max(at, event.end)
    yield from _gap(at, end, record.last_waits, "", len(state.events))


def _running(event: Event) -> Cause:
    """Return what takes the time of an operation that is not answered, as far as that is known."""
    match event.kind:
        case "ask":
            return "tool"
        case "join":
            return "wait"
        case "gen" | "select" | "decide":
            return "model" if event.first_text is None else "decode"
        case _:
            return "transport"


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
            yield from phases(timings, start, end, event.seconds)
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


def phases(
    timings: Timings, start: float, end: float, seconds: float | None = None
) -> Iterator[tuple[Cause, float, float]]:
    """Yield the parts of a generation by the runtime's timings, aligned to its end; what comes before is transport.

    `seconds` is its time from submission to end. It is queued from its submission on: the core reads messages between
    steps, and a step may take long.
    """
    found: list[tuple[Cause, float, float]] = []
    until = end
    for name in reversed(_PHASES):
        begin = max(start, until - getattr(timings, name))
        if name == "queue" and seconds is not None:
            begin = max(start, min(begin, end - seconds))
        found.append((name, begin, until))
        until = begin
    found.append(("transport", start, until))
    yield from reversed(found)
