"""Steps of a batch with LoRA adapters on a CPU, against the same steps of the base.

    python -P bench/kernels/lora.py [--rank 16] [--rounds 30] [--threads 1] [--out FILE]

Each kind of batch is computed from its inputs to its logits, in turn with the others in one process. The time is the
processor's, so that other work on the machine counts less. The ratio is the median over the rounds of the
base's time / time with adapters.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ramiform.bench.cpu_steps import random_cache, rows, set_threads, step_of
from ramiform.bench.harness import Out, Threads, interleaved, median_ratio, report, table, timed
from ramiform.bench.random_models import qwen2_shaped
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.config import ModelConfig
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.lora.peft import AdapterWeights, product_sizes

BASE = "the base"
KINDS = {
    BASE: [0] * 8,
    "one adapter": [1] * 8,
    "two adapters and the base": [1, 1, 0, 0, 2, 2, 0, 0],
    "four adapters": [1, 2, 3, 4, 1, 2, 3, 4],
    "eight adapters": [1, 2, 3, 4, 5, 6, 7, 8],
}


def random_adapter(config: ModelConfig, rank: int) -> AdapterWeights:
    """Make an adapter of every product of every layer."""
    parts = {}
    for product, (inputs, sizes) in product_sizes(config).items():
        for layer in range(config.num_layers):
            parts[layer, product] = torch.randn(len(sizes) * rank, inputs), torch.randn(rank, sum(sizes)) / 100
    return AdapterWeights(rank, parts)


def measure(name: str, model: Decoder, rounds: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind: 8 rows of `tokens` new tokens behind 200."""
    layers = random_cache(model, 160)

    def way(adapters: list[int]) -> Callable[[int], float]:
        step = rows(8, 200, tokens, pages_from=0, adapter=adapters)
        compute = step_of(model, step, layers)
        return lambda _: timed(time.process_time, compute)

    seconds = interleaved(rounds, {kind: way(adapters) for kind, adapters in KINDS.items()})
    for kind, own in seconds.items():
        yield {
            "model": name,
            "tokens a row": tokens,
            "batch of 8": kind,
            "ms": 1e3 * statistics.median(own),
            "base / own, median": median_ratio(seconds[BASE], own),
            "base / own, fastest": min(seconds[BASE]) / min(own),
        }


def main(
    rank: Annotated[int, typer.Option(help="of all adapters")] = 16,
    rounds: Annotated[int, typer.Option(help="steps of each kind")] = 30,
    threads: Threads = 1,
    out: Out = None,
) -> None:
    set_threads(threads)
    torch.manual_seed(0)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        half = qwen2_shaped(Path(folder) / "half", 2048, num_hidden_layers=8)
        for name, path, dtype in (
            ("shipped, float32", SHIPPED_MODEL, torch.float32),
            ("8 layers of Qwen2-0.5B, bfloat16", half, torch.bfloat16),
        ):
            model = load_model(path, device=torch.device("cpu"), dtype=dtype)
            for number in range(1, 9):
                model.lora.add(number, random_adapter(model.whole_config, rank))
            for tokens in (1, 16):
                found += measure(name, model, rounds, tokens)
    report("LoRA adapters on a CPU", table(found), out=out)


if __name__ == "__main__":
    typer.run(main)
