"""Parts that the benches share: options, interleaved runs, ratios, percentiles, Markdown tables and results files."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")
TEKKEN = "tekken_240911.json"  # a vocabulary of 131k tokens

Model = Annotated[str | None, typer.Argument(help="checkpoint path; default: the shipped model")]
Batches = Annotated[str, typer.Option(help="numbers of requests at once, separated by commas")]
Repeat = Annotated[int, typer.Option(help="interleaved runs of each, after one that warms up")]
Json = Annotated[Path | None, typer.Option("--json", help="write the figures here")]
Out = Annotated[Path | None, typer.Option(help="write the report here too, as Markdown")]
CasesFolder = Annotated[Path, typer.Argument(help="MaskBench's *.json files", exists=True, file_okay=False)]
TokenizerFile = Annotated[str, typer.Option(help="a file, or the name of one in the package mistral-common")]
Sample = Annotated[int | None, typer.Option(help="number of schemas, drawn at random; default: all")]
Only = Annotated[str, typer.Option(help="only what has this in its name")]


def interleaved(repeat: int, ways: Mapping[str, Callable[[int], T]]) -> dict[str, list[T]]:
    """Run all ways in turn, `repeat` times after a round that warms up, so that load on the machine meets all alike.

    A way is called with the number of its round, 0 for the one whose result is dropped.
    """
    results: dict[str, list[T]] = {name: [] for name in ways}
    for number in range(repeat + 1):
        for name, run in ways.items():
            result = run(number)
            if number:
                results[name].append(result)
    return results


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Return the median of the rounds' ratios. Raises ValueError if the rounds do not pair up."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over the runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile, interpolated; a single value is every percentile, and 0 stands for none."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows with equal keys as a Markdown table. Columns of numbers are aligned to the right."""
    columns = list(rows[0])
    marks = ["---" if isinstance(rows[0][column], str) else "---:" for column in columns]
    return _lines([columns, marks, *([cell(row[column]) for column in columns] for row in rows)])


def matrix(columns: Iterable[object], rows: Iterable[tuple[str, Iterable[str]]], corner: str = "") -> str:
    """Format titled rows of cells as a Markdown table."""
    head = [corner, *map(str, columns)]
    return _lines([head, ["---", *["---:"] * (len(head) - 1)], *([title, *cells] for title, cells in rows)])


def _lines(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cell(value: Any) -> str:
    """Format a number with about three digits; other values as they are."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write(text: str, out: Path | None = None) -> None:
    """Print a report, and write it to a file if one is given."""
    print(text)
    if out is not None:
        out.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def write_json(figures: Any, output: Path | None) -> None:
    """Write the figures of a run to a file if one is given."""
    if output is not None:
        output.write_text(json.dumps(figures, indent=1))


def command() -> str:
    """Return the command line of this run, without the folders of its files."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    script = Path(sys.argv[0]).resolve().relative_to(Path(__file__).parents[1].resolve())
    return f"`python -P {script} {' '.join(words)}`"


def numbers(text: str) -> list[int]:
    """Parse integers separated by commas."""
    return [int(word) for word in text.split(",") if word]
