"""Writes checkpoints with gptqmodel: `python write_gptqmodel.py OUT [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from tiny_models import keep, samples, tiny_model, tokenizer

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gptq_4bit": ("llama", {"bits": 4, "group_size": 128}),
    "gptq_8bit": ("llama", {"bits": 8, "group_size": 128}),
    "gptq_one_group": ("llama", {"bits": 4, "group_size": -1, "act_group_aware": False}),
    "gptq_8bit_one_group": ("llama", {"bits": 8, "group_size": -1, "act_group_aware": False}),
    "gptq_v2": ("llama", {"bits": 4, "group_size": 128, "format": "gptq_v2"}),
    "gptq_asymmetric": ("llama", {"bits": 4, "group_size": 64, "sym": False}),
    "gptq_act_order": ("llama", {"bits": 4, "group_size": 32, "desc_act": True, "act_group_aware": False}),
    "gptq_head": ("llama", {"bits": 4, "group_size": 128, "lm_head": True}),
    "gptq_dynamic_dense": ("two layers", {"bits": 4, "group_size": 128, "dynamic": {r"-:.*\.1\.mlp\..*": {}}}),
    "gptq_dynamic": (
        "two layers",
        {
            "bits": 4,
            "group_size": 128,
            "dynamic": {
                r"+:.*\.0\.self_attn\.v_proj.*": {"bits": 8, "group_size": 64},
                r".*\.1\.mlp\.down_proj.*": {"group_size": 32},
                r"-:.*k_proj.*": {},
            },
        },
    ),
}


def write(name: str, out: Path) -> None:
    kind, settings = KINDS[name]
    with tempfile.TemporaryDirectory() as scratch:
        dense, packed = Path(scratch) / "dense", Path(scratch) / "packed"
        tiny_model(kind, torch.float16).save_pretrained(dense)
        tokenizer().save_pretrained(dense)
        model = GPTQModel.load(str(dense), QuantizeConfig(**settings), device="cpu")
        model.quantize([{k: v[0].tolist() for k, v in s.items()} for s in samples()], batch_size=1)
        model.save(str(packed))
        weights: dict[str, torch.Tensor] = {}
        again = GPTQModel.load(str(packed), device="cpu", backend=BACKEND.TORCH)
        for module_name, module in again.model.named_modules():
            if hasattr(module, "qweight"):
                weights[module_name] = module.dequantize_weight().T
        keep(f"gptqmodel-{name}", packed, weights, out, tool=f"gptqmodel {version('gptqmodel')}")


if __name__ == "__main__":
    for name in sys.argv[2:] or KINDS:
        write(name, Path(sys.argv[1]))
