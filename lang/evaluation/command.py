"""The command `ramiform eval FILE`: evaluates the program, dataset and metric that a script defines."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from ...runtime.protocol.errors import RequestError
from ..running.program import Program
from .dataset import read_dataset
from .evaluate import evaluate
from .report import Comparison, Report

NAMES = ("program", "dataset", "metric")


def evaluate_file(
    file: Path,
    *,
    data: Path | None = None,
    limit: int | None = None,
    concurrency: int = 64,
    resume: Path | None = None,
    against: Path | None = None,
) -> tuple[Report, Comparison | None]:
    """Run a script and evaluate what it defines: `program`, `dataset` and `metric`, and `options`, a dict, if it does.

    The script runs with another `__name__` than "__main__". `data` replaces its dataset; `limit` takes its first
    examples. Returns the report, and its comparison with the report saved in `against`. Raises RequestError for a
    script that lacks one of the names.
    """
    previous = None if against is None else Report.load(against)
    names = runpy.run_path(str(file), run_name="ramiform_eval")
    missing = [name for name in NAMES if name not in names and not (name == "dataset" and data is not None)]
    if missing:
        raise RequestError(
            f"{file} defines no {missing[0]!r}; an evaluation needs {', '.join(NAMES)}", param=missing[0]
        )
    program: Any = names["program"]
    if not isinstance(program, Program):
        raise RequestError(f"{file}: program must be made by @ramiform.function, got {program!r}", param="program")
    path = names.get("dataset") if data is None else data
    if data is None and isinstance(path, str | Path):
        path = file.parent / path
    examples = read_dataset(path)[:limit]  # type: ignore[arg-type]
    options = dict(names.get("options", {}))
    report = evaluate(program, examples, names["metric"], concurrency=concurrency, resume=resume, **options)
    return report, None if previous is None else report.compare(previous)
