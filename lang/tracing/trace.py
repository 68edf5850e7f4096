"""Traces of runs: the operations of all states with texts, variables, tokens and times.

A trace is made from a recording, shown as a tree in the terminal, and saved in the Chrome trace event format. Times
are seconds since the run began, as the client measured them. `timings` and `seconds` are the runtime's measurements of
a generation, from its submission to its end.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.protocol.core import Timings
from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.session import Done
from ..operation_log import OperationLog
from ..plan import PlannedStep, StepKind, states_of
from .recording import OperationTimes, Recording

if TYPE_CHECKING:
    from rich.tree import Tree

WIDTH = 160  # columns, where there is no terminal
MAX_SHOWN = 72  # characters of a text in the tree


class TokenCounts(msgspec.Struct, frozen=True):
    """Token counts of an operation, all samples and choices together; `cached` of the `prompt` ones were cached."""

    prompt: int
    cached: int
    completion: int


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a state. `states` are the numbers of the states that it forks or joins."""

    kind: StepKind
    label: str
    place: str  # file:line of the program
    name: str | None = None  # name of the variable that it makes
    states: tuple[int, ...] = ()
    text: str | None = None  # the text that it appended; None: it has not been answered
    samples: list[str] | None = None  # with n > 1
    tokens: TokenCounts | None = None
    seconds: float | None = None
    timings: Timings | None = None  # of the slowest sample
    finish: str | None = None
    start: float = 0.0  # when it was recorded and the operation before it was answered
    first_text: float | None = None  # of a streamed one, about where prefill ends and decode begins
    end: float | None = None
    error: str | None = None


class TracedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a traced run."""

    number: int
    parent: int | None
    events: list[Event]


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A traced run. `print(trace)` shows a tree; `save` writes a file for Perfetto and chrome://tracing."""

    title: str
    began_at: float  # seconds since the epoch
    states: list[TracedState]  # the program's own first

    @property
    def events(self) -> list[Event]:
        """Return the events of all states."""
        return [event for state in self.states for event in state.events]

    @property
    def seconds(self) -> float:
        """Return the time of the last answer."""
        return max((event.end or 0.0 for event in self.events), default=0.0)

    @property
    def tokens(self) -> TokenCounts:
        """Return the token counts of all generations together."""
        parts = [event.tokens for event in self.events if event.tokens is not None]
        return TokenCounts(sum(p.prompt for p in parts), sum(p.cached for p in parts), sum(p.completion for p in parts))

    @property
    def variables(self) -> dict[str, list[str]]:
        """Return the generated texts by variable, in the order of the states."""
        found: dict[str, list[str]] = {}
        for event in self.events:
            if event.name is not None and event.text is not None:
                found.setdefault(event.name, []).extend(event.samples or [event.text])
        return found

    def tree(self) -> Tree:
        """Return the tree for rich's `Console.print`: a line for each operation, branches below their fork."""
        from rich.text import Text
        from rich.tree import Tree

        def grow(tree: Tree, state: TracedState) -> None:
            branches = {child.number: child for child in self.states if child.parent == state.number}
            for event in state.events:
                node = tree.add(Text.assemble(*_line(event)))
                if event.kind == "fork":
                    for branch, number in enumerate(event.states):
                        if number in branches:
                            grow(node.add(f"branch {branch}"), branches[number])

        root = Tree(Text(_summary(self), style="bold"))
        grow(root, self.states[0])
        return root

    def __rich__(self) -> Tree:
        return self.tree()

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=WIDTH, color_system=None).print(self.tree())
        return out.getvalue().rstrip()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON of the Chrome trace event format, with the trace itself beside the events."""
        save([self], path)


class TraceFile(msgspec.Struct):
    """The part of a saved file that `load` reads."""

    ramiform: list[Trace]


def trace_of(recording: Recording) -> Trace:
    """Return the trace of a recording so far, which may still go on."""
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
    """Write traces as JSON of the Chrome trace event format."""

    events = [event for number, trace in enumerate(traces) for event in chrome_events(trace, number)]
    content = {"traceEvents": events, "displayTimeUnit": "ms", "ramiform": traces}
    Path(path).write_bytes(msgspec.json.encode(content))


def load(path: str | os.PathLike[str]) -> list[Trace]:
    """Read the traces that `save` has written. Raises RequestError for any other file."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=TraceFile).ramiform
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{os.fspath(path)!r} is not a trace that ramiform has saved: {error}", param="path"
        ) from None


def _events(steps: tuple[PlannedStep, ...], log: OperationLog, times: OperationTimes, begin: float) -> Iterator[Event]:
    op = 0
    for step in steps:
        if step.operation is None:  # variables gathered: no operation was sent
            yield Event(kind=step.kind, label=step.label, place=step.place, states=step.states, start=begin, end=begin)
            continue
        done = log.done[op] if op < len(log.done) else None
        start = max(begin, times.recorded[op] if op < len(times.recorded) else begin)
        end = times.answered[op] if op < len(times.answered) else None
        error = log.error if op == len(log.done) else log.failed.get(op)  # the latter was removed by a rollback
        failed = None if error is None else error.message
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
            **({} if done is None else _answer_fields(done)),
        )
        op += 1


def _answer_fields(done: Done) -> dict[str, Any]:
    """Return the fields of an Event that come with the answer."""
    fields: dict[str, Any] = {"text": done.text}
    if done.sequences:
        parts = done.sequences
        fields["tokens"] = TokenCounts(
            sum(part.prompt_tokens for part in parts),
            sum(part.cached_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
        )
        fields["seconds"] = max(part.seconds for part in parts) or None
        fields["timings"] = max(parts, key=lambda part: part.seconds).timings
        fields["finish"] = parts[0].finish.type
        if len(parts) > 1:
            fields["samples"] = [part.text for part in parts]
    elif done.choice is not None:
        fields["tokens"] = TokenCounts(done.choice.prompt_tokens, done.choice.cached_tokens, 0)
    elif done.answers is not None:
        fields["text"] = ", ".join(msgspec.json.encode(answer).decode() for answer in done.answers)
    return fields


def chrome_events(trace: Trace, process: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace in the Chrome trace event format, times in microseconds.

    Each state is a track, each fork or join an arrow. `process` numbers the run among those of one file.
    """

    def event(phase: str, state: int, name: str, seconds: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": process, "tid": state, "name": name, "ts": round(seconds * 1e6, 3), **more}

    yield event("M", 0, "process_name", 0.0, args={"name": trace.title})
    begins = {state.number: next((one.start for one in state.events), None) for state in trace.states}
    ends = {state.number: max((one.end or one.start for one in state.events), default=0.0) for state in trace.states}
    for state in trace.states:
        title = "program" if state.parent is None else f"state {state.number}, of {state.parent}"
        yield event("M", state.number, "thread_name", 0.0, args={"name": title})
        for index, one in enumerate(state.events):
            end = one.start if one.end is None else one.end
            name = one.name or one.kind
            duration = round((end - one.start) * 1e6, 3)
            yield event("X", state.number, name, one.start, dur=duration, cat=one.kind, args=_arguments(one))
            for part, start, until in _phases(one):
                yield event("X", state.number, part, start, dur=round((until - start) * 1e6, 3), cat="phase")
            for other in one.states:
                arrow = {"id": f"{process}.{state.number}.{index}.{other}", "cat": one.kind}
                if one.kind == "fork" and (begin := begins.get(other)) is not None:
                    yield event("s", state.number, "fork", end, **arrow)
                    yield event("f", other, "fork", begin, bp="e", **arrow)
                elif one.kind in ("join", "gather") and ends[other] <= end:
                    yield event("s", other, "join", ends[other], **arrow)
                    yield event("f", state.number, "join", end, bp="e", **arrow)


def _phases(event: Event) -> Iterator[tuple[str, float, float]]:
    """Yield the phases of a generation: name, start, end.

    With the runtime's timings they are aligned to the event's end; the rest before them is transport. Without timings
    the first streamed text separates prefill from decode.
    """
    if event.end is None:
        return
    if (timings := event.timings) is not None:
        until = event.end
        phases = []
        for name, seconds in (("decode", timings.decode), ("prefill", timings.prefill), ("queue", timings.queue)):
            start = max(event.start, until - seconds)
            phases.append((name, start, until))
            until = start
        yield from reversed(phases)
    elif event.first_text is not None:
        yield "prefill", event.start, event.first_text
        yield "decode", event.first_text, event.end


def _arguments(event: Event) -> dict[str, Any]:
    """Return the details that the viewer shows for a selected event."""
    arguments: dict[str, Any] = {"label": event.label, "place": event.place, "text": event.text}
    if event.tokens is not None:
        arguments["prompt_tokens"] = event.tokens.prompt
        arguments["cached_tokens"] = event.tokens.cached
        arguments["completion_tokens"] = event.tokens.completion
    arguments |= {"samples": event.samples, "runtime_seconds": event.seconds, "error": event.error}
    return {name: value for name, value in arguments.items() if value is not None}


def _summary(trace: Trace) -> str:
    tokens = trace.tokens
    counts = f"{tokens.prompt} prompt tokens, {tokens.cached} of them cached, {tokens.completion} generated"
    return f"{trace.title}: {len(trace.states)} states, {counts}, {trace.seconds * 1000:.1f} ms"


def _line(event: Event) -> Iterator[tuple[str, str]]:
    """Yield the pieces of an event's line in the tree, with their styles."""
    yield (event.kind if event.states else f"{event.kind:<6}", "dim")
    yield (f" {event.name}" if event.name else "", "bold cyan")
    if event.states:
        yield (f" x{len(event.states)}", "")
    for text in event.samples or ([event.text] if event.text else []):
        yield (f" {_short(text)}", "" if event.tokens is None else "green")
    if event.tokens is not None:
        tokens = event.tokens
        yield (f"  {tokens.prompt} in ({tokens.cached} cached), {tokens.completion} out", "yellow")
    if event.end is not None and event.tokens is not None:
        yield (f"  {(event.end - event.start) * 1000:.1f} ms", "magenta")
    if (timings := event.timings) is not None:
        parts = ((timings.queue, "queue"), (timings.prefill, "prefill"), (timings.decode, "decode"))
        yield (f" ({', '.join(f'{name} {seconds * 1000:.1f}' for seconds, name in parts)})", "dim")
    if event.error is not None:
        yield (f"  failed: {event.error}", "red")
    elif event.end is None:
        yield ("  not answered", "red")
    yield (f"   ({event.place.rpartition('/')[2]})", "dim")


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 4]}...{shown[0]}"
