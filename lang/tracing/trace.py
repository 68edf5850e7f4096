"""Traces of runs: the operations of all states with texts, variables, tokens and times.

A trace is made from a recording, shown as a tree in the terminal or as a page in a notebook, summed up by source line,
and saved in the Chrome trace event format.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...runtime.programs.records.events import RunRecord
from ...runtime.programs.records.view import ProgramView, view_of
from ...runtime.protocol.errors import RequestError
from ..operations.recording import Recording
from .chrome import chrome_events
from .collect import record_of

if TYPE_CHECKING:
    from rich.tree import Tree

    from .summary import TraceSummary

WIDTH = 160  # columns, where there is no terminal


class Trace(RunRecord, frozen=True, kw_only=True):
    """A traced run. `print(trace)` shows a tree; `save` writes a file for Perfetto and chrome://tracing."""

    def tree(self) -> Tree:
        """Return the tree for rich's `Console.print`: a line for each operation, branches below their fork."""
        from .show import tree_of

        return tree_of(self)

    def summary(self) -> TraceSummary:
        """Return the totals by source line: operations, seconds by cause, tokens. `print` shows a table."""
        from .summary import summary_of

        return summary_of(self)

    def __rich__(self) -> Tree:
        return self.tree()

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=WIDTH, color_system=None).print(self.tree())
        return out.getvalue().rstrip()

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
        view_of(trace, id=str(number + 1), seq=number + 1, source=sources[number].source if sources else None)
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
