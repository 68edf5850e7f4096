"""Compiled attention of a CPU alone, by rows and keys: one row's tokens over keys in pages.

    python -P bench/kernels/cpu_attention.py [--heads 14 --kv-heads 2] [--before CHECKOUT/.venv/bin/python]
    python -P bench/kernels/cpu_attention.py --steps --heads 4 --dtype float32
    python -P bench/kernels/cpu_attention.py --formats auto,int8,fp8,int4 [--before CHECKOUT/.venv/bin/python]

With `--steps` the cases are those of steps instead: rows over a shared prefix, each with keys of its own. A case's time
is that of LAYERS layers. If it has one new token a row, so many layers have a cache of their own that keys do not stay
in the processor's caches: those of COLD_BYTES at least. Medians of the processor time of all threads (`--threads`).

With `--formats` dtypes of keys and values take turns over steps of eight rows and a chunk; shown are the medians of the
ratios to the first, above 1 where a dtype is faster. `--before` names the Python of an environment with another
checkout installed: both compute each case in turn, and the median of the ratios is shown; of formats those of both
checkouts.
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
OF_FORMATS = ((8, 0, 1000, 1), (8, 0, 8000, 1), (1, 0, 512, 512))
LAYERS = 6
COLD_BYTES = 96 << 20  # three times the third cache of the machines that we measure on
ROUNDS = 7


def case(
    num_rows: int, shared: int, own: int, new: int, layers: int, heads: int, kv_heads: int, head_dim: int, dtype: str,
    kv_dtype: str = "auto",
) -> Callable[[], object]:  # fmt: skip
    """Return a function that computes `num_rows` rows of `new` tokens over `shared` and `own` keys, for the caches of
    `layers` layers in turn."""
    from ramiform.kernels import AttentionArgs, KvCache, RowSpan, for_device
    from ramiform.kernels.huge_pages import zeros_in_huge_pages

    basis, stored = None, lambda drawn: drawn.to(getattr(torch, dtype))
    if kv_dtype != "auto":
        from ramiform.kernels.reference.quantise import E4M3, PACKED_INT4
        from ramiform.kernels.reference.scaled_codes import KeyBasis, pack

        packed = {"int8": torch.int8, "fp8": E4M3, "int4": PACKED_INT4}[kv_dtype]
        frequencies = 1e6 ** -(torch.arange(head_dim // 2) / (head_dim // 2))
        mean_KD, first_KD = torch.randn(2, kv_heads, head_dim)
        basis = KeyBasis(mean_KD, first_KD, torch.ones(kv_heads, head_dim), frequencies)

        def stored(drawn: torch.Tensor) -> torch.Tensor:
            return pack(drawn, packed)

    draw, kind = torch.Generator().manual_seed(0), getattr(torch, dtype)
    common, rest = shared // PAGE, -(-(shared + own) // PAGE) - shared // PAGE
    pages = np.random.default_rng(0).permutation(common + num_rows * rest)

    def numbers() -> torch.Tensor:
        drawn = stored(torch.randn(len(pages) * PAGE, kv_heads, head_dim, generator=draw))
        found = zeros_in_huge_pages(drawn.shape, drawn.dtype)
        found.view(torch.uint8).copy_(drawn.view(torch.uint8))
        return found

    k_SKD, v_SKD = numbers(), numbers()
    caches = [KvCache(k_SKD, v_SKD, basis=basis)]
    caches += [KvCache(k_SKD.clone(), v_SKD.clone(), basis=basis) for _ in range(layers - 1)]
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


def compare_formats(asks: list[Ask], formats: list[str], sizes: tuple[int, int, int, str]) -> list[dict[str, Any]]:
    """Return rows of the times with each dtype of keys and values; dtypes and checkouts take turns."""
    _, kv_heads, head_dim, _ = sizes
    found = []
    for rows, shared, own, new in OF_FORMATS:
        layers = max(1, COLD_BYTES // (2 * rows * own * kv_heads * head_dim)) if new == 1 else 1
        question = [rows, shared, own, new, layers, *sizes]
        rounds = [[[ask([*question, each]) / layers for ask in asks] for each in formats] for _ in range(ROUNDS)]
        base = [median(each) for each in zip(*(of_formats[0] for of_formats in rounds), strict=True)]
        row: dict[str, Any] = {"rows": rows, "keys": own, "new tokens": new, f"{formats[0]} us": f"{base[0]:.0f}"}
        for place, each in enumerate(formats[1:], 1):
            for number, when in enumerate(("", ", before")[: len(asks)]):
                row[f"{each}{when}"] = f"{median(one[0][number] / one[place][number] for one in rounds):.2f}"
        found.append(row)
        print(table(found[-1:]).splitlines()[-1], flush=True)
    return found


def main(
    heads: Annotated[int, typer.Option(help="of queries")] = 14,
    kv_heads: Annotated[int, typer.Option(help="of keys and values")] = 2,
    head_dim: Annotated[int, typer.Option(help="of each")] = 64,
    dtype: Annotated[str, typer.Option(help="of queries and cache")] = "bfloat16",
    formats: Annotated[str, typer.Option(help="of keys and values, that take turns; the first is the base")] = "",
    steps: Annotated[bool, typer.Option(help="cases of steps: rows over a shared prefix")] = False,
    threads: Annotated[int, typer.Option(help="that share the tasks")] = 1,
    before: Before = None,
    out: Out = None,
) -> None:
    cases = STEPS if steps else [(1, 0, keys, rows) for rows in NUM_ROWS for keys in NUM_KEYS if keys >= rows]
    found = []
    sizes = heads, kv_heads, head_dim, dtype
    if formats:
        with checkouts(__file__, before, threads=threads) as asks:
            report(
                "Attention on a CPU by the dtype of keys",
                table(compare_formats(asks, formats.split(","), sizes)),
                out=out,
            )
        return
    with checkouts(__file__, before, threads=threads) as asks:
        for shape in cases:
            rows, shared, own, new = shape
            layers = layers_shown = LAYERS if steps else 1
            if steps and new == 1:
                layer_bytes = 2 * (shared + rows * own) * kv_heads * head_dim * getattr(torch, dtype).itemsize
                layers = max(LAYERS, -(-COLD_BYTES // layer_bytes))
            question = [*shape, layers, *sizes]
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
