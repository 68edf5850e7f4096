"""Steps of a model on a CPU, by kind: decode rows, shared prefixes, prompt chunks, and mixes of them.

    python -P bench/cpu_steps.py [MODEL] [--dtype bfloat16] [--threads 2] [--before CHECKOUT/.venv/bin/python]

Each kind of step is computed from its inputs to its logits, over a cache of random numbers. `--before` names the Python
of an environment with another checkout installed: both compute each kind in turn, and the ratio of their medians is
shown. The last columns are the products' work of the step, and the rate at which it was computed. With
`--processor-time` milliseconds are those of all threads' processor time, which says more where other processes run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

PAGE = 16
SHARED_PAGES = 62  # the first pages of the pool hold a shared prefix of 992 tokens


def rows(count: int, prefix: int, new: int, *, shared: bool = False, own: int = 0, pages_from: int = 64) -> list[Any]:
    """Return `count` rows of `new` tokens behind `prefix` + `own` tokens; the prefix has the same pages for all if
    `shared`."""
    from ramiform.runtime.scheduler.plan import Row

    made = []
    for index in range(count):
        total, common = -(-(prefix + own + new) // PAGE), prefix // PAGE if shared else 0
        first = pages_from + index * (total - common)
        pages = [*range(common), *range(first, first + total - common)]
        tokens = [(7 * index + place) % 1000 for place in range(new)]
        made.append(Row(rid="", tokens=tokens, first_position=prefix + own, pages=pages))
    return made


def kinds() -> dict[str, list[Any]]:
    prefix = SHARED_PAGES * PAGE
    decode = rows(16, prefix, 1, shared=True, own=40)
    return {
        "1 row at 100 tokens": rows(1, 96, 1, own=4),
        "1 row at 1,000": rows(1, prefix, 1, own=8),
        "8 rows at 200": rows(8, 192, 1, own=8),
        "32 rows at 100": rows(32, 96, 1, own=4),
        "16 rows over a shared 992": decode,
        "16 rows of 250 behind a shared 992": rows(16, prefix, 1, shared=True, own=249),
        "the same beside a chunk of 64": [*decode, *rows(1, 0, 64, pages_from=500)],
        "16 rows of 30 tokens over a shared 992": rows(16, prefix, 30, shared=True),
        "a chunk of 512": rows(1, 0, 512),
        "a chunk of 512 behind 1,536": rows(1, 1536, 512),
        "a chunk of 2,048": rows(1, 0, 2048),
    }


def measure(model: Path | None, dtype: str, threads: int, repeat: int, clock: Callable[[], float]) -> None:
    """Answer each line of standard input, the name of a kind, with the seconds of `repeat` steps as JSON."""
    from ramiform.kernels.cpu import thread_pool
    from ramiform.runtime.engine.inputs import decoder_inputs
    from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
    from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
    from ramiform.runtime.models.load import load_model

    torch.set_num_threads(threads)
    thread_pool.set_num_threads(threads)
    decoder = load_model(model or SHIPPED_MODEL, device=torch.device("cpu"), dtype=getattr(torch, dtype))
    memory = KvMemory(decoder.config, 1200, device=torch.device("cpu"), dtype=getattr(torch, dtype))
    memory.k_LSKD.normal_()
    memory.v_LSKD.normal_()
    layers, steps = KvPool(memory).layers, kinds()
    print(decoder.num_parameters, flush=True)
    for line in sys.stdin:
        step = steps[line.strip()]
        last = np.cumsum([len(row.tokens) for row in step]) - 1

        def compute(step: list[Any] = step, last: np.ndarray = last) -> float:
            start = clock()
            with torch.inference_mode():
                inputs = decoder_inputs(step, decoder, last, layers[0])
                if hasattr(decoder, "logits_of_step"):
                    decoder.logits_of_step(inputs, layers)
                else:  # an older checkout
                    decoder.logits(decoder.hidden(inputs, layers))
            return clock() - start

        compute()
        print(json.dumps([compute() for _ in range(repeat)]), flush=True)


def main(
    model: Annotated[Path | None, typer.Argument(help="checkpoint folder; default: the shipped model")] = None,
    dtype: Annotated[str, typer.Option(help="of weights and cache")] = "float32",
    threads: Annotated[int, typer.Option(help="of torch and of compiled loops")] = 2,
    repeat: Annotated[int, typer.Option(help="steps of each kind")] = 5,
    before: Annotated[Path | None, typer.Option(help="Python of an environment with another checkout")] = None,
    processor_time: Annotated[bool, typer.Option(help="of all threads, instead of the wall's")] = False,
    only: Annotated[str, typer.Option(help="kinds whose names contain this")] = "",
    worker: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    if worker:
        measure(model, dtype, threads, repeat, time.process_time if processor_time else time.perf_counter)
        return
    options = [*([str(model)] if model else []), f"--dtype={dtype}", f"--threads={threads}", f"--repeat={repeat}"]
    options += ["--processor-time"] * processor_time
    pythons = [sys.executable, *([str(before)] if before else [])]
    command = ["-P", __file__, *options, "--worker"]
    # As in servers: spinning threads of torch would take a processor from the loops.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    workers = [
        subprocess.Popen([python, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for python in pythons
    ]
    parameters = max(int(each.stdout.readline()) for each in workers if each.stdout)
    heads = ["ms", *(["before", "ratio"] if before else []), "GFLOP of products", "GFLOP/s"]
    print(f"| step | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for name, step in kinds().items():
        if only not in name:
            continue
        medians = []
        for each in workers:
            assert each.stdin is not None
            assert each.stdout is not None
            print(name, file=each.stdin, flush=True)
            medians.append(sorted(json.loads(each.stdout.readline()))[repeat // 2])
        work = 2e-9 * parameters * sum(len(row.tokens) for row in step)
        cells = [f"{1e3 * medians[0]:.2f}"]
        if before:
            cells += [f"{1e3 * medians[1]:.2f}", f"{medians[1] / medians[0]:.2f}"]
        print(f"| {name} | {' | '.join([*cells, f'{work:.2f}', f'{work / medians[0]:.0f}'])} |", flush=True)
    for each in workers:
        each.terminate()
        each.wait()


if __name__ == "__main__":
    typer.run(main)
