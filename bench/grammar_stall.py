"""What a running stream feels while others' hostile constraints compile in the same process.

    python -P bench/grammar_stall.py [--seconds 6] [--name 2core-cpu_202611]

One thread takes steps as an engine does: some products of matrices, which let go of the interpreter, and some Python
around them. Beside it the runtime's own `Grammars` compile, over and over, constraints that are as costly as the bounds
allow. Three runs in turn: nothing beside, hostile constraints with the interpreter's own switch interval, and with the
core's. Measured is the wall's time from one step's end to the next one's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ramify.runtime.core import SWITCH_INTERVAL
from ramify.runtime.grammars import Grammars
from ramify.runtime.protocol.errors import RequestError
from ramify.runtime.protocol.sampling import Constraint

RESULTS = Path(__file__).parent / "results"
TOKENS = [bytes([byte]) for byte in range(256)]
SETTINGS = {"nothing beside": None, "hostile, 5 ms": 5e-3, f"hostile, {SWITCH_INTERVAL * 1e3:g} ms": SWITCH_INTERVAL}


def hostile() -> Iterator[Constraint]:
    """Different ones without an end, as what is known already costs nothing."""
    for number in count():
        yield Constraint("regex", f"(a|b)*a(a|b){{{18 + number % 3}}}{number}")
        yield Constraint("regex", f"(?=.*a.{{12}}b)(?=.*c.{{12}}d)(?=.*{number}).*")
        yield Constraint("regex", f"x(?=.*a.{{12}}b)(?=.*c.{{12}}d).*{number}")
        words = ",".join(f'{{"pattern": "^[a-z]{{{n},40}}{number}.*[a-z]{{3,{n + 9}}}$"}}' for n in range(8))
        yield Constraint("json_schema", f'{{"type": "string", "oneOf": [{words}]}}')
        names = ",".join(f'"k{n}_{number}": {{"$ref": "#/$defs/{n * 7 % 400}"}}' for n in range(400))
        inner = ",".join(
            f'"{n}": {{"type": "object", "properties": {{"x": {{"maxLength": {n}}}}}}}' for n in range(400)
        )
        yield Constraint("json_schema", f'{{"type": "object", "properties": {{{names}}}, "$defs": {{{inner}}}}}')


def step(matrix: Any) -> None:
    """About as much as a small model's forward, and the bookkeeping around it."""
    for _ in range(4):
        matrix = matrix @ matrix
        matrix /= np.abs(matrix).max()
    sum(len(str(number)) for number in range(1000))


def run(seconds: float, interval: float | None) -> tuple[list[float], list[float]]:
    """Milliseconds from step to step, and those that each hostile constraint's answer took."""
    grammars, sources = Grammars(TOKENS, [0]), hostile()
    grammars.warm_up().result()
    before = sys.getswitchinterval()
    gaps, answers = list[float](), list[float]()
    running: list[tuple[Future[Any], float]] = []
    matrix = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    try:
        sys.setswitchinterval(interval or before)
        end = time.monotonic() + seconds
        last = time.monotonic()
        while last < end:
            for future, began in [pair for pair in running if pair[0].done()]:
                running.remove((future, began))
                assert future.exception() is None or isinstance(future.exception(), RequestError), future.exception()
                answers.append((time.monotonic() - began) * 1e3)
            while interval is not None and len(running) < 2:
                running.append((grammars.get(next(sources)), time.monotonic()))
            step(matrix)
            now = time.monotonic()
            gaps.append((now - last) * 1e3)
            last = now
    finally:
        grammars.close()
        for future, _ in running:
            future.exception()
        sys.setswitchinterval(before)
    return gaps, answers


def main(
    seconds: Annotated[float, typer.Option(help="of each run")] = 6.0,
    rounds: Annotated[int, typer.Option(help="of the three runs")] = 2,
    name: Annotated[str | None, typer.Option(help="write bench/results/grammar_stall_NAME.md")] = None,
) -> None:
    found: dict[str, tuple[list[float], list[float]]] = {setting: ([], []) for setting in SETTINGS}
    for _ in range(rounds):
        for setting, interval in SETTINGS.items():
            for all_so_far, new in zip(found[setting], run(seconds, interval), strict=True):
                all_so_far += new
    lines = [
        f"`python -P bench/grammar_stall.py --seconds {seconds:g} --rounds {rounds}`",
        "",
        "| ms | step p50 | p90 | p99 | max | steps | answers | answer p50 | max |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for setting, (gaps, answers) in found.items():
        cells = [f"{value:.1f}" for value in (*np.percentile(gaps, [50, 90, 99]), max(gaps))]
        ends = [f"{np.median(answers):.0f}", f"{max(answers):.0f}"] if answers else ["-", "-"]
        lines.append(f"| {' | '.join([setting, *cells, str(len(gaps)), str(len(answers)), *ends])} |")
    text = "\n".join(lines)
    print(text)
    if name is not None:
        (RESULTS / f"grammar_stall_{name}.md").write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
