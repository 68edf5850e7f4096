"""Time what drafts cost: steps of a target and of the model that drafts for it, by the tokens of one row.

    python -P bench/speculation/costs.py MODEL [DRAFT_MODEL ...] [--context 300] [--repeat 12] [--threads 2]

A level of a draft is a step of one token of the draft model; its verification is a step of the target with one token
more than the draft has. Times are medians, of hidden states and the logits of all tokens.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from ramiform.bench.cpu_steps import set_threads
from ramiform.bench.harness import Threads, report, table
from ramiform.runtime.compile_ahead import compile_loops
from ramiform.runtime.engine.build import choose_dtype
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_pool import PAGE_SIZE, KvMemory, KvPool
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.parameters import num_parameters
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.scheduler.plan import Row

SIZES = (1, 4, 8)  # tokens of a row


@torch.inference_mode()
def step_seconds(path: Path, context: int, repeat: int) -> dict[str, float | str]:
    """Return the median times of steps of one model, in ms, by their tokens."""
    cpu, config = torch.device("cpu"), read_config(path)
    model = load_model(path, config, device=cpu, dtype=choose_dtype("auto", cpu, num_parameters(config)))
    num_pages = -(-(context + max(SIZES)) // PAGE_SIZE)
    memory = KvMemory(model.config, num_pages, device=cpu, dtype=model.dtype)
    kv = KvPool(memory, KvMemory(model.config, 0, device=cpu, dtype=model.dtype)).layers

    def run(num_tokens: int, first: int) -> float:
        row = Row(rid="", tokens=list(range(100, 100 + num_tokens)), first_position=first, pages=[*range(num_pages)])
        began = time.perf_counter()
        model.logits_of_step(decoder_inputs([row], model, np.arange(num_tokens), kv[0]), kv)
        return time.perf_counter() - began

    run(context, 0)
    found = {f"{size} at once, ms": statistics.median(run(size, context) for _ in range(repeat)) for size in SIZES}
    return {"model": path.name} | {name: 1000 * seconds for name, seconds in found.items()}


def main(
    models: list[Path],
    context: Annotated[int, typer.Option(help="tokens before the step's")] = 300,
    repeat: int = 12,
    threads: Threads = 2,
) -> None:
    """Print a table: a row for each model."""
    compile_loops()
    set_threads(threads)
    report("Steps of models that draft and verify", table([step_seconds(path, context, repeat) for path in models]))


if __name__ == "__main__":
    typer.run(main)
