"""Adapters in PEFT's format that cannot be served are refused by the file and the field or tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.lora.peft import AdapterWeights, read_adapter
from ramiform.runtime.models.read_config import read_config

SHAPES = {"q_proj": (64, 64), "v_proj": (32, 64)}  # outputs and inputs in the checkpoint "llama3"


def adapter(folder: Path, change: dict[str, Any], tensors: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    made = {}
    for layer in range(3):
        for name, (outputs, inputs) in SHAPES.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora"
            made[f"{prefix}_A.weight"] = torch.ones(4, inputs)
            made[f"{prefix}_B.weight"] = torch.ones(outputs, 4)
    tensors(made)
    save_file(made, folder / "adapter_model.safetensors")
    return folder


def keep(tensors: dict[str, torch.Tensor]) -> None:
    """Change nothing."""


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "tensors", "words"),
    [
        ({"peft_type": "IA3"}, keep, "peft_type must be LORA"),
        ({"bias": "all"}, keep, "bias must be none"),
        ({"use_dora": True}, keep, "use_dora DoRA"),
        ({"modules_to_save": ["lm_head"]}, keep, "modules_to_save"),
        ({"init_lora_weights": "pissa_niter_4"}, keep, "init_lora_weights"),
        ({"a_new_switch": 3}, keep, "a_new_switch is unknown"),
        ({"r": 32}, keep, "above max_lora_rank 16"),
        ({"r": 8}, keep, "has shape"),
        ({"r": "4"}, keep, "r must be an integer"),
        ({"alpha_pattern": {"(": 1}}, keep, "alpha_pattern holds a pattern"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, keep, "k_proj, which target_modules names, are missing"),
        ({"target_modules": ["q_proj"]}, keep, "tensors of model.layers.0.self_attn.v_proj, which adapter_config"),
        (
            {"target_modules": r".*\.q_proj"},
            keep,
            "tensors of model.layers.0.self_attn.v_proj, which adapter_config",
        ),
        (
            {"exclude_modules": ["v_proj"]},
            keep,
            "tensors of model.layers.0.self_attn.v_proj, which adapter_config",
        ),
        (
            {"layers_to_transform": [0, 1]},
            keep,
            "tensors of model.layers.2.self_attn.q_proj, which adapter_config",
        ),
        ({}, lambda made: made.pop(FIRST), "only one of lora_A and lora_B"),
        ({}, lambda made: made.update({FIRST: torch.full((4, 64), torch.nan)}), "infinite or no numbers"),
        ({}, lambda made: made.update({FIRST: torch.ones(4, 64, dtype=torch.int64)}), "not floating point"),
        ({}, lambda made: made.update({"base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}), "lm_head"),
        ({}, lambda made: made.update({"other": torch.ones(1)}), "other is no matrix"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    change: dict[str, Any],
    tensors: Callable[[dict[str, torch.Tensor]], object],
    words: str,
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    config = read_config(checkpoint("llama3"))
    with pytest.raises(CheckpointError, match=r"adapter_(config|model)") as raised:
        read_adapter(adapter(tmp_path, change, tensors), config, max_rank=16)
    assert words in str(raised.value)


def test_pickles_and_other_folders_are_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    config = read_config(checkpoint("llama3"))
    with pytest.raises(CheckpointError, match=r"holds no adapter_config\.json"):
        read_adapter(tmp_path, config, max_rank=16)
    (adapter(tmp_path, {}, keep) / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="files of pickles are not read"):
        read_adapter(tmp_path, config, max_rank=16)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0garbage!")
    with pytest.raises(CheckpointError, match="corrupt or truncated"):
        read_adapter(tmp_path, config, max_rank=16)


def test_equal_weights_have_one_digest_and_travel_between_ranks(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    config = read_config(checkpoint("llama3"))
    read = read_adapter(adapter(tmp_path, {}, keep), config, max_rank=16)
    assert AdapterWeights.from_bytes(read.to_bytes(), read.rank).digest == read.digest
    other = read_adapter(adapter(tmp_path, {"lora_alpha": 16}, keep), config, max_rank=16)
    assert other.digest != read.digest
