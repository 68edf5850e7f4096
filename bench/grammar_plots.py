"""The grammar bench's plot: how long a mask, and a schema's way to its first mask, take at every percentile.

Needs matplotlib, of the extra `bench`; without it there are tables only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ramiform.bench.grammar_measure import Result
from ramiform.bench.grammar_report import compiled_values

# The tail is what holds a batch: the axis counts nines.
PERCENTILES = 100 - 100 / 10 ** np.linspace(0.05, 4, 200)
TITLES = {"masks": "a token's mask", "first_mask": "from the schema to the first mask"}


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
                shown = PERCENTILES[100 - 100 / len(values) >= PERCENTILES]
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
