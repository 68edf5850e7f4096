"""HTML of a report: plots as inline SVG, a table of examples, traces to unfold. No scripts, no other files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import NamedTuple

from .result_file import ExampleResult

NUM_BINS = 10
STYLE = """
.rf-eval{font:14px/1.4 system-ui,sans-serif;color:inherit}
.rf-eval table{border-collapse:collapse}
.rf-eval td,.rf-eval th{padding:2px 10px;text-align:left;vertical-align:top;border-bottom:1px solid #8884}
.rf-eval pre{white-space:pre-wrap;max-width:80ch;font-size:12px}
.rf-eval .bad{color:#c33}
.rf-eval figure{display:inline-block;margin:8px 16px 8px 0}
"""


class ScoreSummary(NamedTuple):
    """A score of all examples and the 95 % interval of its mean."""

    name: str
    values: Sequence[float]
    interval: tuple[float, float]


def page(title: str, summary: str, scores: Sequence[ScoreSummary], results: Sequence[ExampleResult]) -> str:
    """Return a whole HTML page that follows the reader's light or dark theme."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head><body>{fragment(title, summary, scores, results)}</body></html>\n"
    )


def fragment(title: str, summary: str, scores: Sequence[ScoreSummary], results: Sequence[ExampleResult]) -> str:
    """Return the report as an element that a notebook or page may hold."""
    names = [score.name for score in scores]
    parts = [f'<div class="rf-eval"><style>{STYLE}</style><h2>{escape(title)}</h2>', _scores(scores)]
    parts.append(f"<p>{len(results)} examples, {escape(summary)}</p>")
    parts += [_histogram(score.name, score.values) for score in scores]
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", "example", *names, "text, trace"))
    rows = "".join(_row(names, result) for result in results)
    parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>")
    return "".join(parts)


def _scores(scores: Sequence[ScoreSummary]) -> str:
    rows = ""
    for name, values, (low, high) in scores:
        mean = fmean(values or [0.0])
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


def _row(names: Sequence[str], result: ExampleResult) -> str:
    scores = "".join(f"<td>{result.scores.get(name, 0.0):g}</td>" for name in names)
    example = "<br>".join(f"{escape(name)}: {escape(str(value))}" for name, value in result.example.items())
    error = "" if result.error is None else f'<div class="bad">{escape(result.error)}</div>'
    trace = "" if result.trace is None else f"<pre>{escape(str(result.trace))}</pre>"
    text = f"<details><summary>{escape(result.text[-60:])}</summary><pre>{escape(result.text)}</pre>{trace}</details>"
    return f"<tr><td>{result.index}</td><td>{example}</td>{scores}<td>{error}{text}</td></tr>"
