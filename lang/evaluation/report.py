"""Reports of evaluations: scores, intervals, failures, and the comparison of two of them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.programs.records.events import TokenCounts
from ...runtime.protocol.errors import RequestError
from .report_html import ScoreSummary, fragment, page
from .result_file import ExampleResult
from .statistics import confidence_interval, paired_interval, paired_p_value

if TYPE_CHECKING:
    from rich.console import Group

WIDTH = 120  # columns, where there is no terminal
MAX_FAILURES = 5  # shown in the terminal


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of an evaluation, in the order of the dataset. `print(report)` shows a table."""

    program: str
    options: dict[str, Any]  # arguments of `run`
    seconds: float  # from the first start to the last end
    results: list[ExampleResult]

    @property
    def score_names(self) -> list[str]:
        """Return the names of the scores; the first one is the metric's main score."""
        return list(dict.fromkeys(name for result in self.results for name in result.scores)) or ["score"]

    @property
    def score(self) -> float:
        """Return the mean of the main score; failed examples count 0."""
        return fmean(self.scores()) if self.results else 0.0

    def scores(self, name: str | None = None) -> list[float]:
        """Return a score of each example, by default the main one; 0 for failed examples."""
        name = self.score_names[0] if name is None else name
        if name not in self.score_names:
            raise RequestError(f"no score {name!r}; there are {', '.join(self.score_names)}", param="name")
        return [result.scores.get(name, 0.0) for result in self.results]

    def interval(self, name: str | None = None, confidence: float = 0.95) -> tuple[float, float]:
        """Return the confidence interval of a mean score: Wilson's for scores of 0 and 1, else by bootstrap."""
        return confidence_interval(self.scores(name), confidence)

    @property
    def failures(self) -> list[ExampleResult]:
        """Return the examples whose program or metric raised an exception."""
        return [result for result in self.results if result.error is not None]

    @property
    def tokens(self) -> TokenCounts:
        """Return the token counts of all examples together."""
        counts = [result.tokens for result in self.results]
        return TokenCounts(
            sum(c.prompt for c in counts), sum(c.cached for c in counts), sum(c.completion for c in counts)
        )

    def compare(self, other: Report, name: str | None = None, confidence: float = 0.95) -> Comparison:
        """Compare this report with one of the same examples, pair by pair. Raises RequestError for other examples."""
        name = self.score_names[0] if name is None else name
        if [result.digest for result in self.results] != [result.digest for result in other.results]:
            raise RequestError("only reports of the same examples, in the same order, can be compared", param="other")
        pairs = list(zip(self.scores(name), other.scores(name), strict=True))
        differences = [own - others for own, others in pairs]
        low, high = paired_interval(differences, confidence)
        return Comparison(
            name=name,
            score=fmean(self.scores(name)) if pairs else 0.0,
            other_score=fmean(other.scores(name)) if pairs else 0.0,
            difference=fmean(differences) if pairs else 0.0,
            low=low,
            high=high,
            p_value=paired_p_value(differences),
            better=[index for index, value in enumerate(differences) if value > 0],
            worse=[index for index, value in enumerate(differences) if value < 0],
        )

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{self.program}: {len(self.results)} examples", title_justify="left")
        for column in ("score", "mean", "95 % interval"):
            table.add_column(column, justify="left" if column == "score" else "right")
        for name in self.score_names:
            low, high = self.interval(name)
            table.add_row(name, f"{fmean(self.scores(name) or [0.0]):.3f}", f"{low:.3f} to {high:.3f}")
        lines = [Text(_summary(self), style="dim")]
        failures = self.failures
        lines += [
            Text(f"example {one.index} failed: {one.error}", style="red", overflow="ellipsis", no_wrap=True)
            for one in failures[:MAX_FAILURES]
        ]
        if len(failures) > MAX_FAILURES:
            lines.append(Text(f"... and {len(failures) - MAX_FAILURES} more", style="red"))
        return Group(table, *lines)

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=WIDTH, color_system=None).print(self)
        return out.getvalue().rstrip()

    def _repr_html_(self) -> str:
        return fragment(self.program, _summary(self), self._score_summaries(), self.results)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with a plot of each score, the examples and their traces. It needs no other files."""
        Path(path).write_text(
            page(self.program, _summary(self), self._score_summaries(), self.results), encoding="utf-8"
        )

    def _score_summaries(self) -> list[ScoreSummary]:
        return [ScoreSummary(name, self.scores(name), self.interval(name)) for name in self.score_names]

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one row an example: its values, scores, error, text, seconds and tokens."""
        names = list(dict.fromkeys(name for result in self.results for name in result.example))
        head = ["index", *names, *self.score_names, "error", "text", "seconds", "prompt", "cached", "completion"]
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(head)
            for one in self.results:
                values = [one.example.get(name) for name in names]
                scores = [one.scores.get(name, 0.0) for name in self.score_names]
                tokens = (one.tokens.prompt, one.tokens.cached, one.tokens.completion)
                rows.writerow([one.index, *map(_cell, values), *scores, one.error, one.text, one.seconds, *tokens])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, which `Report.load` reads."""
        Path(path).write_bytes(msgspec.json.encode(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Report:
        """Read a report that `save` has written. Raises RequestError for any other file."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, ValueError, RecursionError) as error:
            raise RequestError(f"{os.fspath(path)!r} is not a saved report: {error}", param="path") from None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The paired comparison of a report with another one of the same examples."""

    name: str  # of the score
    score: float
    other_score: float
    difference: float  # mean of the pairs' differences; positive: the first report is better
    low: float  # of the 95 % interval of the difference, by bootstrap
    high: float
    p_value: float  # two-sided, of a sign-flip permutation test
    better: list[int]  # indices of examples
    worse: list[int]

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.score:.3f} against {self.other_score:.3f}, difference {self.difference:+.3f} "
            f"({self.low:+.3f} to {self.high:+.3f}, p = {self.p_value:.3f}); "
            f"{len(self.better)} better, {len(self.worse)} worse"
        )


def _summary(report: Report) -> str:
    tokens = report.tokens
    counts = f"{tokens.prompt} prompt tokens, {tokens.cached} of them cached, {tokens.completion} generated"
    return f"{len(report.failures)} failed; {counts}; {report.seconds:.1f} s, {_times(report.results)}"


def _times(results: Sequence[ExampleResult]) -> str:
    seconds = [result.seconds for result in results] or [0.0]
    deciles = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 9
    return f"an example {deciles[4]:.2f} s (median), {deciles[8]:.2f} s (p90)"


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
