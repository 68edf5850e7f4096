"""Writes checkpoints with AutoRound: `python write_auto_round.py OUT [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from tiny_models import keep, tiny_model, tokenizer
from transformers import AutoModelForCausalLM

KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "auto_round": ("W4A16", {}, "auto_round"),
    "auto_round_8bit": ("W8A16", {}, "auto_round"),
    "auto_gptq": ("W4A16", {}, "auto_gptq"),
    "auto_awq_symmetric": ("W4A16", {}, "auto_awq"),
    "auto_awq_asymmetric": ("W4A16", {"sym": False}, "auto_awq"),
    "mixed_bits": (
        "W4A16",
        {"layer_config": {"model.layers.0.self_attn.v_proj": {"bits": 8}, "k_proj": {"bits": 16}}},
        "auto_round",
    ),
}


def write(name: str, out: Path) -> None:
    scheme, settings, format_ = KINDS[name]
    with tempfile.TemporaryDirectory() as scratch:
        dense, packed = Path(scratch) / "dense", Path(scratch) / "packed"
        tiny_model(dtype=torch.float16).save_pretrained(dense)
        tokenizer().save_pretrained(dense)
        model = AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float16)
        rounder = AutoRound(
            model, tokenizer(), scheme=scheme, iters=0, disable_opt_rtn=True, device_map="cpu", **settings
        )
        rounder.quantize()
        weights = {
            module_name: module.weight.detach().clone()
            for module_name, module in rounder.model.named_modules()
            if isinstance(module, torch.nn.Linear) and getattr(module, "bits", 16) < 16
        }
        rounder.save_quantized(str(packed), format=format_)
        while not list(packed.glob("config.json")):
            packed = next(folder for folder in packed.iterdir() if folder.is_dir())
        keep(f"autoround-{name}", packed, weights, out, tool=f"auto-round {version('auto-round')}")


if __name__ == "__main__":
    for name in sys.argv[2:] or KINDS:
        write(name, Path(sys.argv[1]))
