"""Hybrid models against transformers' own classes and against plain torch layers, on a CPU: steps of all in turn.

    python -P bench/recurrent_families.py [--only bamba] [--repeat 9] [--out FILE]

Each checkpoint is random, in float32. A step goes from token ids to logits, over a cache of random numbers. Times are
processor time of this process, so that other work on the machine counts little. transformers computes a batch of equal
lengths with its own cache, which is what it is best at.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import typer
from msgspec.structs import replace

from ramiform.bench.cpu_steps import rows
from ramiform.bench.harness import Only, Out, Repeat, cell, command, interleaved, median_ratio, table, write
from ramiform.kernels.cpu import recurrence, thread_pool
from ramiform.runtime.engine import KvMemory, KvPool
from ramiform.runtime.engine.inputs import decoder_inputs
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.load import load_model
from ramiform.runtime.scheduler.plan import RowState

CPU = torch.device("cpu")
NUM_PAGES = 200
STEPS = {"1 row at 100": (1, 96, 1), "8 rows at 100": (8, 96, 1), "a chunk of 256": (1, 0, 256)}
_SIZES: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
_MAMBA = {"mamba_n_heads": 16, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1}
_LISTED = {"layer_types": ["linear_attention"] * 3 + ["full_attention"] + ["linear_attention"] * 3 + ["full_attention"]}
_CONVOLUTIONS = {"layer_types": ["conv"] * 3 + ["full_attention"] + ["conv"] * 3 + ["full_attention"]}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 3.5": ("Qwen3_5Text", _DELTA | _LISTED),
    "Granite 4": ("GraniteMoeHybrid", _MAMBA | _LISTED | {"num_local_experts": 0, "shared_intermediate_size": 1408}),
    "Bamba": ("Bamba", _MAMBA | {"attn_layer_indices": [3, 7]}),
    "Nemotron-H": (
        "NemotronH",
        {
            "layers_block_type": ["linear_attention", "mlp"] * 3 + ["full_attention", "mlp"],
            "mamba_num_heads": 16,
            "mamba_head_dim": 64,
            "n_groups": 2,
        },
    ),
    "Falcon-H1": ("FalconH1", {"mamba_n_heads": 16, "mamba_d_ssm": 1024, "mamba_d_state": 128, "key_multiplier": 0.7}),
    "Jamba": ("Jamba", {"attn_layer_period": 4, "attn_layer_offset": 3, "num_experts": 1}),
    "LFM2": ("Lfm2", _CONVOLUTIONS),
    "LFM2-MoE": ("Lfm2Moe", _CONVOLUTIONS | {"num_experts": 8, "moe_intermediate_size": 352}),
}
Run = Callable[[int], float]


def timed(compute: Callable[[], object]) -> Run:
    """Return the function that computes and returns the seconds of processor time."""

    def run(_: int) -> float:
        start = time.process_time()
        with torch.inference_mode():
            compute()
        return time.process_time() - start

    return run


def native_step(model: Decoder, num_rows: int, before: int, tokens: int, *, loops: bool) -> Run:
    """Return a step of the runtime's model, with recurrent layers by compiled loops or by plain torch."""
    memory = KvMemory(model.config, NUM_PAGES, device=CPU, dtype=model.dtype)
    memory.k_LSKD.normal_()
    memory.v_LSKD.normal_()
    kv = KvPool(memory).layers
    model.allocate_states(num_rows)
    states = model.states
    assert states is not None
    states.conv_LSWC.normal_()
    states.state_LSHKV.normal_()
    step = [
        replace(row, state=RowState(slot, [])) for slot, row in enumerate(rows(num_rows, before, tokens, own=tokens))
    ]
    last = np.cumsum([len(row.tokens) for row in step]) - 1

    def compute() -> None:
        model.states, kept = states, recurrence.suits_loops
        try:
            if not loops:
                recurrence.suits_loops = lambda *_: False
            model.logits(model.hidden(decoder_inputs(step, model, last, kv[0]), kv))
        finally:
            recurrence.suits_loops = kept

    return timed(compute)


def transformers_step(model: transformers.PreTrainedModel, num_rows: int, before: int, tokens: int) -> Run:
    """Return a step of transformers' model, whose cache already has the tokens before it."""
    cache = None
    if before:
        with torch.inference_mode():
            cache = model(torch.randint(9, 8000, (num_rows, before)), use_cache=True).past_key_values
    ids = torch.randint(9, 8000, (num_rows, tokens))
    caches = iter(lambda: copy.deepcopy(cache), 0)
    run = timed(lambda: model(ids, past_key_values=own, use_cache=True, logits_to_keep=1))
    own = None

    def with_cache(number: int) -> float:
        nonlocal own
        own = next(caches)  # a step changes it
        return run(number)

    return with_cache


def measure(name: str, repeat: int) -> list[dict[str, Any]]:
    """Return the report's rows of a family."""
    kind, fields = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**_SIZES | fields)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        mine = load_model(Path(folder), device=CPU, dtype=torch.float32)
    found = []
    for title, step in STEPS.items():
        seconds = interleaved(
            repeat,
            {
                "loops": native_step(mine, *step, loops=True),
                "torch": native_step(mine, *step, loops=False),
                "transformers": transformers_step(theirs, *step),
            },
        )
        found.append(
            {
                "family": name,
                "step": title,
                "loops, ms": cell(1e3 * float(np.median(seconds["loops"]))),
                "as fast as plain torch layers": median_ratio(seconds["torch"], seconds["loops"]),
                "as fast as transformers": median_ratio(seconds["transformers"], seconds["loops"]),
            }
        )
    return found


def main(only: Only = "", repeat: Repeat = 9, out: Out = None) -> None:
    torch.set_num_threads(1)
    thread_pool.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    found = [row for name in FAMILIES if only.lower() in name.lower() for row in measure(name, repeat)]
    write(f"# Recurrent layers on a CPU\n\n{command()}\n\n{table(found)}\n", out)


if __name__ == "__main__":
    typer.run(main)
