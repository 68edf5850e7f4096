"""The training example of a mixture of experts: a short run, with and without the runtime's experts replayed."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

FILE = Path(ramiform.__file__).parent / "examples/training/moe_grpo.py"


@pytest.mark.exhaustive
def test_a_short_run_trains_with_replayed_experts(tmp_path: Path) -> None:
    example: dict[str, Any] = runpy.run_path(str(FILE), run_name="moe_grpo")
    config = transformers.MixtralConfig(
        vocab_size=2048, hidden_size=64, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.2, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(SHIPPED_MODEL / name, tmp_path)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    with ramiform.Engine(
        str(tmp_path), dtype="float32", enable_return_routed_experts=True, log_level="error"
    ) as engine:
        mismatches = example["train"](engine, model, steps=2)
        version = engine.generate("a", {"max_new_tokens": 1})["meta_info"]["weight_version"]
    assert len(mismatches) == 2
    assert max(mismatches) < 1e-4  # the second is of updated weights
    assert version == "step-2"
    changed = [name for name, one in model.named_parameters() if not torch.equal(one, before[name])]
    assert any("gate" in name for name in changed), "a router learns through the weights of its experts"
