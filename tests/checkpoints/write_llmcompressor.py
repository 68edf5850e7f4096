"""Writes checkpoints with llm-compressor: `python write_llmcompressor.py OUT [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from tiny_models import keep, samples, stored_tensors, tiny_model, tokenizer

HEAD = ["lm_head"]


def preset(name: str, **options: Any) -> QuantizationModifier:
    return QuantizationModifier(**{"targets": "Linear", "scheme": name, "ignore": HEAD} | options)


def grouped(**weights: Any) -> QuantizationScheme:
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def several() -> QuantizationModifier:
    int4 = QuantizationArgs(num_bits=4, group_size=128, strategy="group")
    int8 = QuantizationArgs(num_bits=8, strategy="channel")
    groups = {
        "attention": QuantizationScheme(targets=["re:.*self_attn.(q|k|o)_proj$"], weights=int8),
        "mlp": QuantizationScheme(targets=["re:.*mlp.*"], weights=int4),
    }
    return QuantizationModifier(config_groups=groups, ignore=HEAD)


PRESETS = (
    "W8A8 W4A8 W8A16 W4A16 W4A16_ASYM W4AFP8 FP8 FP8_DYNAMIC FP8_BLOCK NVFP4A16 NVFP4 MXFP4A16 MXFP4 MXFP8A16 MXFP8"
)
KINDS: dict[str, tuple[str, Any]] = {
    **{name: ("llama", lambda name=name: preset(name)) for name in PRESETS.split()},
    "GPTQ_W4A16": ("llama", lambda: GPTQModifier(targets="Linear", scheme="W4A16", ignore=HEAD)),
    "int4_channel": (
        "llama",
        lambda: QuantizationModifier(config_groups={"g": grouped(num_bits=4, strategy="channel")}, ignore=HEAD),
    ),
    "int8_asym": (
        "llama",
        lambda: QuantizationModifier(
            config_groups={"g": grouped(num_bits=8, strategy="channel", symmetric=False)}, ignore=HEAD
        ),
    ),
    "several_groups": ("llama", several),
    "head_W8A16": ("llama", lambda: preset("W8A16", ignore=[])),
    "head_FP8_DYNAMIC": ("llama", lambda: preset("FP8_DYNAMIC", ignore=[])),
    "mixtral_W4A16": ("mixtral", lambda: preset("W4A16", ignore=["lm_head", "re:.*gate$"])),
    "mixtral_FP8_DYNAMIC": ("mixtral", lambda: preset("FP8_DYNAMIC", ignore=["lm_head", "re:.*gate$"])),
    "qwen3_moe_NVFP4A16": ("qwen3 moe", lambda: preset("NVFP4A16", ignore=["lm_head", "re:.*mlp.gate$"])),
}


def write(name: str, out: Path) -> None:
    kind, recipe = KINDS[name]
    rows = [{key: value[0].tolist() for key, value in sample.items()} for sample in samples()]
    with tempfile.TemporaryDirectory() as scratch:
        dense, packed = Path(scratch) / "dense", Path(scratch) / "packed"
        tiny_model(kind).save_pretrained(dense)
        tokenizer().save_pretrained(dense)
        model = oneshot(
            model=str(dense), recipe=recipe(), dataset=Dataset.from_list(rows), num_calibration_samples=len(rows)
        )
        schemes = {
            module_name: module.quantization_scheme
            for module_name, module in model.named_modules()
            if getattr(module, "quantization_scheme", None) is not None and hasattr(module, "weight")
        }
        model.save_pretrained(packed, save_compressed=True)
        stored, weights = stored_tensors(packed), {}
        for module, scheme in schemes.items():
            module = module.replace(".mlp.", ".block_sparse_moe.") if kind == "mixtral" else module
            start = f"{module}."
            own = {key.removeprefix(start): value for key, value in stored.items() if key.startswith(start)}
            compressor = BaseCompressor.get_value_from_registry(getattr(scheme.format, "value", scheme.format))
            weights[module] = compressor.decompress(own, scheme)["weight"].to(torch.float32)
        keep(f"llmcompressor-{name}", packed, weights, out, tool=f"llmcompressor {version('llmcompressor')}")


if __name__ == "__main__":
    for name in sys.argv[2:] or KINDS:
        write(name, Path(sys.argv[1]))
