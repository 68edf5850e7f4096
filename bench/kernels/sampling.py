"""Sampling of a step's rows on a CPU, by the ops of CPUs and by plain torch.

    python -P bench/kernels/sampling.py [--vocabulary 151936] [--rows 1,16] [--repeat 20] [--threads 2]
        [--before CHECKOUT/.venv/bin/python] [--out FILE]

All ways sample equal random logits, in turn; times are medians on the wall. `--before` names the Python of an
environment with another checkout installed, whose ops of CPUs take turns too. The limit is one pass of numpy's `max`
over the logits, in one thread, which every way has to make.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Annotated, Any

import torch
import typer

from ramiform.bench.cpu_steps import set_threads
from ramiform.bench.harness import Ask, Before, Out, Repeat, Threads, checkouts, interleaved, report, table, timed
from ramiform.kernels import Ops, for_device
from ramiform.kernels.reference.ops import ReferenceOps
from ramiform.runtime.engine.logprobs import chosen_logprobs
from ramiform.runtime.engine.sampler import sample
from ramiform.runtime.scheduler.plan import Sample

OURS = "ops of CPUs"
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


def worker(vocabulary: int, threads: int) -> Ask:
    """Return what answers [rows, way, kind] with the seconds of one sampling."""
    set_threads(threads)
    made: dict[int, torch.Tensor] = {}

    def compute(ops: Ops, logits_RV: torch.Tensor, kind: str) -> None:
        asked = {"temperature": 1.0} | KINDS[kind]
        samples, masks = [Sample(draw=row, **asked) for row in range(len(logits_RV))], [None] * len(logits_RV)
        tokens_R = sample(ops, logits_RV, samples, masks)
        chosen_logprobs(ops, logits_RV, tokens_R, samples, masks)()

    def answer(question: Any) -> float:
        num, way, kind = question
        with torch.inference_mode():
            if num not in made:
                made[num] = 3 * torch.randn(num, vocabulary, generator=torch.Generator().manual_seed(num))
            if way == "limit":
                return timed(time.perf_counter, made[num].numpy().max)
            ops = ReferenceOps() if way == "plain torch" else for_device(torch.device("cpu"))
            return timed(time.perf_counter, lambda: compute(ops, made[num], kind))

    return answer


def main(
    vocabulary: int = 151936,
    rows: Annotated[str, typer.Option(help="numbers of rows, separated by commas")] = "1,16",
    repeat: Repeat = 20,
    threads: Threads = 2,
    before: Before = None,
    out: Out = None,
) -> None:
    found = []
    with checkouts(__file__, before, vocabulary=vocabulary, threads=threads) as asks:
        for num in map(int, rows.split(",")):
            for kind in KINDS:
                ways = {name: partial(_ask, asks[0], [num, name, kind]) for name in (OURS, "plain torch", "limit")}
                if len(asks) > 1:
                    ways["before"] = partial(_ask, asks[1], [num, OURS, kind])
                measured = interleaved(repeat, ways)
                ms = {name: 1e3 * statistics.median(values) for name, values in measured.items()}
                cells = {name: f"{value:.2f}" for name, value in ms.items()}
                times = {f"{name} / ours": f"{ms[name] / ms[OURS]:.1f}" for name in ms if name not in (OURS, "limit")}
                found.append({"rows": num, "sampling": kind, **cells, **times})
    report("Sampling on a CPU", f"{vocabulary} ids, {threads} threads, ms a step.", table(found), out=out)


def _ask(ask: Ask, question: list[Any], _: int) -> float:
    return float(ask(question))


if __name__ == "__main__":
    typer.run(main)
