"""Random LoRA adapters in PEFT's format, and checkpoints into which they are merged by hand."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, checkpoint: Path, *, seed: int, rank: int = 6, targets: Sequence[str] = ALL, **config: Any
) -> Path:
    """Write a random adapter of the checkpoint's modules `targets`, strong enough to change tokens."""
    draw = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    ranks, tensors = config.get("rank_pattern", {}), {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not module.endswith(tuple(f".{target}" for target in targets)):
            continue
        own = next((value for pattern, value in ranks.items() if module.endswith(pattern)), rank)
        outputs, inputs = weight.shape
        prefix = f"base_model.model.{module}.lora"
        tensors[f"{prefix}_A.weight"] = torch.randn(own, inputs, generator=draw) / math.sqrt(inputs)
        tensors[f"{prefix}_B.weight"] = torch.randn(outputs, own, generator=draw) * 0.25
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 8, "bias": "none"}
    settings |= {"target_modules": list(targets), "lora_dropout": 0.1, "use_dora": False, "modules_to_save": None}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    return folder


def merged(folder: Path, checkpoint: Path, adapter: Path) -> Path:
    """Write the checkpoint with the adapter added to its weights."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((adapter / "adapter_config.json").read_text())
    own, weights = load_file(adapter / "adapter_model.safetensors"), load_file(checkpoint / "model.safetensors")
    for name in [name for name in own if name.endswith(".lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        a_RC, b_OR = own[name], own[name.replace("lora_A", "lora_B")]
        alpha = next(
            (value for key, value in config.get("alpha_pattern", {}).items() if module.endswith(key)),
            config["lora_alpha"],
        )
        scale = alpha / (math.sqrt(len(a_RC)) if config.get("use_rslora") else len(a_RC))
        weights[f"{module}.weight"] += scale * (b_OR @ a_RC)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
