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
from rich.text import Text
from rich.tree import Tree

from ..runtime.protocol.core import Timings
from ..runtime.protocol.errors import RequestError
from ..runtime.protocol.session import Done
from .operation_log import OperationLog
from .plan import PlannedStep, StepKind, states_of
from .recording import OperationTimes, Recording

if TYPE_CHECKING:
    from rich.tree import Tree
if TYPE_CHECKING:
    pass
if TYPE_CHECKING:
    pass


def chrome_events(trace: Trace, process: int = 0) -> Iterator[dict[str, Any]]:
    """`process` numbers the run, so that several can stand in one file."""

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
    """As the core tells them, laid against the end, within the event: what is left before them is the way there.
    Without them, as the client saw a stream."""
    if event.end is None:
        return
    if (told := event.timings) is not None:
        until = event.end
        phases = []
        for name, seconds in (("decode", told.decode), ("prefill", told.prefill), ("queue", told.queue)):
            start = max(event.start, until - seconds)
            phases.append((name, start, until))
            until = start
        yield from reversed(phases)
    elif event.first_text is not None:
        yield "prefill", event.start, event.first_text
        yield "decode", event.first_text, event.end


def _arguments(event: Event) -> dict[str, Any]:
    """What is shown of an event when it is selected."""
    arguments: dict[str, Any] = {"label": event.label, "place": event.place, "text": event.text}
    if event.tokens is not None:
        arguments["prompt_tokens"] = event.tokens.prompt
        arguments["cached_tokens"] = event.tokens.cached
        arguments["completion_tokens"] = event.tokens.completion
    arguments |= {"samples": event.samples, "runtime_seconds": event.seconds, "error": event.error}
    return {name: value for name, value in arguments.items() if value is not None}


MAX_SHOWN = 72  # characters of a text


def tree_of(trace: Trace) -> Tree:
    root = Tree(Text(_summary(trace), style="bold"))
    _grow(root, trace, trace.states[0])
    return root


def _grow(tree: Tree, trace: Trace, state: TracedState) -> None:
    branches = {child.number: child for child in trace.states if child.parent == state.number}
    for event in state.events:
        node = tree.add(Text.assemble(*_line(event)))
        if event.kind == "fork":
            for place, number in enumerate(event.states):
                if number in branches:
                    _grow(node.add(f"branch {place}"), trace, branches[number])


def _summary(trace: Trace) -> str:
    tokens = trace.tokens
    counts = f"{tokens.prompt} prompt tokens, {tokens.cached} of them cached, {tokens.completion} generated"
    return f"{trace.title}: {len(trace.states)} states, {counts}, {trace.seconds * 1000:.1f} ms"


def _line(event: Event) -> Iterator[tuple[str, str]]:
    """Pieces of text with their styles."""
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
