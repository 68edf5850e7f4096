"""Totals of a recorded run by source line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from .events import Event, TokenCounts, total_of
from .spans import CAUSES, Cause, TrackSpan

GENERATIONS = ("gen", "select", "decide")  # kinds of events that ask the model


class LineTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one source line, all states together. `place` is "" for what came after the last operation."""

    place: str  # file:line
    source: str | None  # the line's text; None: it cannot be read
    operations: int
    generations: int = 0
    seconds: dict[Cause, float]
    tokens: TokenCounts


def totals_by_line(
    tracks: Iterable[tuple[list[Event], list[TrackSpan]]], source_of: Callable[[str], str | None]
) -> list[LineTotals]:
    """Return the totals of states, given by their events and spans, in the order of the lines.

    The seconds are those of every state's track, so branches that run at the same time count each.
    """
    operations: defaultdict[str, int] = defaultdict(int)
    generations: defaultdict[str, int] = defaultdict(int)
    seconds: defaultdict[str, defaultdict[Cause, float]] = defaultdict(lambda: defaultdict(float))
    tokens: defaultdict[str, list[TokenCounts]] = defaultdict(list)
    for events, spans in tracks:
        for event in events:
            operations[event.place] += 1
            generations[event.place] += event.kind in GENERATIONS
            if event.tokens is not None:
                tokens[event.place].append(event.tokens)
        for span in spans:
            seconds[span.place][span.cause] += span.seconds
    return [
        LineTotals(
            place=place,
            source=source_of(place),
            operations=operations[place],
            generations=generations[place],
            seconds={cause: seconds[place][cause] for cause in CAUSES if cause in seconds[place]},
            tokens=total_of(tokens[place]),
        )
        for place in sorted({*operations, *seconds}, key=_order)
    ]


def _order(place: str) -> tuple[bool, str, int]:
    file, _, number = place.rpartition(":")
    return not place, file, int(number) if number.isdecimal() else 0
