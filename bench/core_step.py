"""Processor time of a decode step beside the model's arithmetic: scheduler, inputs, sampling and results of the core.

    python -P bench/core_step.py [--rows 1,4,16] [--decodes 1,2,4,8] [--before CHECKOUT/.venv/bin/python] [--out FILE]

The model has one layer of 32 channels, so nearly all that is measured is Python. Requests of 24 tokens over a shared
prefix run in this process, without sockets. `--decodes` are the decode steps of a plan; an older checkout has one.
In the column "general way" the engine makes tensors of each step's inputs, as on other devices.
Medians of processor time by round, each column in turn, so that other work on the machine changes them little.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ramiform.bench.harness import Out, command, numbers, table, write

PREFIX, OWN, OUTPUT = 200, 50, 24  # tokens


def serve_rounds(model: Path) -> None:
    """Answer each line of standard input, rows and decode steps as JSON, with microseconds a step of one thread."""
    from ramiform.runtime.core.main import load_core, start_collections
    from ramiform.runtime.core.pipeline import Pipeline
    from ramiform.runtime.protocol.config import CoreConfig
    from ramiform.runtime.protocol.core import Generate, Tokens
    from ramiform.runtime.protocol.sampling import SamplingParams
    from ramiform.runtime.scheduler import batch

    supports: Any = None
    with suppress(ImportError):  # an older checkout
        from ramiform.runtime.engine.paths.kept_arrays import DecodeSteps

        supports = DecodeSteps.supports
    core = load_core(CoreConfig(model=str(model), dtype="float32", device="cpu", wait_for_loops=True))
    start_collections()
    num_steps = 0

    def count(plan: Any, seconds: float) -> None:
        nonlocal num_steps
        num_steps += getattr(plan, "num_decodes", 1)

    pipeline = Pipeline(core.engine, core.scheduler, ahead=False, on_step=count)
    draw = random.Random(1)
    shared = draw.choices(range(10, 2000), k=PREFIX)
    print("ready", flush=True)
    for round_number, line in enumerate(sys.stdin):
        rows, decodes, general = json.loads(line)
        if supports is not None:
            DecodeSteps.supports = staticmethod((lambda rows: False) if general else supports)  # type: ignore[method-assign]
        if hasattr(batch, "MAX_CONTINUOUS"):
            batch.CONTINUOUS_SECONDS, batch.MAX_CONTINUOUS = float("inf"), decodes
        sampling = SamplingParams(temperature=0.0, max_new_tokens=OUTPUT, ignore_eos=True)
        num_steps, num_live, start = 0, rows, time.thread_time()
        for row in range(rows):
            prompt = shared + draw.choices(range(10, 2000), k=OWN)
            core.scheduler.handle(Generate(rid=f"{round_number} {row}", tokens=prompt, sampling=sampling), 0.0, b"")
        while num_live:
            for answers in pipeline.advance():
                num_live -= sum(isinstance(one, Tokens) and one.finish is not None for one in answers)
        print((time.thread_time() - start) / num_steps * 1e6, flush=True)


def main(
    rows: Annotated[str, typer.Option(help="numbers of requests at once, separated by commas")] = "1,4,16",
    decodes: Annotated[str, typer.Option(help="decode steps of a plan, separated by commas")] = "1,2,4,8",
    rounds: Annotated[int, typer.Option(help="of 24 tokens each")] = 15,
    before: Annotated[Path | None, typer.Option(help="Python of an environment with another checkout")] = None,
    worker: Annotated[Path | None, typer.Option(hidden=True)] = None,
    out: Out = None,
) -> None:
    if worker is not None:
        serve_rounds(worker)
        return
    from ramiform.bench.random_models import tiny_llama

    with TemporaryDirectory() as scratch:
        tiny_llama(Path(scratch))
        workers = [
            subprocess.Popen(
                [python, "-P", __file__, "--worker", scratch],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
            )
            for python in ([sys.executable] if before is None else [sys.executable, str(before)])
        ]

        def ask(process: subprocess.Popen[str], *question: int) -> float:
            assert process.stdin is not None
            assert process.stdout is not None
            print(json.dumps(question), file=process.stdin, flush=True)
            return float(process.stdout.readline())

        try:
            for process in workers:
                assert process.stdout is not None
                process.stdout.readline()
            columns = [(f"{number} decodes, us", workers[0], number, False) for number in numbers(decodes)]
            columns += [("general way, us", workers[0], 1, True)]
            columns += [("before, us", process, 1, False) for process in workers[1:]]
            lines = []
            for size in numbers(rows):
                times: dict[str, list[float]] = {name: [] for name, *_ in columns}
                for _ in range(rounds + 1):
                    for name, process, number, general in columns:
                        times[name].append(ask(process, size, number, general))
                lines.append(
                    {"rows": size} | {name: f"{statistics.median(own[1:]):.0f}" for name, own in times.items()}
                )
        finally:
            for process in workers:
                process.terminate()
                process.wait()
    write("\n\n".join(["# Processor time of a decode step beside the model", command(), table(lines)]), out)


if __name__ == "__main__":
    typer.run(main)
