"""Throughput without sockets: the scheduler and the engine in one process, beside `transformers`' generate.

    OMP_WAIT_POLICY=passive python -P bench/offline.py [MODEL | --half-billion] [--repeat 5] [--threads 1] [--json FILE]

Waiting threads sleep, as in the runtime's own processes; it is the better for both on a machine that does other work.
Every scenario runs `--repeat` times, interleaved with the baseline, and the medians' ratio is what counts: seconds
depend on the machine and on who else uses it.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramiform.bench.random_model import qwen2_shaped
from ramiform.runtime.core.main import load_core
from ramiform.runtime.engine import Engine
from ramiform.runtime.models.checkpoint import find_checkpoint
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import FlushCache, Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.scheduler import Scheduler

DEFAULT_THREADS = torch.get_num_threads()  # before the engine chooses its own
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Scenario(msgspec.Struct, frozen=True):
    """`num_requests` prompts that share their first `num_shared` tokens. `counts` says which tokens are the work."""

    name: str
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    num_shared: int = 0
    counts: Literal["output", "prompt"] = "output"

    @property
    def work(self) -> int:
        return self.num_requests * (self.output_tokens if self.counts == "output" else self.prompt_tokens)


def scenarios(context_length: int, *, brief: bool = False) -> list[Scenario]:
    """`brief` ones are for models that take seconds for what the smallest does in tens of milliseconds."""
    long = min(2048, context_length) - 8
    if brief:
        return [
            Scenario("single stream", 1, 32, 24),
            Scenario("batch 8", 8, 32, 16),
            Scenario("batch 32", 32, 32, 8),
            Scenario("prefill 2k", 1, long, 1, counts="prompt"),
            Scenario("shared prefix", 4, min(1056, long), 4, num_shared=min(1024, long - 32), counts="prompt"),
        ]
    return [
        Scenario("single stream", 1, 32, 128),
        Scenario("batch 8", 8, 32, 64),
        Scenario("batch 32", 32, 32, 64),
        Scenario("prefill 2k", 1, long, 1, counts="prompt"),
        Scenario("shared prefix", 32, min(1056, long), 8, num_shared=min(1024, long - 32), counts="prompt"),
    ]


def prompts(scenario: Scenario, vocab_size: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    shared = draw.choices(range(vocab_size), k=scenario.num_shared)
    rest = scenario.prompt_tokens - scenario.num_shared
    return [shared + draw.choices(range(vocab_size), k=rest) for _ in range(scenario.num_requests)]


def run_ramiform(engine: Engine, scheduler: Scheduler, scenario: Scenario, batch: list[list[int]]) -> float:
    """Seconds for the batch on an empty cache."""
    scheduler.handle(FlushCache(0), time.monotonic(), b"")
    sampling = SamplingParams(max_new_tokens=scenario.output_tokens, temperature=0.0, ignore_eos=True, seed=0)
    start = time.perf_counter()
    for index, tokens in enumerate(batch):
        scheduler.handle(Generate(rid=str(index), tokens=tokens, sampling=sampling), time.monotonic(), b"")
    num_tokens = 0
    while (plan := scheduler.plan(time.monotonic())) is not None:
        for message in scheduler.commit(plan, engine.run(plan), time.monotonic()):
            num_tokens += len(message.ids)
    assert num_tokens == scenario.num_requests * scenario.output_tokens
    return time.perf_counter() - start


@torch.inference_mode()
def run_transformers(
    model: PreTrainedModel, scenario: Scenario, batch: list[list[int]], threads: int = DEFAULT_THREADS
) -> float:
    """Seconds for the batch, with as many threads as torch takes when nobody says otherwise."""
    ours = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _run_transformers(model, scenario, batch)
    finally:
        torch.set_num_threads(ours)


def _run_transformers(model: PreTrainedModel, scenario: Scenario, batch: list[list[int]]) -> float:
    inputs = torch.tensor(batch)
    start = time.perf_counter()
    model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=scenario.output_tokens,
        min_new_tokens=scenario.output_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return time.perf_counter() - start


def main(
    model: Annotated[str | None, typer.Argument(help="checkpoint path; default: the model that ships")] = None,
    repeat: Annotated[int, typer.Option(help="runs of each scenario")] = 3,
    threads: Annotated[int, typer.Option(help="that both may use; the core takes fewer for small steps")] = 0,
    half_billion: Annotated[bool, typer.Option(help="random weights in Qwen2-0.5B's shape, and shorter runs")] = False,
    speculative: Annotated[bool, typer.Option(help="guess ahead, where the model has a head for it")] = True,
    output: Annotated[Path | None, typer.Option("--json", help="write the figures here")] = None,
) -> None:
    threads = threads or DEFAULT_THREADS
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        path = find_checkpoint(model) if not half_billion else qwen2_shaped(Path(folder), 151936)
        core = load_core(CoreConfig(model=str(path), speculative=None if speculative else "off"))
        engine, scheduler, info = core.engine, core.scheduler, core.info
        baseline = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[info.dtype]).eval()
    rows = []
    for scenario in scenarios(info.context_length, brief=half_billion):
        ours, theirs = [], []
        for seed in range(repeat + 1):
            batch = prompts(scenario, info.vocab_size, seed)
            times = (
                run_ramiform(engine, scheduler, scenario, batch),
                run_transformers(baseline, scenario, batch, threads),
            )
            if seed:  # the first run warms both up
                ours.append(times[0])
                theirs.append(times[1])
        mine, other = statistics.median(ours), statistics.median(theirs)
        rows.append(
            {
                "scenario": f"{scenario.name} ({scenario.counts})",
                "tok/s": scenario.work / mine,
                "transformers tok/s": scenario.work / other,
                "ratio": other / mine,
            }
        )
    table = Table(
        title=f"{info.name}, {info.num_parameters / 1e6:.1f}M, {info.dtype} on {info.device}, torch {torch.__version__}"
    )
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:,.2f}" for value in row.values()))
    Console().print(table)
    if output is not None:
        output.write_text(
            json.dumps(
                {"info": msgspec.to_builtins(info), "repeat": repeat, "threads": threads, "rows": rows},
                indent=1,
            )
        )


if __name__ == "__main__":
    typer.run(main)
