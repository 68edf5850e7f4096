"""Sampling of a step's rows on a CPU, by the ops of CPUs and by plain torch.

    python -P bench/kernels/sampling.py [--vocabulary 151936] [--rows 1,16] [--repeat 20] [--threads 2] [--out FILE]

Both ways sample the same random logits in one process, in turn; times are medians on the wall. The limit is one pass of
numpy's `max` over the logits, in one thread, which every way has to make.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer

from ramiform.bench.cpu_steps import set_threads
from ramiform.bench.harness import Out, Repeat, Threads, interleaved, report, table, timed
from ramiform.kernels import Ops, for_device
from ramiform.kernels.reference.ops import ReferenceOps
from ramiform.runtime.engine.logprobs import chosen_logprobs
from ramiform.runtime.engine.sampler import sample
from ramiform.runtime.scheduler.plan import Sample

DETAILS = {"num_top_logprobs": 0, "logprob_details": True}
KINDS: dict[str, dict[str, Any]] = {
    "temperature 1": {},
    "temperature 1, log-probabilities": {"num_top_logprobs": 0},
    "temperature 1, details of draws (rollouts)": DETAILS,
    "top_k 20, top_p 0.8, temperature 0.7 (Qwen's own)": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "the same, details of draws": {"temperature": 0.7, "top_k": 20, "top_p": 0.8, **DETAILS},
    "top_p 0.9": {"top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
}


def way(ops: Ops, logits_RV: torch.Tensor, asked: dict[str, Any]) -> Callable[[], None]:
    samples = [Sample(draw=row, **{"temperature": 1.0} | asked) for row in range(len(logits_RV))]
    masks = [None] * len(samples)

    def compute() -> None:
        tokens_R = sample(ops, logits_RV, samples, masks)
        chosen_logprobs(ops, logits_RV, tokens_R, samples, masks)()

    return compute


def main(
    vocabulary: int = 151936,
    rows: Annotated[str, typer.Option(help="numbers of rows, separated by commas")] = "1,16",
    repeat: Repeat = 20,
    threads: Threads = 2,
    out: Out = None,
) -> None:
    set_threads(threads)
    torch.manual_seed(0)
    found = []
    with torch.inference_mode():
        for num in map(int, rows.split(",")):
            logits_RV = 3 * torch.randn(num, vocabulary)
            for kind, asked in KINDS.items():
                ways = {
                    "ops of CPUs": way(for_device(torch.device("cpu")), logits_RV, asked),
                    "plain torch": way(ReferenceOps(), logits_RV, asked),
                    "limit": logits_RV.numpy().max,
                }
                measured = interleaved(
                    repeat, {name: lambda _, run=run: timed(time.perf_counter, run) for name, run in ways.items()}
                )
                ms = {name: 1e3 * statistics.median(values) for name, values in measured.items()}
                cells = {name: f"{value:.2f}" for name, value in ms.items()}
                times = f"{ms['plain torch'] / ms['ops of CPUs']:.0f}"
                found.append({"rows": num, "sampling": kind, **cells, "times as fast": times})
    report("Sampling on a CPU", f"{vocabulary} ids, {threads} threads, ms a step.", table(found), out=out)


if __name__ == "__main__":
    typer.run(main)
