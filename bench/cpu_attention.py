"""Compiled attention of a CPU alone, by rows and keys: one row's tokens over keys in pages, with one thread.

    python -P bench/cpu_attention.py [--heads 14 --kv-heads 2 --head-dim 64] [--before CHECKOUT/.venv/bin/python]

Medians of the thread's processor time. `--before` names the Python of an environment with another checkout installed:
both compute each case in turn, and the median of the ratios is shown.
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
ROUNDS = 7


def case(num_rows: int, num_keys: int, heads: int, kv_heads: int, head_dim: int, dtype: str) -> Callable[[], object]:
    from ramiform.kernels import AttentionArgs, KvCache, RowSpan, for_device

    draw, kind = torch.Generator().manual_seed(0), getattr(torch, dtype)
    num_pages = -(-num_keys // PAGE)
    k_SKD, v_SKD = torch.randn(2, num_pages * PAGE, kv_heads, head_dim, generator=draw).to(kind)
    kv = KvCache(k_SKD.clone(), v_SKD.clone())
    rows = [RowSpan(num_keys - num_rows, num_rows, np.random.default_rng(0).permutation(num_pages))]
    q_THD = torch.randn(num_rows, heads, head_dim, generator=draw).to(kind)
    attention = for_device(torch.device("cpu")).attention(AttentionArgs(rows, kv, heads, PAGE, None, kind))
    return lambda: attention.attend(q_THD, kv, head_dim**-0.5)


def measure() -> None:
    """Answer each line of standard input, a case's arguments as JSON, with its microseconds."""
    from ramiform.kernels.cpu import thread_pool

    torch.set_num_threads(1)
    thread_pool.set_num_threads(1)
    cases: dict[str, Callable[[], object]] = {}
    for line in sys.stdin:
        if line not in cases:
            cases[line] = case(*json.loads(line))
            cases[line]()
        times: list[float] = []
        while len(times) < 3 or (sum(times) < 0.01 and len(times) < 30):
            start = time.thread_time()
            cases[line]()
            times.append(time.thread_time() - start)
        print(1e6 * median(times), flush=True)


def main(
    heads: Annotated[int, typer.Option(help="of queries")] = 14,
    kv_heads: Annotated[int, typer.Option(help="of keys and values")] = 2,
    head_dim: Annotated[int, typer.Option(help="of each")] = 64,
    dtype: Annotated[str, typer.Option(help="of queries and cache")] = "bfloat16",
    before: Annotated[Path | None, typer.Option(help="Python of an environment with another checkout")] = None,
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    if worker:
        measure()
        return
    pythons = [sys.executable, *([str(before)] if before else [])]
    workers = [
        subprocess.Popen(
            [python, "-P", __file__, "--worker"],
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

    heads_of_table = ["us", *(["before", "ratio"] if before else [])]
    print(f"| rows | keys | {' | '.join(heads_of_table)} |\n|---:|---:|{'---:|' * len(heads_of_table)}")
    for num_rows in NUM_ROWS:
        for num_keys in NUM_KEYS:
            if num_keys < num_rows:
                continue
            line = json.dumps([num_rows, num_keys, heads, kv_heads, head_dim, dtype])
            rounds = [[ask(place, line) for place in range(len(workers))] for _ in range(ROUNDS)]
            cells = [f"{median(column):.0f}" for column in zip(*rounds, strict=True)]
            if before:
                cells.append(f"{median(old / new for new, old in rounds):.2f}")
            print(f"| {num_rows} | {num_keys} | {' | '.join(cells)} |", flush=True)
    for each in workers:
        each.terminate()
        each.wait()


if __name__ == "__main__":
    typer.run(main)
