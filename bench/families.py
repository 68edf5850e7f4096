"""Native families against the same checkpoints through transformers, on a CPU: steps of both in turn.

    python -P bench/families.py [--only gemma] [--hidden 512] [--layers 6] [--threads 1] [--repeat 5] [--out FILE]

Each checkpoint is random, in float32. Both ways compute the same step over a cache of random numbers, from its inputs
to its logits, with the runtime's paged attention; only the layers differ.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer

from ramiform.bench.cpu_steps import rows
from ramiform.bench.harness import Only, Out, Repeat, cell, command, interleaved, median_ratio, table, write
from ramiform.kernels.cpu import thread_pool
from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.protocol.config import ModelImplName

CPU = torch.device("cpu")
NUM_PAGES = 400
STEPS = {
    "1 row at 100": rows(1, 96, 1, own=4),
    "8 rows at 200": rows(8, 192, 1, own=8),
    "a chunk of 256": rows(1, 0, 256),
    "1 row at 4000": rows(1, 4000, 1),
}
FAMILIES = [
    "Llama", "Qwen3", "Gemma2", "Gemma3Text", "Phi3", "Olmo2", "Granite", "SmolLM3", "Glm4", "Exaone4",
    "Cohere2", "Phi", "GPTNeoX", "Starcoder2", "Nemotron", "GPT2", "OPT", "DeepseekV2", "DeepseekV3", "GptOss",
    "Llama4Text", "Qwen3Moe", "Olmoe", "Mixtral",
]  # fmt: skip
# Of DeepSeek V2 Lite, with fewer experts.
LATENT = {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


# Experts of a token, of 16. Llama 4 has a shared one beside it, and transformers computes all of them.
MIXTURES = {"GptOss": 4, "Llama4Text": 1, "Qwen3Moe": 4, "Olmoe": 4, "Mixtral": 2}
ALONE = ["Llama4Text"]  # refused through transformers, which computes them with its own cache here


def make_config(kind: str, hidden: int, layers: int) -> transformers.PretrainedConfig:
    """Make a config of the family's class with these sizes and eight heads; with latent attention those of `LATENT`."""
    of = getattr(transformers, f"{kind}Config")
    sizes: dict[str, Any] = {
        "vocab_size": 8192,
        "hidden_size": hidden,
        "intermediate_size": 11 * hidden // 4,
        "ffn_dim": 11 * hidden // 4,
        "word_embed_proj_dim": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": hidden // 8,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if kind.startswith("Deepseek"):
        sizes |= LATENT | {"moe_intermediate_size": 11 * hidden // 32}
    if kind in MIXTURES:
        sizes |= {
            "intermediate_size": 11 * hidden // 32,
            "moe_intermediate_size": 11 * hidden // 32,
            "num_local_experts": 16,
            "num_experts": 16,
            "num_experts_per_tok": MIXTURES[kind],
        }
    known = {name for base in of.__mro__ for name in getattr(base, "__annotations__", {})} | set(of.attribute_map)
    return of(**{name: value for name, value in sizes.items() if name in known})


def step_of(model: Decoder, step: list[Any]) -> Callable[[int], float]:
    """Return the function that computes the step and returns its seconds."""
    memory = KvMemory(model.config, NUM_PAGES, device=CPU, dtype=model.dtype)
    memory.k_LSKD.normal_()
    memory.v_LSKD.normal_()
    kv = KvPool(memory).layers
    last = np.cumsum([len(row.tokens) for row in step]) - 1

    def run(_: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            model.logits(model.hidden(decoder_inputs(step, model, last, kv[0]), kv))
        return time.perf_counter() - start

    return run


def step_alone(model: transformers.PreTrainedModel, step: list[Any]) -> Callable[[int], float]:
    """Return the function that computes the step by transformers alone and returns its seconds."""
    first, ids = step[0].first_position, torch.tensor([row.tokens for row in step])
    filled = transformers.DynamicCache(config=model.config)
    if first:
        with torch.inference_mode():
            model(ids[:, :1].expand(-1, first), past_key_values=filled)

    def run(_: int) -> float:
        cache = filled if first else transformers.DynamicCache(config=model.config)  # a step adds a token or two
        start = time.perf_counter()
        with torch.inference_mode():
            model(ids, past_key_values=cache)
        return time.perf_counter() - start

    return run


def measure(kind: str, hidden: int, layers: int, repeat: int) -> dict[str, Any]:
    """Return a row of the report: how many times as fast the native family is, by step."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = make_config(kind, hidden, layers)
        judge = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        judge.save_pretrained(folder)
        impls: tuple[ModelImplName, ...] = ("native",) if kind in ALONE else ("native", "transformers")
        models = {impl: load_model(Path(folder), device=CPU, dtype=torch.float32, impl=impl) for impl in impls}
    native = models["native"]
    found: dict[str, Any] = {"family": kind, "parameters": f"{native.num_parameters / 1e6:.0f}M"}
    found["compiled"] = "no" if native._compiled is None else "yes"
    for name, step in STEPS.items():
        ways = {impl: step_of(model, step) for impl, model in models.items()}
        if kind in ALONE:
            ways["transformers"] = step_alone(judge, step)
        seconds = interleaved(repeat, ways)
        found[f"{name}, ms"] = cell(1e3 * float(np.median(seconds["native"])))
        found[f"{name}, ratio"] = median_ratio(seconds["transformers"], seconds["native"])
    return found


def main(
    only: Only = "",
    hidden: Annotated[int, typer.Option(help="hidden size")] = 512,
    layers: Annotated[int, typer.Option(help="layers")] = 6,
    threads: Annotated[int, typer.Option(help="of torch and of compiled loops")] = 1,
    repeat: Repeat = 5,
    out: Out = None,
) -> None:
    torch.set_num_threads(threads)
    thread_pool.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    found = [measure(kind, hidden, layers, repeat) for kind in FAMILIES if only.lower() in kind.lower()]
    write(f"# Native families and transformers\n\n{command()}\n\n{table(found)}\n", out)


if __name__ == "__main__":
    typer.run(main)
