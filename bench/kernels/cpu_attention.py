"""Compiled attention of a CPU alone, by rows and keys: one row's tokens over keys in pages.

    python -P bench/kernels/cpu_attention.py [--heads 14 --kv-heads 2] [--before CHECKOUT/.venv/bin/python]
    python -P bench/kernels/cpu_attention.py --steps --heads 4 --dtype float32

With `--steps` the cases are those of steps instead: rows over a shared prefix, each with keys of its own. A case's time
is that of LAYERS layers. If it has one new token a row, so many layers have a cache of their own that keys do not stay
in the processor's caches: those of COLD_BYTES at least. Medians of the processor time of all threads (`--threads`).
`--before` names the Python of an environment with another checkout installed: both compute each case in turn, and the
median of the ratios is shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import torch
import typer

PAGE = 16
NUM_ROWS, NUM_KEYS = (1, 8, 64, 512, 2048), (200, 1000, 2048, 8192)
# Rows, keys that all share, keys of each row behind them, new tokens of each row.
STEPS = (
    (1, 0, 100, 1),
    (1, 0, 1000, 1),
    (8, 0, 200, 1),
    (32, 0, 100, 1),
    (16, 0, 200, 1),
    (16, 0, 600, 1),
    (64, 200, 200, 1),
    (16, 992, 41, 1),
    (16, 992, 250, 1),
    (64, 1024, 30, 1),
    (16, 992, 30, 30),
    (1, 0, 512, 512),
    (1, 1536, 512, 512),
)
LAYERS = 6
COLD_BYTES = 96 << 20  # three times the third cache of the machines that we measure on
ROUNDS = 7


def case(
    num_rows: int, shared: int, own: int, new: int, layers: int, heads: int, kv_heads: int, head_dim: int, dtype: str
) -> Callable[[], object]:
    """Return a function that computes `num_rows` rows of `new` tokens over `shared` and `own` keys, for the caches of
    `layers` layers in turn."""
    from ramiform.kernels import AttentionArgs, KvCache, RowSpan, for_device
    from ramiform.kernels.huge_pages import zeros_in_huge_pages

    draw, kind = torch.Generator().manual_seed(0), getattr(torch, dtype)
    common, rest = shared // PAGE, -(-(shared + own) // PAGE) - shared // PAGE
    pages = np.random.default_rng(0).permutation(common + num_rows * rest)

    def numbers() -> torch.Tensor:
        drawn = torch.randn(len(pages) * PAGE, kv_heads, head_dim, generator=draw)
        return zeros_in_huge_pages(drawn.shape, kind).copy_(drawn)

    caches = [KvCache(numbers(), numbers()) for _ in range(layers)]
    rows = [
        RowSpan(shared + own - new, new, np.concatenate([pages[:common], pages[common + row * rest :][:rest]]))
        for row in range(num_rows)
    ]
    q_THD = torch.randn(num_rows * new, heads, head_dim, generator=draw).to(kind)
    attention = for_device(torch.device("cpu")).attention(AttentionArgs(rows, caches[0], heads, PAGE, None, kind))
    return lambda: [attention.attend(q_THD, kv, head_dim**-0.5) for kv in caches]


def measure(threads: int) -> None:
    """Answer each line of standard input, a case's arguments as JSON, with its microseconds."""
    from ramiform.kernels.cpu import thread_pool

    torch.set_num_threads(1)
    thread_pool.set_num_threads(threads)
    cases: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        if line not in cases:
            cases[line] = case(*json.loads(line))
            cases[line]()
        times: list[float] = []
        while len(times) < 3 or (sum(times) < 0.01 and len(times) < 30):
            start = time.process_time()
            cases[line]()
            times.append(time.process_time() - start)
        print(1e6 * median(times), flush=True)


def main(
    heads: Annotated[int, typer.Option(help="of queries")] = 14,
    kv_heads: Annotated[int, typer.Option(help="of keys and values")] = 2,
    head_dim: Annotated[int, typer.Option(help="of each")] = 64,
    dtype: Annotated[str, typer.Option(help="of queries and cache")] = "bfloat16",
    steps: Annotated[bool, typer.Option(help="cases of steps: rows over a shared prefix")] = False,
    threads: Annotated[int, typer.Option(help="that share the tasks")] = 1,
    before: Annotated[Path | None, typer.Option(help="Python of an environment with another checkout")] = None,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    if worker:
        measure(threads)
        return
    pythons = [sys.executable, *([str(before)] if before else [])]
    workers = [
        subprocess.Popen(
            [python, "-P", __file__, "--worker", "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        )
        for python in pythons
    ]

    def ask(place: int, line: str) -> float:
        stdin, stdout = workers[place].stdin, workers[place].stdout
        assert stdin is not None
        assert stdout is not None
        print(line, file=stdin, flush=True)
        return float(stdout.readline())

    columns = ["us", *(["before", "ratio"] if before else [])]
    names = ["rows", "shared keys", "own keys", "new tokens"] if steps else ["rows", "keys"]
    cases = STEPS if steps else [(1, 0, keys, rows) for rows in NUM_ROWS for keys in NUM_KEYS if keys >= rows]
    print(f"| {' | '.join(names + columns)} |\n|{'---:|' * len(names + columns)}")
    for shape in cases:
        rows, shared, own, new = shape
        layers = layers_shown = LAYERS if steps else 1
        if steps and new == 1:
            layer_bytes = 2 * (shared + rows * own) * kv_heads * head_dim * getattr(torch, dtype).itemsize
            layers = max(LAYERS, -(-COLD_BYTES // layer_bytes))
        line = json.dumps([*shape, layers, heads, kv_heads, head_dim, dtype])
        rounds = [[ask(place, line) * layers_shown / layers for place in range(len(workers))] for _ in range(ROUNDS)]
        cells = [*shape] if steps else [shape[3], shape[2]]
        cells += [f"{median(column):.0f}" for column in zip(*rounds, strict=True)]
        if before:
            cells.append(f"{median(old / new for new, old in rounds):.2f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    for each in workers:
        each.terminate()
        each.wait()


if __name__ == "__main__":
    typer.run(main)
