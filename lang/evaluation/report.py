"""Reports of evaluations: scores, intervals, failures, and the comparison of two of them."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from html import escape
from math import sqrt
from pathlib import Path
from statistics import NormalDist, fmean, quantiles
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.programs.records.events import TokenCounts
from ...runtime.protocol.errors import RequestError
from ..tracing.trace import printed
from .result_file import ExampleResult

if TYPE_CHECKING:
    from rich.console import Group


REPORT_WIDTH = 120  # columns, where there is no terminal
MAX_FAILURES = 5  # shown in the terminal
NUM_RESAMPLES = 10_000
MAX_EXACT = 12  # differing pairs up to which all sign changes are tried
NUM_BINS = 10  # of a plot
STYLE = """
.rf-eval{font:14px/1.4 system-ui,sans-serif;color:inherit}
.rf-eval table{border-collapse:collapse}
.rf-eval td,.rf-eval th{padding:2px 10px;text-align:left;vertical-align:top;border-bottom:1px solid #8884}
.rf-eval pre{white-space:pre-wrap;max-width:80ch;font-size:12px}
.rf-eval .bad{color:#c33}
.rf-eval figure{display:inline-block;margin:8px 16px 8px 0}
"""


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
        return printed(self, REPORT_WIDTH)

    def _repr_html_(self) -> str:
        return _fragment(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with a plot of each score, the examples and their traces. It needs no other files."""
        head = f'<meta name="color-scheme" content="light dark"><title>{escape(self.program)}</title>'
        page = f'<head><meta charset="utf-8">{head}</head><body>{_fragment(self)}</body>'
        Path(path).write_text(f'<!doctype html><html lang="en">{page}</html>\n', encoding="utf-8")

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write one row an example: its values, scores, error, text, seconds and tokens."""
        names = list(dict.fromkeys(name for result in self.results for name in result.example))
        head = ["index", *names, *self.score_names, "error", "text", "seconds", "prompt", "cached", "completion"]
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(head)
            for one in self.results:
                values = [one.example.get(name) for name in names]
                cells = [value if isinstance(value, str) else msgspec.json.encode(value).decode() for value in values]
                scores = [one.scores.get(name, 0.0) for name in self.score_names]
                tokens = (one.tokens.prompt, one.tokens.cached, one.tokens.completion)
                rows.writerow([one.index, *cells, *scores, one.error, one.text, one.seconds, *tokens])

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


# Statistics


def confidence_interval(scores: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean: Wilson's for scores that are all 0 or 1, else by bootstrap with a fixed seed."""
    if not scores:
        return (0.0, 0.0)
    if all(score in (0.0, 1.0) for score in scores):
        return _wilson(sum(scores), len(scores), confidence)
    return _bootstrap(scores, confidence)


def paired_interval(differences: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean difference of pairs, by bootstrap with a fixed seed."""
    return _bootstrap(differences, confidence) if differences else (0.0, 0.0)


def paired_p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the sign-flip permutation test: of a mean as far from 0 if signs were random.

    All sign changes are tried for up to 12 pairs that differ, else 10,000 random ones with a fixed seed.
    """
    import numpy as np

    values = np.array([value for value in differences if value], dtype=np.float64)
    if not len(values):
        return 1.0
    observed = abs(values.sum()) - 1e-9
    if len(values) <= MAX_EXACT:
        bits = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values))) & 1
        return float((np.abs((1 - 2 * bits) @ values) >= observed).mean())
    rng = np.random.default_rng(0)
    extreme = sum(abs(float(rng.choice((-1.0, 1.0), len(values)) @ values)) >= observed for _ in range(NUM_RESAMPLES))
    return float((extreme + 1) / (NUM_RESAMPLES + 1))


def _wilson(num_right: float, size: int, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = num_right / size
    centre = share + z * z / (2 * size)
    spread = z * sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _bootstrap(values: Sequence[float], confidence: float) -> tuple[float, float]:
    import numpy as np

    if len(set(values)) == 1:
        return (fmean(values),) * 2
    array = np.array(values, dtype=np.float64)
    rng = np.random.default_rng(0)
    means = [float(rng.choice(array, len(array)).mean()) for _ in range(NUM_RESAMPLES // 5)]
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


# HTML: plots as inline SVG, a table of examples, traces to unfold, no scripts and no other files


def _fragment(report: Report) -> str:
    """Return the report as an element that a notebook or page may hold."""
    names = report.score_names
    parts = [f'<div class="rf-eval"><style>{STYLE}</style><h2>{escape(report.program)}</h2>', _scores_html(report)]
    parts.append(f"<p>{len(report.results)} examples, {escape(_summary(report))}</p>")
    parts += [_histogram(name, report.scores(name)) for name in names]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", "example", *names, "text, trace"))
    rows = "".join(_row_html(names, result) for result in report.results)
    parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>")
    return "".join(parts)


def _scores_html(report: Report) -> str:
    rows = ""
    for name in report.score_names:
        mean, (low, high) = fmean(report.scores(name) or [0.0]), report.interval(name)
        rows += f"<tr><td>{escape(name)}</td><td>{mean:.3f}</td><td>{low:.3f} to {high:.3f}</td></tr>"
    return f"<table><tr><th>score</th><th>mean</th><th>95 % interval</th></tr>{rows}</table>"


def _histogram(name: str, scores: Sequence[float]) -> str:
    """Return a plot of how many examples have which score."""
    low, high = min([0.0, *scores]), max([1.0, *scores])
    counts = [0] * NUM_BINS
    for score in scores:
        counts[min(NUM_BINS - 1, int((score - low) / (high - low) * NUM_BINS))] += 1
    highest = max([1, *counts])
    bars = "".join(
        f'<rect x="{index * 24 + 1}" y="{100 - 90 * count / highest:.1f}" width="22" '
        f'height="{90 * count / highest:.1f}" fill="#4a90d9"><title>{count}</title></rect>'
        for index, count in enumerate(counts)
    )
    labels = f'<text x="0" y="114" font-size="11" fill="currentColor">{low:g}</text>'
    labels += f'<text x="240" y="114" font-size="11" fill="currentColor" text-anchor="end">{high:g}</text>'
    return (
        f'<figure><svg width="240" height="118" role="img" aria-label="{escape(name, quote=True)}">{bars}{labels}</svg>'
        f"<figcaption>{escape(name)}</figcaption></figure>"
    )


def _row_html(names: Sequence[str], result: ExampleResult) -> str:
    scores = "".join(f"<td>{result.scores.get(name, 0.0):g}</td>" for name in names)
    example = "<br>".join(f"{escape(name)}: {escape(str(value))}" for name, value in result.example.items())
    error = "" if result.error is None else f'<div class="bad">{escape(result.error)}</div>'
    trace = "" if result.trace is None else f"<pre>{escape(str(result.trace))}</pre>"
    text = f"<details><summary>{escape(result.text[-60:])}</summary><pre>{escape(result.text)}</pre>{trace}</details>"
    return f"<tr><td>{result.index}</td><td>{example}</td>{scores}<td>{error}{text}</td></tr>"
