"""Finds the spans that determined when a program ended, over forks and joins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from .events import Event
from .spans import TrackSpan

Track = tuple[int, int | None, list[Event], list[TrackSpan]]  # of a state: its number, its parent's, events, spans
_NEAR = 1e-3  # seconds: a wait ends so soon after what it waited for


def critical_path(tracks: Sequence[Track]) -> list[tuple[int, int]]:
    """Return the path from the begin to the end, as (state, index of the span).

    It is walked from the last end backwards. At a wait it goes on with the state that ended the wait, at the begin of a
    branch with the state that forked it. A wait that no state explains is on the path itself.
    """
    spans_of = {number: spans for number, _, _, spans in tracks if spans}
    if not spans_of:
        return []
    events_of = {number: events for number, _, events, _ in tracks}
    parent_of = {number: parent for number, parent, _, _ in tracks}
    ends = sorted((event.end, -number) for number, _, events, _ in tracks for event in events if event.end is not None)
    state: int | None = max(spans_of, key=lambda number: (spans_of[number][-1].end, -number))
    index = len(spans_of[state]) - 1
    path: list[tuple[int, int]] = []
    at = spans_of[state][-1].end
    while True:
        if index < 0:  # the begin of a branch
            state = parent_of.get(state)
            if state is None or state not in spans_of:
                break
            index = _last_before(spans_of[state], at)
            continue
        span = spans_of[state][index]
        if (
            span.cause == "wait"
            and (other := _awaited(state, span, events_of[state], ends, spans_of, parent_of)) is not None
        ):
            until = min(at, span.end)
            if (found := _last_before(spans_of[other], until)) >= 0 and spans_of[other][found].end > span.start:
                state, index = other, found
                at = until
                continue
        path.append((state, index))
        at = span.start
        index -= 1
    return path[::-1]


def _last_before(spans: list[TrackSpan], time: float) -> int:
    """Return the index of the last span that begins before `time` and is mostly over by then; -1: none."""
    index = bisect_right(spans, time, key=lambda span: span.start) - 1
    while index >= 0 and spans[index].start >= time:
        index -= 1
    return index


def _awaited(
    state: int,
    span: TrackSpan,
    events: list[Event],
    ends: list[tuple[float, int]],
    spans_of: dict[int, list[TrackSpan]],
    parent_of: dict[int, int | None],
) -> int | None:
    """Return the state whose answer ended a wait: of a join's the last one, else the one that was answered last."""
    event = events[span.event] if span.event < len(events) else None
    if event is not None and event.kind in ("join", "gather") and event.states:
        among = [one for one in event.states if one in spans_of and spans_of[one][-1].end > span.start]
        return max(among, key=lambda one: spans_of[one][-1].end, default=None)
    index = bisect_right(ends, (span.end + _NEAR, 1 << 62)) - 1
    found: int | None = None
    least = span.start
    while index >= 0 and ends[index][0] > least:
        end, other = ends[index][0], -ends[index][1]  # of two at once the first state is the last entry
        if other != state and other in spans_of:
            if parent_of.get(other) == state:
                return other
            if found is None:
                found, least = other, max(span.start, end - 2 * _NEAR)  # a branch that ended as late comes first
        index -= 1
    return found
