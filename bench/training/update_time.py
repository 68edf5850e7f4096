"""Time of an update of all weights of a 0.5B-shaped model, beside copying and packing the same weights.

    python -P bench/training/update_time.py [--rounds 3] [--layers 24]

An idle engine in bfloat16 takes all tensors by `update_weights`, once given as tensors and once as a safetensors file.
The baseline is in the same run, by as many threads: the tensors of each layer are copied into the layout that is
multiplied, and packed, as are the embedding and the head. Rounds take turns, and medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import ramiform
from ramiform.bench.random_models import qwen2_shaped
from ramiform.runtime.models.linear import DenseLinear
from ramiform.runtime.models.packed_linear import pack_linear

VOCABULARY = 151936
STACKED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")
ALONE = ("self_attn.o_proj", "mlp.down_proj")


def copy_and_pack(tensors: dict[str, torch.Tensor], num_layers: int) -> float:
    """Copy and pack the weights; return the seconds that it takes."""
    began = time.perf_counter()
    used = set[str]()

    def stacked(names: list[str]) -> DenseLinear:
        used.update(names)
        return DenseLinear(torch.cat([tensors[name] for name in names]))

    dense = [
        stacked([f"model.layers.{layer}.{part}.weight" for part in parts])
        for layer in range(num_layers)
        for parts in (*STACKED, *((name,) for name in ALONE))
    ]
    kept = {name: tensor.clone() for name, tensor in tensors.items() if name not in used}  # the embedding too
    dense.append(DenseLinear(kept["model.embed_tokens.weight"]))
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        packed = list(pool.map(pack_linear, dense))
    torch.set_num_threads(num_threads)
    assert len(packed) == 4 * num_layers + 1
    return time.perf_counter() - began


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Time an update of weights beside copying and packing them.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, torch.inference_mode():
        folder = qwen2_shaped(Path(made), VOCABULARY, num_hidden_layers=options.layers, max_position_embeddings=256)
        tensors = load_file(folder / "model.safetensors")
        file = Path(made) / "update.safetensors"
        save_file(tensors, file)
        own = {name: tensor.clone() for name, tensor in tensors.items()}  # a trainer's, in its own memory
        seconds: dict[str, list[float]] = {"copy and pack": [], "from tensors": [], "from a file": []}
        settings = {"dtype": "bfloat16", "speculative": "off", "num_pages": 32, "wait_for_loops": True}
        with ramiform.Engine(str(folder), log_level="error", **settings) as engine:
            for number in range(-1, options.rounds):
                taken = {
                    "copy and pack": copy_and_pack(own, options.layers),
                    "from tensors": timed(lambda: engine.update_weights(own)),
                    "from a file": timed(lambda: engine.update_weights(file)),
                }
                for name, value in taken.items() if number >= 0 else ():  # the first round touches the memory
                    seconds[name].append(value)
                print(", ".join(f"{name} {value:.2f} s" for name, value in taken.items()), flush=True)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        size = sum(tensor.nbytes for tensor in own.values())
        print(f"{size / 1e9:.2f} GB of tensors, {torch.get_num_threads()} threads, medians of {options.rounds} rounds:")
        for name, value in medians.items():
            print(f"{name}: {value:.2f} s, {value / medians['copy and pack']:.2f} x")


if __name__ == "__main__":
    main()
