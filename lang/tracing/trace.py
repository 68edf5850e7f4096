"""Traces of runs: the operations of all states with texts, variables, tokens and times.

A trace is made from a recording, shown as a tree in the terminal or as a page in a notebook, summed up by source line,
and saved in the Chrome trace event format.
"""

from __future__ import annotations

import io
import linecache
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.programs.records.events import Event, RunRecord, TokenCounts, TracedState, total_of
from ...runtime.programs.records.spans import CAUSES, Cause, phases, spans_of
from ...runtime.programs.records.totals import LineTotals, totals_by_line
from ...runtime.programs.records.view import ProgramView, RowKey, view_of
from ...runtime.protocol.errors import RequestError
from ..operations.recording import Recording
from .collect import record_of

if TYPE_CHECKING:
    from rich.table import Table
    from rich.tree import Tree


TREE_WIDTH = 160  # columns, where there is no terminal
MAX_SOURCE = 60  # characters of a source line
MAX_SHOWN_TEXT = 72  # characters of a text in the tree
MIN_SHOWN = 0.001  # seconds: shorter gaps are left out


class Trace(RunRecord, frozen=True, kw_only=True):
    """A traced run. `print(trace)` shows a tree; `save` writes a file for Perfetto and chrome://tracing."""

    def tree(self) -> Tree:
        """Return the tree for rich's `Console.print`: a line for each operation, branches below their fork."""
        return tree_of(self)

    def summary(self) -> TraceSummary:
        """Return the totals by source line: operations, seconds by cause, tokens. `print` shows a table."""
        return summary_of(self)

    def __rich__(self) -> Tree:
        return self.tree()

    def __str__(self) -> str:
        return printed(self.tree(), TREE_WIDTH)

    def _repr_html_(self) -> str:
        """Return the trace as HTML for notebooks. Never raises."""
        from .notebook import trace_html

        return trace_html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON of the Chrome trace event format, with the trace itself beside the events."""
        save([self], path)


class SavedView(msgspec.Struct):
    """The part of a saved view that cannot be made again: texts of source lines, by file:line."""

    source: dict[str, str] = {}


class TraceFile(msgspec.Struct):
    """The part of a saved file that `load` and `load_views` read. Older files have no views."""

    ramiform: list[Trace]
    programs: list[SavedView] = []


def printed(shown: Any, width: int) -> str:
    """Return what rich prints, without colours."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(shown)
    return out.getvalue().rstrip()


def trace_of(recording: Recording) -> Trace:
    """Return the trace of a recording so far, which may still go on."""
    record = record_of(recording)
    return Trace(**{name: getattr(record, name) for name in record.__struct_fields__})


def save(traces: list[Trace], path: str | os.PathLike[str]) -> None:
    """Write traces as JSON of the Chrome trace event format, with what `load` and the server's page read beside it."""
    events = [event for number, trace in enumerate(traces) for event in chrome_events(trace, number)]
    events.sort(key=lambda event: (event["ts"], event.get("cat") == "gap"))  # a gap follows an operation of no length
    content = {"traceEvents": events, "displayTimeUnit": "ms", "ramiform": traces, "programs": views_of(traces)}
    Path(path).write_bytes(msgspec.json.encode(content))


def views_of(traces: Sequence[RunRecord], sources: Sequence[SavedView] = ()) -> list[ProgramView]:
    """Return what pages show of traces. Source lines that `sources`, in the same order, lack are read from files."""
    return [
        view_of(trace, RowKey(str(number + 1), number + 1), source=sources[number].source if sources else None)
        for number, trace in enumerate(traces)
    ]


def load(path: str | os.PathLike[str]) -> list[Trace]:
    """Read the traces that `save` has written. Raises RequestError for any other file."""
    return _read(path).ramiform


def load_views(path: str | os.PathLike[str]) -> list[ProgramView]:
    """Read what pages show of the traces that `save` has written. Raises RequestError for any other file."""
    found = _read(path)
    return views_of(found.ramiform, found.programs if len(found.programs) == len(found.ramiform) else ())


def _read(path: str | os.PathLike[str]) -> TraceFile:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=TraceFile)
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(
            f"{os.fspath(path)!r} is not a trace that ramiform has saved: {error}", param="path"
        ) from None


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a run by source line, in the order of the lines. `print` shows a table.

    The seconds are those of every state's track, so branches that run at the same time count each.
    """

    title: str
    lines: list[LineTotals]

    @property
    def seconds(self) -> dict[Cause, float]:
        """Return the seconds of all lines by cause."""
        return {cause: sum(line.seconds.get(cause, 0.0) for line in self.lines) for cause in CAUSES}

    @property
    def tokens(self) -> TokenCounts:
        """Return the token counts of all lines."""
        return total_of([line.tokens for line in self.lines])

    def table(self) -> Table:
        """Return the table for rich's `Console.print`: causes that took no time are left out."""
        from rich.table import Table
        from rich.text import Text

        causes = [cause for cause, seconds in self.seconds.items() if seconds > 0]
        table = Table(title=Text(self.title), box=None, header_style="bold", show_footer=True, title_justify="left")
        total = self.tokens
        table.add_column("line", "total", overflow="fold")
        table.add_column("source", "")
        table.add_column("operations", str(sum(line.operations for line in self.lines)), justify="right")
        for cause in causes:
            table.add_column(f"{cause} s", f"{self.seconds[cause]:.3f}", justify="right")
        for name, count in (("in", total.prompt), ("cached", total.cached), ("out", total.completion)):
            table.add_column(name, str(count), justify="right")
        for line in self.lines:
            seconds = [f"{line.seconds[cause]:.3f}" if cause in line.seconds else "" for cause in causes]
            tokens, source = line.tokens, line.source or ""
            table.add_row(
                Text(line.place.rpartition("/")[2] or "after the last operation"),
                Text(source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 3]}..."),
                str(line.operations),
                *seconds,
                *(str(count) if line.operations else "" for count in (tokens.prompt, tokens.cached, tokens.completion)),
            )
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in printed(self.table(), TREE_WIDTH).splitlines())


def summary_of(record: RunRecord) -> TraceSummary:
    """Return the totals of a run by source line."""
    tracks = [(state.events, spans_of(record, state)) for state in record.states]
    return TraceSummary(title=record.title, lines=totals_by_line(tracks, _source_of))


def _source_of(place: str) -> str | None:
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() or None if number.isdecimal() else None


def tree_of(record: RunRecord) -> Tree:
    """Return the tree for rich's `Console.print`: a line for each operation, branches below their fork."""
    from rich.text import Text
    from rich.tree import Tree

    branches = {state.number: state for state in record.states}

    def grow(tree: Tree, state: TracedState) -> None:
        gaps: defaultdict[int, defaultdict[Cause, float]] = defaultdict(lambda: defaultdict(float))
        for span in spans_of(record, state):
            if span.is_gap:
                gaps[span.event][span.cause] += span.seconds
        for index, event in enumerate(state.events):
            node = tree.add(Text.assemble(*_event_line(event, gaps[index])))
            for branch, number in enumerate(event.states if event.kind in ("fork", "call") else ()):
                if number in branches and branches[number].parent == state.number:
                    below = node.add(f"branch {branch}") if event.kind == "fork" else node
                    grow(below, branches[number])

    root = Tree(Text(_heading(record), style="bold"))
    grow(root, record.states[0])
    return root


def _heading(trace: RunRecord) -> str:
    tokens = trace.tokens
    counts = f"{tokens.prompt} prompt tokens, {tokens.cached} of them cached, {tokens.completion} generated"
    saved = f", {trace.saved * 1000:.1f} ms saved by early tools" if trace.saved else ""
    return f"{trace.title}: {len(trace.states)} states, {counts}, {trace.seconds * 1000:.1f} ms{saved}"


def _event_line(event: Event, gaps: Mapping[Cause, float]) -> Iterator[tuple[str, str]]:
    """Yield the pieces of an event's line in the tree, with their styles. `gaps`: seconds before it by cause."""
    yield (event.kind if event.states else f"{event.kind:<6}", "dim")
    name = event.label if event.kind == "call" else event.name
    yield (f" {name}" if name else "", "bold cyan")
    if event.states and event.kind != "call":
        yield (f" x{len(event.states)}", "")
    for text in event.samples or ([event.text] if event.text else []):
        yield (f" {_short_text(text)}", "" if event.tokens is None else "green")
    if event.image is not None:
        yield (f" {event.label}, SHA-256 {event.image.digest}", "green")
    if event.tokens is not None:
        tokens = event.tokens
        yield (f"  {tokens.prompt} in ({tokens.cached} cached), {tokens.completion} out", "yellow")
    if event.end is not None and event.tokens is not None:
        yield (f"  {(event.end - event.start) * 1000:.1f} ms", "magenta")
    if (timings := event.timings) is not None:
        parts = ((name, getattr(timings, name)) for name in ("queue", "grammar", "prefill", "retracted", "decode"))
        shown = (one for one in parts if one[1] or one[0] in ("queue", "prefill", "decode"))
        yield (f" ({', '.join(f'{name} {seconds * 1000:.1f}' for name, seconds in shown)})", "dim")
    if event.saved:
        yield (f"  {event.saved * 1000:.1f} ms early", "magenta")
    before = [f"{cause} {seconds * 1000:.1f}" for cause, seconds in gaps.items() if seconds >= MIN_SHOWN]
    if before:
        yield (f"  after {', '.join(before)} ms", "dim")
    if event.error is not None:
        yield (f"  failed: {event.error}", "red")
    elif event.end is None:
        yield ("  not answered", "red")
    yield (f"   ({event.place.rpartition('/')[2]})", "dim")


def _short_text(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= MAX_SHOWN_TEXT else f"{shown[: MAX_SHOWN_TEXT - 4]}...{shown[0]}"


def chrome_events(trace: RunRecord, process: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace in the Chrome trace event format, times in microseconds.

    Each state is a track, each fork or join an arrow. Gaps of a track have the category "gap" and are named by their
    cause. `process` numbers the run among those of one file.
    """

    def event(phase: str, state: int, name: str, seconds: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": process, "tid": state, "name": name, "ts": round(seconds * 1e6, 3), **more}

    yield event("M", 0, "process_name", 0.0, args={"name": trace.title})
    begins = {state.number: next((one.start for one in state.events), None) for state in trace.states}
    ends = {state.number: max((one.end or one.start for one in state.events), default=0.0) for state in trace.states}
    for state in trace.states:
        title = "program" if state.parent is None else f"state {state.number}, of {state.parent}"
        yield event("M", state.number, "thread_name", 0.0, args={"name": title})
        for span in spans_of(trace, state):
            if span.is_gap:
                length = round(span.seconds * 1e6, 3)
                yield event(
                    "X", state.number, span.cause, span.start, dur=length, cat="gap", args={"place": span.place}
                )
        for index, one in enumerate(state.events):
            end = one.start if one.end is None else one.end
            name = one.name or one.kind
            duration = round((end - one.start) * 1e6, 3)
            yield event("X", state.number, name, one.start, dur=duration, cat=one.kind, args=_arguments(one))
            for part, start, until in _phases(one):
                yield event("X", state.number, part, start, dur=round((until - start) * 1e6, 3), cat="phase")
            for other in one.states:
                arrow = {"id": f"{process}.{state.number}.{index}.{other}", "cat": one.kind}
                if one.kind in ("fork", "call") and (begin := begins.get(other)) is not None:
                    yield event("s", state.number, one.kind, end, **arrow)
                    yield event("f", other, one.kind, begin, bp="e", **arrow)
                elif one.kind in ("join", "gather") and ends[other] <= end:
                    yield event("s", other, "join", ends[other], **arrow)
                    yield event("f", state.number, "join", end, bp="e", **arrow)


def _phases(event: Event) -> Iterator[tuple[str, float, float]]:
    """Yield the phases of a generation: name, start, end.

    Without the runtime's timings the first streamed text separates prefill from decode.
    """
    if event.end is None:
        return
    if (timings := event.timings) is not None:
        for name, start, until in phases(timings, event.start, event.end, event.seconds):
            if name in ("queue", "prefill", "decode") or (name != "transport" and until > start):
                yield name, start, until
    elif event.first_text is not None:
        yield "prefill", event.start, event.first_text
        yield "decode", event.first_text, event.end


def _arguments(event: Event) -> dict[str, Any]:
    """Return the details that the viewer shows for a selected event."""
    arguments: dict[str, Any] = {"label": event.label, "place": event.place, "text": event.text}
    if event.tokens is not None:
        names = ("prompt", "cached", "completion", "forced", "accepted")
        arguments |= {f"{name}_tokens": getattr(event.tokens, name) for name in names}
    if event.image is not None:
        arguments["digest"] = event.image.digest
    arguments |= {"samples": event.samples, "runtime_seconds": event.seconds, "error": event.error}
    return {name: value for name, value in arguments.items() if value is not None}
