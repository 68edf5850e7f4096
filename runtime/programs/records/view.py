"""Views of a program: its row in a list, and its whole record with spans, critical path and totals.

The same values come from a server's records, `ramiform trace` and saved traces.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from .critical_path import critical_path
from .events import ABANDONED, Event, RunRecord, TracedState
from .spans import Cause, TrackSpan, spans_of, track_of
from .totals import GENERATIONS, totals_by_line

MAX_TEXT = 4000  # characters of one text
MAX_CODE = 200  # characters of a source line
EXCERPT_HEAD, EXCERPT_TAIL = 40, 60  # characters

Status = Literal["running", "done", "failed", "lost"]


class ProgramRow(msgspec.Struct, frozen=True, kw_only=True):
    """A program, or a request over HTTP, as a list shows it.

    `lost`: it ended before its operations were answered, because its client left, closed it or has spent its budget.
    """

    id: str  # opaque
    seq: int  # grows with the time of its begin
    kind: Literal["program", "request"] = "program"
    title: str
    status: Status
    began_at: float  # seconds since the epoch
    seconds: float  # from its begin to its end, or to now
    states: int
    generations: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str | None = None
    place: str | None = None  # file:line where it failed
    excerpt: str | None = None  # what tells runs of one title apart, for those who may read texts
    labels: tuple[str, ...] = ()  # `program` of its nodes in the radix tree; a program over HTTP may have one a request


class StateView(msgspec.Struct, frozen=True, kw_only=True):
    """A state: its operations, and the spans into which its time is divided. Times are relative to the begin."""

    number: int
    parent: int | None
    begin: float
    end: float
    events: list[Event]
    spans: list[TrackSpan]


class LineView(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one source line over all states."""

    place: str  # file:line; "" after the last operation
    code: str | None  # the line's text, if it is known
    seconds: dict[Cause, float]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    generations: int


class ProgramView(ProgramRow, frozen=True, kw_only=True):
    """Whole record of a program. `texts`: texts are in it; without them events have kinds, names and counts.

    `critical_path` are the spans, as (state, index of the span), that determined when the program ended.
    """

    source: dict[str, str]  # text of source lines, by file:line
    states: list[StateView]  # type: ignore[assignment]  # in a row their number
    critical_path: list[tuple[int, int]]
    lines: list[LineView]
    texts: bool = True
    cut: bool = False  # there were more operations than a record holds


class RowKey(NamedTuple):
    """Names of a row in a list: `id`, `seq`, `kind` and `labels` of `ProgramRow`."""

    id: str = "local"
    seq: int = 0
    kind: Literal["program", "request"] = "program"
    labels: tuple[str, ...] = ()


class RowOutcome(NamedTuple):
    """How far a run came, and what it asked: `status`, `error`, `place` and `excerpt` of `ProgramRow`."""

    status: Status | None = None  # None: it has failed if one of its events has, else it is done
    error: str | None = None
    place: str | None = None
    excerpt: str | None = None


LOCAL = RowKey()
BY_EVENTS = RowOutcome()


def view_of(
    record: RunRecord,
    key: RowKey = LOCAL,
    outcome: RowOutcome = BY_EVENTS,
    *,
    source: Mapping[str, str] | None = None,
    now: float | None = None,
    texts: bool = True,
    cut: bool = False,
) -> ProgramView:
    """Return the view of a recorded run. `now`: it runs, and this is the time since its begin.

    `source` are the texts of source lines; None: they are read from the files.
    """
    status, error, place, excerpt = outcome
    states = [_state_view(record, state, now) for state in record.states]
    events = [event for state in states for event in state.events]
    failed = min((event for event in events if event.error is not None), key=_failure_order, default=None)
    if status is None:
        unanswered = any(event.end is None for event in events)
        status = "failed" if failed is not None else "lost" if unanswered else "done"
    if failed is not None and status == "failed":
        error, place = error or failed.error, place or failed.place or None
    places = {event.place for event in events} | {span.place for state in states for span in state.spans}
    known = _read_source(places) if source is None else {one: source[one] for one in sorted(places) if one in source}
    tokens = record.tokens
    view = ProgramView(
        **key._asdict(),
        title=record.title,
        status=status,
        began_at=record.began_at,
        seconds=max((state.end for state in states), default=0.0),
        states=states,
        generations=sum(event.kind in GENERATIONS for event in events),
        prompt_tokens=tokens.prompt,
        cached_tokens=tokens.cached,
        completion_tokens=tokens.completion,
        error=error,
        place=place,
        excerpt=excerpt,
        source=known,
        critical_path=critical_path([(state.number, state.parent, state.events, state.spans) for state in states]),
        lines=[
            LineView(
                place=line.place,
                code=line.source,
                seconds=line.seconds,
                prompt_tokens=line.tokens.prompt,
                cached_tokens=line.tokens.cached,
                completion_tokens=line.tokens.completion,
                generations=line.generations,
            )
            for line in totals_by_line([(state.events, state.spans) for state in states], known.get)
        ],
        cut=cut,
    )
    return view if texts else without_texts(view)


def without_texts(view: ProgramView) -> ProgramView:
    """Return the view without what programs wrote, generated and were told: its kinds, names, places and numbers."""
    states = [
        msgspec.structs.replace(state, events=[_without_text(event) for event in state.events]) for state in view.states
    ]
    lines = [msgspec.structs.replace(line, code=None) for line in view.lines]
    return msgspec.structs.replace(
        view, states=states, lines=lines, source={}, error=hidden_error(view.error), excerpt=None, texts=False
    )


def hidden_error(error: str | None) -> str | None:
    """Return what is told of an error where texts are off: errors quote what they are about."""
    return None if error is None else "failed; texts are off"


def excerpt_of(text: str | None) -> str | None:
    """Return a text in one line, a long one's beginning and end; None if there is none."""
    line = " ".join((text or "").split())
    if len(line) > EXCERPT_HEAD + EXCERPT_TAIL:
        line = f"{line[:EXCERPT_HEAD]} … {line[-EXCERPT_TAIL:]}"
    return line or None


def cut_event(event: Event) -> Event:
    """Return the event with texts of at most MAX_TEXT characters."""
    samples = event.samples
    long = [text for text in (event.text, *(samples or ())) if text is not None and len(text) > MAX_TEXT]
    if not long:
        return event
    return msgspec.structs.replace(
        event,
        text=None if event.text is None else event.text[:MAX_TEXT],
        samples=None if samples is None else [text[:MAX_TEXT] for text in samples],
        cut=True,
    )


def _state_view(record: RunRecord, state: TracedState, now: float | None) -> StateView:
    begin, end = track_of(record, state, now)
    return StateView(
        number=state.number,
        parent=state.parent,
        begin=begin,
        end=end,
        events=[cut_event(event) for event in state.events],
        spans=spans_of(record, state, now),
    )


def _without_text(event: Event) -> Event:
    label = " ".join(filter(None, (event.kind, event.name)))
    hidden = {"text": None, "samples": None, "image": None}
    return msgspec.structs.replace(event, **hidden, label=label, error=hidden_error(event.error))


def _failure_order(event: Event) -> tuple[bool, float]:
    """Sort the failure that was first before others, and before the operations that were given up because of it."""
    return ABANDONED in (event.error or ""), event.start if event.end is None else event.end


def _read_source(places: set[str]) -> dict[str, str]:
    """Return the texts of the source lines that can be read."""
    found = {}
    for place in sorted(places):
        file, _, number = place.rpartition(":")
        if number.isdecimal() and (line := linecache.getline(file, int(number)).strip()):
            found[place] = line[:MAX_CODE]
    return found
