"""Adapters on disk: what is read, and what is refused by the name of its field or tensor. Judge: the standard library's
regular expressions, used as PEFT uses them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.lora import peft_config
from ramiform.runtime.models.lora.peft import read_adapter
from ramiform.runtime.models.lora.peft_config import read_peft_config
from ramiform.runtime.models.read_config import read_config

CONFIG = read_config(SHIPPED_MODEL)
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
FIRST, HIDDEN = f"{MODULE}.lora_A.weight", CONFIG.hidden_size


def configured(folder: Path, **fields: Any) -> Path:
    """Write an adapter's configuration."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8} | fields))
    return folder


def adapter(folder: Path, **changes: torch.Tensor | None) -> Path:
    """Write an adapter of one module, with tensors changed, or left out where None is given."""
    tensors: dict[str, torch.Tensor | None] = {
        FIRST: torch.ones(8, HIDDEN),
        f"{MODULE}.lora_B.weight": torch.ones(CONFIG.num_heads * CONFIG.head_dim, 8),
    }
    kept = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    save_file(kept, configured(folder) / "adapter_model.safetensors")
    return folder


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "peft_type"),
    ({"r": 0}, "r "),
    ({"use_dora": True}, "use_dora"),
    ({"bias": "all"}, "bias"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
    ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
    ({"lora_alpha": "8"}, "lora_alpha"),
    ({"rank_pattern": {"(": 4}}, "rank_pattern"),
    ({"rank_pattern": {f"a{index}": 4 for index in range(5000)}}, "rank_pattern"),
    ({"alpha_pattern": {f"a{index}+": 4 for index in range(70)}}, "alpha_pattern"),
    ({"target_modules": ["q_proj"] * 5000}, "target_modules"),
    ({"something_new": 1}, "something_new"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=lambda each: each if isinstance(each, str) else "")
def test_what_is_not_computed_is_refused_by_its_field(fields: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(named)):
        read_peft_config(configured(tmp_path, **fields))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({FIRST: None}, "self_attn.q_proj has only one"),
        ({FIRST: torch.zeros(9, HIDDEN)}, "q_proj.lora_A.weight has shape"),
        ({FIRST: torch.full((8, HIDDEN), torch.nan)}, "q_proj.lora_A.weight has values"),
        ({FIRST: torch.zeros(8, CONFIG.hidden_size, dtype=torch.int64)}, "not floating point"),
        ({"base_model.model.lm_head.lora_A.weight": torch.zeros(8, HIDDEN)}, "lm_head"),
        ({"base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight": torch.zeros(8, 8)}, "layers.99"),
        ({"extra": torch.zeros(1)}, "extra"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    change: dict[str, torch.Tensor | None], named: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=re.escape(named)):
        read_adapter(adapter(tmp_path, **change), CONFIG, max_rank=64)


def test_ranks_above_the_bound_and_broken_files_are_refused(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    assert read_adapter(folder, CONFIG, max_rank=8).rank == 8
    with pytest.raises(CheckpointError, match="max_lora_rank 7"):
        read_adapter(folder, CONFIG, max_rank=7)
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="corrupt or truncated"):
        read_adapter(folder, CONFIG, max_rank=64)
    file.rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickles are not read"):
        read_adapter(folder, CONFIG, max_rank=64)


def test_patterns_match_as_in_peft_and_names_need_no_automata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [
        f"model.layers.{layer}.{name}"
        for layer in (0, 1, 10, 11)
        for name in ("self_attn.q_proj", "mlp.up_proj", "mlp.upXproj")
    ]
    names = ["1.self_attn.q_proj", "layers.1.mlp.up_proj", "proj", "up.proj", "", "model.layers.0.self_attn.q_proj"]
    patterns = [*names, r"layers\.1\d\..*", "q_proj|up_proj"]
    for pattern in patterns:
        with monkeypatch.context() as patched:
            if pattern in names:
                patched.setattr(peft_config, "_automaton", None)
            config = read_peft_config(configured(tmp_path, rank_pattern={pattern: 3}, alpha_pattern={pattern: 6}))
            for module in modules:
                is_matched = re.match(rf"(.*\.)?({pattern})$", module) is not None
                assert config.rank_of(module) == (3 if is_matched else 8), (pattern, module)
                assert config.scale_of(module) == (2 if is_matched else 1), (pattern, module)
