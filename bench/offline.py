"""Throughput without sockets: the scheduler and the engine in one process, beside `transformers`' generate.

    OMP_WAIT_POLICY=passive python -P bench/offline.py [MODEL | --half-billion] [--repeat 5] [--threads 1] [--out FILE]

Waiting threads sleep, as in the runtime's own processes; it is the better for both on a machine that does other work.
Every scenario runs `--repeat` times, interleaved with the baseline, and the medians' ratio is what counts: seconds
depend on the machine and on who else uses it.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import torch
import typer
from transformers import AutoModelForCausalLM, PreTrainedModel

from ramiform.bench.harness import Model, Out, Repeat, interleaved, report, table
from ramiform.bench.in_process import play
from ramiform.bench.random_models import qwen2_shaped
from ramiform.runtime.core.main import LoadedCore, load_core
from ramiform.runtime.models.checkpoint import find_checkpoint
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import FlushCache, Generate
from ramiform.runtime.protocol.sampling import SamplingParams

DEFAULT_THREADS = torch.get_num_threads()  # before the engine sets its own


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
    """Return the scenarios; `brief` ones are for models that are a hundred times as slow as the smallest."""
    long = min(2048, context_length) - 8
    shared, rest = min(1024, long - 32), min(1056, long)
    return [
        Scenario("single stream", 1, 32, 24 if brief else 128),
        Scenario("batch 8", 8, 32, 16 if brief else 64),
        Scenario("batch 32", 32, 32, 8 if brief else 64),
        Scenario("prefill 2k", 1, long, 1, counts="prompt"),
        Scenario("shared prefix", 4 if brief else 32, rest, 4 if brief else 8, num_shared=shared, counts="prompt"),
    ]


def prompts(scenario: Scenario, vocab_size: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    shared = draw.choices(range(vocab_size), k=scenario.num_shared)
    rest = scenario.prompt_tokens - scenario.num_shared
    return [shared + draw.choices(range(vocab_size), k=rest) for _ in range(scenario.num_requests)]


def run_ramiform(core: LoadedCore, scenario: Scenario, batch: list[list[int]]) -> float:
    """Return the seconds for the batch on an empty cache."""
    core.scheduler.handle(FlushCache(0), time.monotonic(), b"")
    sampling = SamplingParams(max_new_tokens=scenario.output_tokens, temperature=0.0, ignore_eos=True, seed=0)
    requests = [Generate(rid=str(index), tokens=tokens, sampling=sampling) for index, tokens in enumerate(batch)]
    outputs, cost = play(core.engine, core.scheduler, requests)
    assert all(len(output.ids) == scenario.output_tokens for output in outputs.values())
    return cost.seconds


def median_seconds(cores: Mapping[str, LoadedCore], scenario: Scenario, repeat: int) -> dict[str, float]:
    """Return each core's median seconds for a scenario, in turn with the others on the same prompts."""
    vocab_size = next(iter(cores.values())).info.vocab_size
    batches = [prompts(scenario, vocab_size, seed) for seed in range(repeat + 1)]
    ways = {name: lambda seed, core=core: run_ramiform(core, scenario, batches[seed]) for name, core in cores.items()}
    return {name: statistics.median(taken) for name, taken in interleaved(repeat, ways).items()}


@torch.inference_mode()
def run_transformers(model: PreTrainedModel, scenario: Scenario, batch: list[list[int]], threads: int) -> float:
    """Return the seconds for the batch with so many threads."""
    ours = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
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
    finally:
        torch.set_num_threads(ours)


def main(
    model: Model = None,
    repeat: Repeat = 3,
    threads: Annotated[int, typer.Option(help="that both may use; the core takes fewer for small steps")] = 0,
    half_billion: Annotated[bool, typer.Option(help="random weights in Qwen2-0.5B's shape, and shorter runs")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="shorter runs")] = False,
    speculative: Annotated[bool, typer.Option(help="speculative decoding, if the model has a draft head")] = True,
    out: Out = None,
) -> None:
    threads = threads or DEFAULT_THREADS
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        path = find_checkpoint(model) if not half_billion else qwen2_shaped(Path(folder), 151936)
        core = load_core(CoreConfig(model=str(path), speculative=None if speculative else "off"))
        info = core.info
        baseline = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, info.dtype)).eval()
    rows = []
    for scenario in scenarios(info.context_length, brief=brief or half_billion):
        batches = [prompts(scenario, info.vocab_size, seed) for seed in range(repeat + 1)]
        seconds = interleaved(
            repeat,
            {
                "ours": lambda seed: run_ramiform(core, scenario, batches[seed]),  # noqa: B023
                "theirs": lambda seed: run_transformers(baseline, scenario, batches[seed], threads),  # noqa: B023
            },
        )
        mine, other = statistics.median(seconds["ours"]), statistics.median(seconds["theirs"])
        rows.append(
            {
                "scenario": f"{scenario.name} ({scenario.counts})",
                "tok/s": scenario.work / mine,
                "transformers tok/s": scenario.work / other,
                "ratio": other / mine,
            }
        )
    said = f"{info.name}, {info.num_parameters / 1e6:.1f}M, {info.dtype} on {info.device}, {threads} threads"
    report("Throughput without sockets", said, table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
