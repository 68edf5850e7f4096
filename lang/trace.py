"""What became of a run: its states as a tree, with texts, variables, tokens and times; shown, saved and read again.

Times are seconds since the run began, as the client saw them; `timings` and `seconds` are what the runtime says that a
generation took, from its submission to its end.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..runtime.protocol.core import Timings
from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.session import Done
from .operation_log import OperationLog
from .plan import PlannedStep, StepKind, states_of
from .recording import OperationTimes, Recording

if TYPE_CHECKING:
    from rich.tree import Tree

WIDTH = 160  # where there is no terminal


class TokenCounts(msgspec.Struct, frozen=True):
    """`cached` of the prompt's were in the cache: the others were computed. Samples and choices count together."""

    prompt: int
    cached: int
    completion: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a state. `states` are those that it forks or joins."""

    kind: StepKind
    label: str
    place: str  # file:line of the program
    name: str | None = None  # of the variable that it makes
    states: tuple[int, ...] = ()
    text: str | None = None  # that it appended; None: it has not been answered
    samples: list[str] | None = None  # with n > 1
    tokens: TokenCounts | None = None
    seconds: float | None = None
    timings: Timings | None = None  # of the sample that took longest
    finish: str | None = None
    start: float = 0.0  # it was said, and what comes before it answered
    first_text: float | None = None  # of a streamed one: prefill ends about here, decode begins
    end: float | None = None
    error: str | None = None


class TracedState(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    parent: int | None
    events: list[Event]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """`print(trace)` shows the tree, `save` writes what Perfetto and chrome://tracing show, `load` reads that again."""

    title: str
    began_at: float  # seconds since the epoch
    states: list[TracedState]  # the program's own first

    @property
    def events(self) -> list[Event]:
        return [event for state in self.states for event in state.events]

    @property
    def seconds(self) -> float:
        return max((event.end or 0.0 for event in self.events), default=0.0)

    @property
    def tokens(self) -> TokenCounts:
        """Of all generations together."""
        parts = [event.tokens for event in self.events if event.tokens is not None]
        return TokenCounts(sum(p.prompt for p in parts), sum(p.cached for p in parts), sum(p.completion for p in parts))

    @property
    def variables(self) -> dict[str, list[str]]:
        """The texts that were generated, by name, in the order of the states."""
        found: dict[str, list[str]] = {}
        for event in self.events:
            if event.name is not None and event.text is not None:
                found.setdefault(event.name, []).extend(event.samples or [event.text])
        return found

    def tree(self) -> Tree:
        """For rich's `Console.print`."""
        from .trace_tree import tree_of

        return tree_of(self)

    def __rich__(self) -> Tree:
        return self.tree()

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=WIDTH, color_system=None).print(self.tree())
        return out.getvalue().rstrip()

    def save(self, path: str | os.PathLike[str]) -> None:
        """As JSON of the Chrome trace event format, with the trace itself beside the events."""
        save([self], path)


class TraceFile(msgspec.Struct):
    ramiform: list[Trace]


def trace_of(recording: Recording) -> Trace:
    """What is known by now; the recording may go on."""
    logs = list(recording.logs)
    states = []
    forked_at: dict[int, float] = {}
    for planned, (_, log), times in zip(states_of(logs), logs, recording.times, strict=False):
        with log.changed:
            events = list(_events(planned.steps, log, times, forked_at.get(planned.number, 0.0)))
        for event in events:
            if event.kind == "fork":
                forked_at.update(dict.fromkeys(event.states, event.end or event.start))
        states.append(TracedState(number=planned.number, parent=planned.parent, events=events))
    return Trace(title=recording.title, began_at=recording.began_at, states=states)


def save(traces: list[Trace], path: str | os.PathLike[str]) -> None:
    from .chrome import chrome_events

    events = [event for number, trace in enumerate(traces) for event in chrome_events(trace, number)]
    content = {"traceEvents": events, "displayTimeUnit": "ms", "ramiform": traces}
    Path(path).write_bytes(msgspec.json.encode(content))


def load(path: str | os.PathLike[str]) -> list[Trace]:
    """What `save` has written. Raises RequestError for anything else."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=TraceFile).ramiform
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{os.fspath(path)!r} is no trace that ramiform has saved: {error}", param="path") from None


def _events(steps: tuple[PlannedStep, ...], log: OperationLog, times: OperationTimes, begin: float) -> Iterator[Event]:
    op = 0
    for step in steps:
        if step.operation is None:  # variables gathered: nothing that travels
            yield Event(kind=step.kind, label=step.label, place=step.place, states=step.states, start=begin, end=begin)
            continue
        done = log.done[op] if op < len(log.done) else None
        start = max(begin, times.said[op] if op < len(times.said) else begin)
        end = times.answered[op] if op < len(times.answered) else None
        failed = log.error.message if op == len(log.done) and log.error is not None else None
        begin = start if end is None else end
        yield Event(
            kind=step.kind,
            label=step.label,
            place=step.place,
            name=step.name,
            states=step.states,
            start=min(start, begin),
            first_text=times.first_text.get(op),
            end=end,
            error=failed,
            **({} if done is None else _told(done)),
        )
        op += 1


def _told(done: Done) -> dict[str, Any]:
    told: dict[str, Any] = {"text": done.text}
    if done.sequences:
        parts = done.sequences
        told["tokens"] = TokenCounts(
            sum(part.prompt_tokens for part in parts),
            sum(part.cached_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
        )
        told["seconds"] = max(part.seconds for part in parts) or None
        told["timings"] = max(parts, key=lambda part: part.seconds).timings
        told["finish"] = parts[0].finish.type
        if len(parts) > 1:
            told["samples"] = [part.text for part in parts]
    elif done.choice is not None:
        told["tokens"] = TokenCounts(done.choice.prompt_tokens, done.choice.cached_tokens, 0)
    elif done.answers is not None:
        told["text"] = ", ".join(msgspec.json.encode(answer).decode() for answer in done.answers)
    return told
