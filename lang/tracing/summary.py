"""Totals of a trace by source line: operations, seconds by cause, tokens."""

from __future__ import annotations

import io
import linecache
from typing import TYPE_CHECKING

import msgspec

from ...runtime.programs.records.events import RunRecord, TokenCounts, total_of
from ...runtime.programs.records.spans import CAUSES, Cause, spans_of
from ...runtime.programs.records.totals import LineTotals, totals_by_line

if TYPE_CHECKING:
    from rich.table import Table

WIDTH = 160  # columns, where there is no terminal
MAX_SOURCE = 60  # characters of a source line


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
            tokens = line.tokens
            table.add_row(
                Text(_short_place(line.place)),
                Text(_short(line.source or "")),
                str(line.operations),
                *seconds,
                *(str(count) if line.operations else "" for count in (tokens.prompt, tokens.cached, tokens.completion)),
            )
        return table

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=WIDTH, color_system=None).print(self.table())
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip()


def summary_of(record: RunRecord) -> TraceSummary:
    """Return the totals of a run by source line."""
    tracks = [(state.events, spans_of(record, state)) for state in record.states]
    return TraceSummary(title=record.title, lines=totals_by_line(tracks, _source_of))


def _source_of(place: str) -> str | None:
    file, _, number = place.rpartition(":")
    return linecache.getline(file, int(number)).strip() or None if number.isdecimal() else None


def _short_place(place: str) -> str:
    return place.rpartition("/")[2] or "after the last operation"


def _short(source: str) -> str:
    return source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 3]}..."
