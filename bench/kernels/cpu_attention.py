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

import time
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer

from ramiform.bench.harness import Ask, Before, Out, checkouts, report, table, timed

PAGE = 16
NUM_ROWS, NUM_KEYS = (1, 8, 64, 512, 2048), (200, 1000, 2048, 8192)
# Rows, keys that all share, keys of each row behind them, new tokens of each row.
STEPS = (
    (1, 0, 100, 1), (1, 0, 1000, 1), (8, 0, 200, 1), (32, 0, 100, 1), (16, 0, 200, 1), (16, 0, 600, 1),
    (64, 200, 200, 1), (16, 992, 41, 1), (16, 992, 250, 1), (64, 1024, 30, 1), (16, 992, 30, 30),
    (1, 0, 512, 512), (1, 1536, 512, 512),
)  # fmt: skip
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


def worker(threads: int) -> Ask:
    """Return what computes a case, by the arguments of `case`, and gives its microseconds."""
    from ramiform.kernels.cpu import thread_pool

    torch.set_num_threads(1)
    thread_pool.set_num_threads(threads)
    cases: dict[str, Callable[[], object]] = {}

    def measure(arguments: list[Any]) -> float:
        key = str(arguments)
        if key not in cases:
            cases[key] = case(*arguments)
            cases[key]()
        times: list[float] = []
        while len(times) < 3 or (sum(times) < 0.01 and len(times) < 30):
            times.append(timed(time.process_time, cases[key]))
        return 1e6 * median(times)

    return measure


def main(
    heads: Annotated[int, typer.Option(help="of queries")] = 14,
    kv_heads: Annotated[int, typer.Option(help="of keys and values")] = 2,
    head_dim: Annotated[int, typer.Option(help="of each")] = 64,
    dtype: Annotated[str, typer.Option(help="of queries and cache")] = "bfloat16",
    steps: Annotated[bool, typer.Option(help="cases of steps: rows over a shared prefix")] = False,
    threads: Annotated[int, typer.Option(help="that share the tasks")] = 1,
    before: Before = None,
    out: Out = None,
) -> None:
    cases = STEPS if steps else [(1, 0, keys, rows) for rows in NUM_ROWS for keys in NUM_KEYS if keys >= rows]
    found = []
    with checkouts(__file__, before, threads=threads) as asks:
        for shape in cases:
            rows, shared, own, new = shape
            layers = layers_shown = LAYERS if steps else 1
            if steps and new == 1:
                layer_bytes = 2 * (shared + rows * own) * kv_heads * head_dim * getattr(torch, dtype).itemsize
                layers = max(LAYERS, -(-COLD_BYTES // layer_bytes))
            question = [*shape, layers, heads, kv_heads, head_dim, dtype]
            rounds = [[ask(question) * layers_shown / layers for ask in asks] for _ in range(ROUNDS)]
            row: dict[str, Any] = {"rows": rows, "shared keys": shared, "own keys": own, "new tokens": new}
            row = row if steps else {"rows": new, "keys": own}
            row |= {
                name: f"{median(each):.0f}"
                for name, each in zip(("us", "before"), zip(*rounds, strict=True), strict=False)
            }
            if before:
                row["ratio"] = f"{median(old / mine for mine, old in rounds):.2f}"
            found.append(row)
            print(table(found[-1:]).splitlines()[-1], flush=True)
    report("Attention on a CPU", table(found), out=out)


if __name__ == "__main__":
    typer.run(main)
