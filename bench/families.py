"""Native families against the same checkpoints through transformers, on a CPU: steps of both in turn.

    python -P bench/families.py [--only gemma] [--hidden 512] [--layers 6] [--threads 1] [--repeat 5] [--out FILE]
    python -P bench/families.py --hybrids [--only bamba] [--repeat 9] [--out FILE]

Each checkpoint is random, in float32. Both ways compute the same step over a cache of random numbers, from its inputs
to its logits, with the runtime's paged attention; only the layers differ. `--hybrids` are models with recurrent layers,
by processor time: through compiled loops, through plain torch layers, and by transformers alone, which computes a batch
of equal lengths with its own cache, what it is best at.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer

from ramiform.bench.cpu_steps import random_cache, rows, set_threads, step_of
from ramiform.bench.harness import Only, Out, Repeat, Threads, cell, interleaved, median_ratio, report, table, timed
from ramiform.kernels.cpu import recurrence
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import ModelImplName
from ramiform.runtime.scheduler.plan import RowState

NUM_PAGES = 400
STEPS = {
    "1 row at 100": rows(1, 96, 1, own=4),
    "8 rows at 200": rows(8, 192, 1, own=8),
    "a chunk of 256": rows(1, 0, 256),
    "1 row at 4000": rows(1, 4000, 1),
}
HYBRID_STEPS = {"1 row at 100": (1, 96, 1), "8 rows at 100": (8, 96, 1), "a chunk of 256": (1, 0, 256)}
SIZES: dict[str, Any] = {
    "vocab_size": 8192, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FAMILIES = [
    "Llama", "Qwen3", "Gemma2", "Gemma3Text", "Phi3", "Olmo2", "Granite", "SmolLM3", "Glm4", "Exaone4",
    "Cohere2", "Phi", "GPTNeoX", "Starcoder2", "Nemotron", "GPT2", "OPT", "DeepseekV2", "DeepseekV3", "GptOss",
    "Llama4Text", "Qwen3Moe", "Olmoe", "Mixtral",
]  # fmt: skip
# Of DeepSeek V2 Lite, with fewer experts.
LATENT = {
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1,
}  # fmt: skip


# Experts of a token, of 16. Llama 4 has a shared one beside it, and transformers computes all of them.
MIXTURES = {"GptOss": 4, "Llama4Text": 1, "Qwen3Moe": 4, "Olmoe": 4, "Mixtral": 2}
ALONE = ["Llama4Text"]  # refused through transformers, which computes them with its own cache here


def make_config(kind: str, hidden: int, layers: int) -> transformers.PretrainedConfig:
    """Make a config of the family's class with these sizes and eight heads; with latent attention those of `LATENT`."""
    of = getattr(transformers, f"{kind}Config")
    sizes = SIZES | {
        "hidden_size": hidden,
        "intermediate_size": 11 * hidden // 4,
        "ffn_dim": 11 * hidden // 4,
        "word_embed_proj_dim": hidden,
        "num_hidden_layers": layers,
        "head_dim": hidden // 8,
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


HYBRID_SIZES = SIZES | {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "head_dim": 64,
    "max_position_embeddings": 2048,
}  # fmt: skip
_DELTA = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128, "linear_value_head_dim": 128
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 16, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1}
_NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp"] * 3 + ["full_attention", "mlp"],
    "mamba_num_heads": 16, "mamba_head_dim": 64, "n_groups": 2,
}  # fmt: skip
_LISTED = {"layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 3 + ["full_attention"]}
_CONVOLUTIONS = {"layer_types": ["conv"] * 3 + ["full_attention"] + ["conv"] * 3 + ["full_attention"]}
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 3.5": ("Qwen3_5Text", _DELTA | _LISTED),
    "Granite 4": ("GraniteMoeHybrid", _MAMBA | _LISTED | {"num_local_experts": 0, "shared_intermediate_size": 1408}),
    "Bamba": ("Bamba", _MAMBA | {"attn_layer_indices": [3, 7]}),
    "Nemotron-H": ("NemotronH", _NEMOTRON),
    "Falcon-H1": ("FalconH1", {"mamba_n_heads": 16, "mamba_d_ssm": 1024, "mamba_d_state": 128, "key_multiplier": 0.7}),
    "Jamba": ("Jamba", {"attn_layer_period": 4, "attn_layer_offset": 3, "num_experts": 1}),
    "LFM2": ("Lfm2", _CONVOLUTIONS),
    "LFM2-MoE": ("Lfm2Moe", _CONVOLUTIONS | {"num_experts": 8, "moe_intermediate_size": 352}),
}
Run = Callable[[int], float]  # seconds, by the number of the round


def random_checkpoint(
    config: Any, impls: Sequence[ModelImplName]
) -> tuple[transformers.PreTrainedModel, dict[str, Decoder]]:
    """Make a random checkpoint: transformers' model, and the runtime's by implementation."""
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        cpu: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
        path = Path(folder)
        return theirs, {impl: load_model(path, read_config(path, impl), **cpu) for impl in impls}


def native_step(model: Decoder, step: list[Any]) -> Run:
    compute = step_of(model, step, random_cache(model, NUM_PAGES))
    return lambda _: timed(time.perf_counter, compute)


def step_alone(model: transformers.PreTrainedModel, step: list[Any]) -> Run:
    """Return a step by transformers alone."""
    first, ids = step[0].first_position, torch.tensor([row.tokens for row in step])
    filled = transformers.DynamicCache(config=model.config)
    if first:
        with torch.inference_mode():
            model(ids[:, :1].expand(-1, first), past_key_values=filled)

    @torch.inference_mode()
    def run(_: int) -> float:
        cache = filled if first else transformers.DynamicCache(config=model.config)  # a step adds a token or two
        return timed(time.perf_counter, lambda: model(ids, past_key_values=cache))

    return run


def measure(kind: str, hidden: int, layers: int, repeat: int) -> dict[str, Any]:
    """Return a row of the report: how many times as fast the native family is, by step."""
    impls = ("native",) if kind in ALONE else ("native", "transformers")
    theirs, models = random_checkpoint(make_config(kind, hidden, layers), impls)
    native = models["native"]
    found: dict[str, Any] = {"family": kind, "parameters": f"{native.num_parameters / 1e6:.0f}M"}
    found["compiled"] = "no" if native._compiled is None else "yes"
    for name, step in STEPS.items():
        ways = {impl: native_step(model, step) for impl, model in models.items()}
        if kind in ALONE:
            ways["transformers"] = step_alone(theirs, step)
        seconds = interleaved(repeat, ways)
        found[f"{name}, ms"] = cell(1e3 * float(np.median(seconds["native"])))
        found[f"{name}, ratio"] = median_ratio(seconds["transformers"], seconds["native"])
    return found


def hybrid_step(model: Decoder, num_rows: int, before: int, tokens: int, *, loops: bool) -> Run:
    """Return a step of the runtime's model, with recurrent layers by compiled loops or by plain torch."""
    model.allocate_states(num_rows)
    states = model.states
    assert states is not None
    states.conv_LSWC.normal_()
    states.state_LSHKV.normal_()
    step = rows(num_rows, before, tokens, own=tokens, state=[RowState(slot, []) for slot in range(num_rows)])
    compute = step_of(model, step, random_cache(model, NUM_PAGES))

    def run(_: int) -> float:
        model.states, kept = states, recurrence.suits_loops
        try:
            if not loops:
                recurrence.suits_loops = lambda *_: False
            return timed(time.process_time, compute)
        finally:
            recurrence.suits_loops = kept

    return run


def hybrid_step_alone(model: transformers.PreTrainedModel, num_rows: int, before: int, tokens: int) -> Run:
    """Return a step of transformers' model, whose cache already has the tokens before it."""
    ids, cache = torch.randint(9, 8000, (num_rows, tokens)), None
    if before:
        with torch.inference_mode():
            cache = model(torch.randint(9, 8000, (num_rows, before)), use_cache=True).past_key_values

    @torch.inference_mode()
    def run(_: int) -> float:
        own = copy.deepcopy(cache)  # a step changes it
        return timed(time.process_time, lambda: model(ids, past_key_values=own, use_cache=True, logits_to_keep=1))

    return run


def measure_hybrid(name: str, repeat: int) -> list[dict[str, Any]]:
    """Return the report's rows of a family, one for each step."""
    kind, fields = HYBRIDS[name]
    config = getattr(transformers, f"{kind}Config")(**HYBRID_SIZES | fields)
    theirs, models = random_checkpoint(config, ["native"])
    found = []
    for title, step in HYBRID_STEPS.items():
        ways = {way: hybrid_step(models["native"], *step, loops=way == "loops") for way in ("loops", "torch")}
        seconds = interleaved(repeat, ways | {"transformers": hybrid_step_alone(theirs, *step)})
        row = {"family": name, "step": title, "loops, ms": cell(1e3 * float(np.median(seconds["loops"])))}
        row["as fast as plain torch layers"] = cell(median_ratio(seconds["torch"], seconds["loops"]))
        row["as fast as transformers"] = cell(median_ratio(seconds["transformers"], seconds["loops"]))
        found.append(row)
    return found


def main(
    only: Only = "",
    hidden: Annotated[int, typer.Option(help="hidden size")] = 512,
    layers: Annotated[int, typer.Option(help="layers")] = 6,
    threads: Threads = 1,
    repeat: Repeat = 5,
    hybrids: Annotated[bool, typer.Option("--hybrids", help="models with recurrent layers, of one size")] = False,
    out: Out = None,
) -> None:
    set_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    chosen = [name for name in (HYBRIDS if hybrids else FAMILIES) if only.lower() in name.lower()]
    if hybrids:
        found = [row for name in chosen for row in measure_hybrid(name, repeat)]
        report("Recurrent layers on a CPU", table(found), out=out)
    else:
        found = [measure(kind, hidden, layers, repeat) for kind in chosen]
        report("Native families and transformers", table(found), out=out)


if __name__ == "__main__":
    typer.run(main)
