"""Processor time of a decode step beside the model's arithmetic: scheduler, inputs, sampling and results of the core.

    python -P bench/core_step.py [--rows 1,4,16] [--decodes 1,2,4,8] [--before CHECKOUT/.venv/bin/python] [--out FILE]

The model has one layer of 32 channels, so nearly all that is measured is Python. Requests of 24 tokens over a shared
prefix run in a process of its own, without sockets. `--decodes` are the decode steps of a plan; an older checkout has
one. In the column "general way" the engine makes tensors of each step's inputs, as on other devices.
Medians of processor time by round, each column in turn, so that other work on the machine changes them little.
"""

from __future__ import annotations

import random
import statistics
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ramiform.bench.harness import Ask, Before, Out, checkouts, interleaved, numbers, report, table

PREFIX, OWN, OUTPUT = 200, 50, 24  # tokens


def worker(model: str) -> Ask:
    """Return what plays a round of (rows, decode steps, whether the general way) and gives microseconds a step."""
    from ramiform.runtime.core.main import load_core, start_collections
    from ramiform.runtime.core.pipeline import Pipeline
    from ramiform.runtime.protocol.config import CoreConfig
    from ramiform.runtime.protocol.core import FlushCache, Generate, Tokens
    from ramiform.runtime.protocol.sampling import SamplingParams
    from ramiform.runtime.scheduler import batch

    meets: Any = None
    with suppress(ImportError):  # an older checkout
        from ramiform.runtime.engine.paths.kept_arrays import KeptArrays

        meets = KeptArrays.meets
    core = load_core(CoreConfig(model=model, dtype="float32", device="cpu", wait_for_loops=True))
    start_collections()
    num_steps = num_rounds = 0

    def count(plan: Any, seconds: float) -> None:
        nonlocal num_steps
        num_steps += getattr(plan, "num_decodes", 1)

    pipeline = Pipeline(core.engine, core.scheduler, ahead=False, on_step=count)
    draw = random.Random(1)
    shared = draw.choices(range(10, 2000), k=PREFIX)

    def play(question: tuple[int, int, bool]) -> float:
        nonlocal num_steps, num_rounds
        rows, decodes, general = question
        if meets is not None:
            KeptArrays.meets = (lambda path, needs: False) if general else meets  # type: ignore[method-assign]
        if hasattr(batch, "MAX_CONTINUOUS"):
            batch.CONTINUOUS_SECONDS, batch.MAX_CONTINUOUS = float("inf"), decodes
        core.scheduler.handle(FlushCache(call=0), 0.0, b"")  # else those that play more rounds would have to evict
        sampling = SamplingParams(temperature=0.0, max_new_tokens=OUTPUT, ignore_eos=True)
        num_steps, num_rounds, num_live, start = 0, num_rounds + 1, rows, time.thread_time()
        for row in range(rows):
            prompt = shared + draw.choices(range(10, 2000), k=OWN)
            core.scheduler.handle(Generate(rid=f"{num_rounds} {row}", tokens=prompt, sampling=sampling), 0.0, b"")
        while num_live:
            for answers in pipeline.advance():
                num_live -= sum(isinstance(one, Tokens) and one.finish is not None for one in answers)
        return (time.thread_time() - start) / num_steps * 1e6

    return play


def main(
    rows: Annotated[str, typer.Option(help="numbers of requests at once, separated by commas")] = "1,4,16",
    decodes: Annotated[str, typer.Option(help="decode steps of a plan, separated by commas")] = "1,2,4,8",
    rounds: Annotated[int, typer.Option(help="of 24 tokens each")] = 15,
    before: Before = None,
    out: Out = None,
) -> None:
    from ramiform.bench.random_models import tiny_llama

    def way(ask: Ask, *question: Any) -> Any:
        return lambda _: ask(question)

    with TemporaryDirectory() as scratch, checkouts(__file__, before, model=str(tiny_llama(Path(scratch)))) as asks:
        lines = []
        for size in numbers(rows):
            ways = {f"{number} decodes, us": way(asks[0], size, number, False) for number in numbers(decodes)}
            ways["general way, us"] = way(asks[0], size, 1, True)
            if before is not None:
                ways["before, us"] = way(asks[1], size, 1, False)
            times = interleaved(rounds, ways)
            lines.append({"rows": size} | {name: f"{statistics.median(own):.0f}" for name, own in times.items()})
    report("Processor time of a decode step beside the model", table(lines), out=out)


if __name__ == "__main__":
    typer.run(main)
