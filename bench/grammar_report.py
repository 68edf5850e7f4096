"""The grammar bench's tables: coverage, truth, times, reasons. Values in, markdown out."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ramiform.bench.grammar_cases import Case
from ramiform.bench.grammar_measure import Result

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
NUM_REASONS = 25


def report(heading: Sequence[str], by_engine: Mapping[str, Sequence[Result]]) -> str:
    """Everything that was measured."""
    parts = ["\n\n".join(heading), coverage(by_engine)]
    if any(result.masks for results in by_engine.values() for result in results):
        parts += [times(by_engine)]
    parts += [reasons(name, rows) for name, rows in by_engine.items()]
    return "\n\n".join(part for part in parts if part)


def coverage(by_engine: Mapping[str, Sequence[Result]]) -> str:
    """Schemas by what became of them. `over` and `under` count schemas: one may be both."""
    rows = []
    for name, results in by_engine.items():
        outcomes = Counter(result.outcome for result in results)
        count = len(results)
        forced, total = sum(r.forced for r in results), sum(r.total for r in results)
        rows.append(
            [
                name,
                _share(outcomes["compiled"], count),
                _share(sum(result.passes for result in results), count),
                str(sum(bool(result.failed("over")) for result in results)),
                str(sum(bool(result.failed("under")) for result in results)),
                str(sum(bool(result.failed("unlike")) for result in results)),
                str(outcomes["refused"]),
                str(outcomes["crashed"]),
                str(outcomes["timeout"]),
                f"{sum(len(r.failed('over', 'escaped')) for r in results)}/"
                f"{sum(len(r.failed('under', 'escaped')) for r in results)}",
                f"{100 * forced / total:.1f} %" if total else "-",
            ]
        )
    columns = "engine,compiled,passing,over,under,mask≠step,refused,crashed,timeout,\\u over/under,forced".split(",")
    return _table(columns, rows)


def times(by_engine: Mapping[str, Sequence[Result]]) -> str:
    """CPU microseconds, of the schemas that an engine compiled; then of those that all of them pass, since an engine
    that refuses what is dear looks cheap."""
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
                figures = [values.mean(), *np.percentile(values, PERCENTILES), values.max()]
                rows.append([title, name, *(_figure(value) for value in figures), f"{len(values):,}"])
    columns = [label, "engine", "avg", *(f"p{percent:g}" for percent in PERCENTILES), "max", "count"]
    return _table(columns, rows)


def compiled_values(results: Iterable[Result], what: str) -> NDArray[np.float64]:
    """All times of one kind, "first_mask", "masks" or "advances", of the schemas that compiled."""
    compiled = [getattr(result, what) for result in results if result.outcome == "compiled"]
    return np.array([v for value in compiled for v in (value if isinstance(value, list) else [value])])


def slowest(results: Sequence[Result], count: int) -> str:
    """The schemas with the dearest masks, and those with the dearest way to the first."""
    compiled = [result for result in results if result.outcome == "compiled"]
    parts = []
    for what, key in (("mask", lambda r: max(r.masks, default=0.0)), ("first mask", lambda r: r.first_mask)):
        rows = [
            [r.case, r.engine, *map(_figure, (r.first_mask, max(r.masks, default=0.0), _mean(r.masks)))]
            for r in sorted(compiled, key=key, reverse=True)[:count]
        ]
        parts.append(_table([f"slowest by {what}", "engine", "first mask us", "worst mask us", "mean mask us"], rows))
    return "\n\n".join(parts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def reasons(engine: str, results: Sequence[Result]) -> str:
    """Why schemas were not compiled, alike reasons together, the frequent first."""
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
        [str(count), reason.replace("|", "\\|"), examples[reason]] for reason, count in counts.most_common(NUM_REASONS)
    ]
    return f"Not compiled by {engine}:\n\n" + _table(["schemas", "reason", "for example"], rows)


def _alike(reason: str) -> str:
    """Without what differs from schema to schema: pointers, quoted texts, numbers."""
    reason = reason.split("\n")[0]
    reason = re.sub(r"\(at [^)]*\)", "", reason)
    reason = re.sub(r"'[^']{25,}'|\"[^\"]{25,}\"", "…", reason)
    return re.sub(r"\d{2,}", "#", reason)[:120].strip()


def failures_text(cases: Mapping[str, Case], results: Sequence[Result]) -> str:
    """For every schema that does not pass: what is wrong, and the first instance that shows it."""
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


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
