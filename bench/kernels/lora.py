"""Steps of a batch with LoRA adapters on a CPU, against the same steps of the base.

    python -P bench/kernels/lora.py [--rank 16] [--rounds 30] [--threads 1]

Each kind of batch is computed from its inputs to its logits, in turn with the others in one process. The time is the
processor's, so that other work on the machine counts less. The ratio is the median over the rounds of the
base's time / time with adapters.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

from ramiform.bench.random_models import qwen2_shaped
from ramiform.kernels.cpu import thread_pool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.config import ModelConfig
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.lora.peft import AdapterWeights, product_sizes
from ramiform.runtime.scheduler.plan import Row

CPU = torch.device("cpu")
PAGE = 16
KINDS = {
    "the base": [0] * 8,
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


def steps(tokens: int) -> dict[str, list[Row]]:
    """Return a step of 8 rows of `tokens` new tokens behind 200 for each kind."""
    made = {}
    for name, adapters in KINDS.items():
        made[name] = [
            Row(
                rid="",
                tokens=[(7 * index + place) % 1000 for place in range(tokens)],
                first_position=200,
                pages=list(range(20 * index, 20 * index + -(-(200 + tokens) // PAGE))),
                adapter=adapter,
            )
            for index, adapter in enumerate(adapters)
        ]
    return made


def measure(name: str, model: Decoder, rank: int, rounds: int, tokens: int) -> None:
    memory = KvMemory(model.config, 160, device=CPU, dtype=model.dtype)
    memory.k_LSKD.normal_()
    memory.v_LSKD.normal_()
    layers, kinds = KvPool(memory).layers, steps(tokens)
    last = np.arange(8) * tokens + tokens - 1
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}

    def compute(kind: str) -> float:
        start = time.process_time()
        with torch.inference_mode():
            model.logits(model.hidden(decoder_inputs(kinds[kind], model, last, layers[0]), layers))
        return time.process_time() - start

    for kind in kinds:
        compute(kind)
    for _ in range(rounds):
        for kind in kinds:
            seconds[kind].append(compute(kind))
    for kind, own in seconds.items():
        ratio = statistics.median(base / one for base, one in zip(seconds["the base"], own, strict=True))
        fastest = min(seconds["the base"]) / min(own)
        cells = [name, str(tokens), kind, f"{1e3 * statistics.median(own):.2f}", f"{ratio:.2f}", f"{fastest:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main(
    rank: Annotated[int, typer.Option(help="of all adapters")] = 16,
    rounds: Annotated[int, typer.Option(help="steps of each kind")] = 30,
    threads: Annotated[int, typer.Option(help="of torch and of compiled loops; several also wait")] = 1,
) -> None:
    torch.set_num_threads(threads)
    thread_pool.set_num_threads(threads)
    torch.manual_seed(0)
    print("| model | tokens a row | batch of 8 | ms | base / own, median | base / own, fastest |")
    print("|---|---:|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        half = qwen2_shaped(Path(folder) / "half", 2048, num_hidden_layers=8)
        for name, path, dtype in (
            ("shipped, float32", SHIPPED_MODEL, torch.float32),
            ("8 layers of Qwen2-0.5B, bfloat16", half, torch.bfloat16),
        ):
            model = load_model(path, device=CPU, dtype=dtype)
            for number in range(1, 9):
                model.lora.add(number, random_adapter(model.whole_config, rank))
            for tokens in (1, 16):
                measure(name, model, rank, rounds, tokens)


if __name__ == "__main__":
    typer.run(main)
