"""Reports of the grammar bench: coverage, times, reasons, failures, and a plot of the times."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramiform.bench.grammar.cases import Case
from ramiform.bench.grammar.measure import Result
from ramiform.bench.harness import table

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
# The tail is what holds a batch: the axis counts nines.
PLOTTED = 100 - 100 / 10 ** np.linspace(0.05, 4, 200)
TITLES = {"masks": "a token's mask", "first_mask": "from the schema to the first mask"}
NUM_REASONS = 25


def engine_tables(by_engine: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the parts of the report: coverage, times if there are some, and why schemas were not compiled."""
    parts = [coverage(by_engine)]
    if any(result.masks for results in by_engine.values() for result in results):
        parts += [times(by_engine)]
    parts += [reasons(name, rows) for name, rows in by_engine.items()]
    return [part for part in parts if part]


def coverage(by_engine: Mapping[str, Sequence[Result]]) -> str:
    """Count schemas by outcome. `over` and `under` count schemas: one may be both."""
    rows = []
    for name, results in by_engine.items():
        outcomes = Counter(result.outcome for result in results)
        count = len(results)
        forced, total = sum(r.forced for r in results), sum(r.total for r in results)
        escaped = (sum(len(r.failed(kind, "escaped")) for r in results) for kind in ("over", "under"))
        rows.append(
            {
                "engine": name,
                "compiled": _share(outcomes["compiled"], count),
                "passing": _share(sum(result.passes for result in results), count),
                "over": sum(bool(result.failed("over")) for result in results),
                "under": sum(bool(result.failed("under")) for result in results),
                "mask≠step": sum(bool(result.failed("unlike")) for result in results),
                **{outcome: outcomes[outcome] for outcome in ("refused", "crashed", "timeout")},
                "\\u over/under": "/".join(map(str, escaped)),
                "forced": f"{100 * forced / total:.1f} %" if total else "-",
            }
        )
    return table(rows)


def times(by_engine: Mapping[str, Sequence[Result]]) -> str:
    """Tabulate CPU microseconds of the schemas that an engine compiled, and of those that all engines pass.

    Without the second table an engine that refuses expensive schemas would look cheap."""
    passing = [{result.case for result in results if result.passes} for results in by_engine.values()]
    common = set.intersection(*passing)
    parts = [_times(by_engine, "CPU us")]
    if len(by_engine) > 1 and common:
        alike = {name: [r for r in results if r.case in common] for name, results in by_engine.items()}
        parts.append(f"The {len(common)} schemas that all of them pass:\n\n" + _times(alike, "CPU us, common"))
    return "\n\n".join(parts)


def _times(by_engine: Mapping[str, Sequence[Result]], label: str) -> str:
    rows = []
    for what, title in (("first_mask", "to the first mask"), ("masks", "mask"), ("advances", "step")):
        for name, results in by_engine.items():
            values = compiled_values(results, what)
            if len(values):
                row = {label: title, "engine": name, "avg": float(values.mean())}
                row |= {f"p{percent:g}": float(np.percentile(values, percent)) for percent in PERCENTILES}
                rows.append(row | {"max": float(values.max()), "count": len(values)})
    return table(rows)


def compiled_values(results: Iterable[Result], what: str) -> NDArray[np.float64]:
    """Return all times of one kind, "first_mask", "masks" or "advances", of the schemas that compiled."""
    compiled = [getattr(result, what) for result in results if result.outcome == "compiled"]
    return np.array([v for value in compiled for v in (value if isinstance(value, list) else [value])])


def reasons(engine: str, results: Sequence[Result]) -> str:
    """Count the reasons for which schemas were not compiled, the most frequent first."""
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for result in results:
        if result.outcome != "compiled":
            key = f"{result.outcome}: {_alike(result.reason)}"
            counts[key] += 1
            examples.setdefault(key, result.case)
    if not counts:
        return ""
    rows = [
        {"schemas": count, "reason": reason.replace("|", "\\|"), "for example": examples[reason]}
        for reason, count in counts.most_common(NUM_REASONS)
    ]
    return f"Not compiled by {engine}:\n\n" + table(rows)


def _alike(reason: str) -> str:
    """Strip pointers, quoted texts and numbers, which differ from schema to schema."""
    reason = reason.split("\n")[0]
    reason = re.sub(r"\(at [^)]*\)", "", reason)
    reason = re.sub(r"'[^']{25,}'|\"[^\"]{25,}\"", "…", reason)
    return re.sub(r"\d{2,}", "#", reason)[:120].strip()


def failures_text(cases: Mapping[str, Case], results: Sequence[Result]) -> str:
    """List the schemas that do not pass, each with its error and first failing instance."""
    lines = []
    groups: dict[str, list[str]] = defaultdict(list)
    for result in results:
        if result.outcome != "compiled":
            groups[result.outcome].append(f"{result.engine} {result.case}: {result.reason}")
        for failure in result.failures[:3]:
            spelling = " (\\u spelling)" if failure.spelling == "escaped" else ""
            schema = json.dumps(cases[result.case].schema)
            size = f" schema {schema}" if len(schema) < 400 else f" schema of {len(schema)} characters"
            groups[failure.kind].append(
                f"{result.engine} {result.case} #{failure.instance} at byte {failure.at}{spelling}: "
                f"{failure.shown}\n     {size}"
            )
    for kind in ("under", "unlike", "crashed", "timeout", "over", "refused"):
        if groups[kind]:
            lines.append(f"== {kind}: {len(groups[kind])}")
            lines += sorted(groups[kind])
    return "\n".join(lines)


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} % ({count})"


def plot(by_engine: Mapping[str, Sequence[Result]], path: Path) -> bool:
    """Write a PNG. False where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(TITLES), figsize=(11, 4.5), layout="constrained")
    for axis, (what, title) in zip(axes, TITLES.items(), strict=True):
        for name, results in by_engine.items():
            values = compiled_values(results, what)
            if len(values):
                shown = PLOTTED[100 - 100 / len(values) >= PLOTTED]
                axis.plot(1 / (1 - shown / 100), np.maximum(np.percentile(values, shown), 0.1), label=name)
        axis.set(xscale="log", yscale="log", title=title, ylabel="CPU us", xlabel="percentile")
        marks = (50.0, 90.0, 99.0, 99.9, 99.99)
        axis.set_xticks([1 / (1 - mark / 100) for mark in marks], [f"{mark:g}" for mark in marks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
