"""Compiles every kernel of some models for a GPU; prints a JSON object for each. Run by test_compile.py in a process
that does not interpret: `python compile_all.py CAPABILITY [MODEL[:PATTERN] ...] [--without-loops]`, 90 say. A pattern
chooses kernels by a part of their names. Loops are counted in a listing that takes half of the time."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from ramiform.kernels.triton import launch_configs
from ramiform.kernels.triton.launching import Launch
from ramiform.kernels.triton.variants import KernelShapes, variants

sys.path.insert(0, __file__.rpartition("/")[0])
from compiling import compile_launch

LLAMA_8B = KernelShapes(32, 8, 128, 4096, 128256, 16, gated_size=14336)
MODELS = {
    "llama-8b": LLAMA_8B,
    "llama-8b-lora": replace(LLAMA_8B, adapter_rank=16),
    "llama-8b-fp8-kv": replace(LLAMA_8B, kv_dtype=torch.float8_e4m3fn),
    "llama-8b-int8-kv": replace(LLAMA_8B, kv_dtype=torch.int8),
    "llama-8b-scaled-fp8-kv": replace(LLAMA_8B, kv_dtype=torch.float8_e4m3fn, scaled_kv=True),
    "llama-8b-scaled-int8-kv": replace(LLAMA_8B, kv_dtype=torch.int8, scaled_kv=True),
    "llama-8b-scaled-int4-kv": replace(LLAMA_8B, kv_dtype=torch.uint8, scaled_kv=True),
    "qwen2.5-0.5b-scaled-int8-kv": KernelShapes(
        14, 2, 64, 896, 151936, 16, kv_dtype=torch.int8, scaled_kv=True, gated_size=4864
    ),
    "gemma-2-9b-scaled-int8-kv": KernelShapes(
        16, 8, 256, 3584, 256000, 16, kv_dtype=torch.int8, scaled_kv=True, soft_cap=50.0
    ),
    "llama-8b-e5m2-kv": replace(LLAMA_8B, kv_dtype=torch.float8_e5m2),
    "llama-8b-tp8": replace(LLAMA_8B, num_heads=4, num_kv_heads=1, gated_size=1792),
    "llama-8b-deterministic": replace(LLAMA_8B, deterministic=True),
    "llama-70b-fp8-kv-tp4": KernelShapes(16, 2, 128, 8192, 128256, 16, kv_dtype=torch.float8_e4m3fn, gated_size=7168),
    "qwen2.5-0.5b": KernelShapes(14, 2, 64, 896, 151936, 16, gated_size=4864),
    "gemma-2-9b": KernelShapes(16, 8, 256, 3584, 256000, 16, windows=(None, 4096), soft_cap=50.0),
    "gemma-2-9b-fp8-kv": KernelShapes(16, 8, 256, 3584, 256000, 16, kv_dtype=torch.float8_e4m3fn, soft_cap=50.0),
    "qwen3-30b-a3b": KernelShapes(
        32, 4, 128, 2048, 151936, 16, qk_norm=True, num_experts=128, num_chosen=8, expert_size=768
    ),
    "gpt-oss-20b": KernelShapes(
        64,
        8,
        64,
        2880,
        201088,
        16,
        windows=(None, 128),
        sinks=True,
        num_experts=32,
        num_chosen=4,
        expert_size=2880,
        clamped_experts=True,
        weights="mxfp4",
    ),
    "llama-8b-int4": replace(LLAMA_8B, weights="int4", group=128, linears=((6144, 4096, False),)),
    "llama-8b-int8": replace(LLAMA_8B, weights="int8", linears=((6144, 4096, False),)),
    "llama-8b-w8a8": replace(LLAMA_8B, weights="int8-inputs", linears=((6144, 4096, False),)),
    "llama-8b-fp8": replace(LLAMA_8B, weights="fp8-inputs", linears=((6144, 4096, False),)),
    "llama-8b-mxfp4": replace(LLAMA_8B, weights="mxfp4", linears=((6144, 4096, True),)),
    "llama-8b-fp8-blocks": replace(LLAMA_8B, weights="fp8-blocks", linears=((6144, 4096, False),)),
    # The attention of DeepSeek V3; all else is compiled already.
    "llama-8b-latents": replace(LLAMA_8B, num_heads=128, num_kv_heads=1, head_dim=576, latent_rank=512),
    "llama-8b-latents-fp8-kv": replace(
        LLAMA_8B, num_heads=128, num_kv_heads=1, head_dim=576, latent_rank=512, kv_dtype=torch.float8_e4m3fn
    ),
    "llama-8b-latents-tp8": replace(LLAMA_8B, num_heads=16, num_kv_heads=1, head_dim=576, latent_rank=512),
    "llama-8b-delta-nets": replace(LLAMA_8B, state_size=(32, 128, 128), delta_rule=True),  # of Qwen3-Next
    "llama-8b-mamba2": replace(LLAMA_8B, state_size=(128, 128, 64)),
    "mixtral-8x7b": KernelShapes(32, 8, 128, 4096, 32000, 16, num_experts=8, num_chosen=2, expert_size=14336),
}


def launches(capability: int, models: list[str]) -> Iterator[tuple[str, Launch]]:
    """Yield each compiled form once, with the first model that has it."""
    launch_configs.ASSUMED_CAPABILITY = (capability // 10, capability % 10)
    seen = set()
    for model in models:
        name, _, pattern = model.partition(":")
        if "fp8" in name and not launch_configs.reads_fp8(torch.device("cpu")):
            continue
        for launch in variants(MODELS[name]):
            if launch.key not in seen and re.search(pattern, launch.kernel.__name__):
                seen.add(launch.key)
                yield name, launch


if __name__ == "__main__":
    arguments = [one for one in sys.argv[1:] if one != "--without-loops"]
    counts_loops = arguments == sys.argv[1:]
    wanted = int(arguments[0])
    for name, launch in launches(wanted, arguments[1:] or list(MODELS)):
        compiled = compile_launch(launch, wanted, counts_loops=counts_loops)
        print(json.dumps({"model": name, **compiled._asdict()}), flush=True)
