"""Writes checkpoints with transformers' own quantisers, bitsandbytes, torchao and its `fp8`:
`python write_transformers.py OUT [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tiny_models import keep, tiny_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, FineGrainedFP8Config, TorchAoConfig
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

# It refuses to quantise without a GPU, though it needs none.
FineGrainedFP8HfQuantizer.validate_environment = lambda self, *args, **options: None


def _torchao(kind: str, *arguments: Any, **options: Any) -> TorchAoConfig:
    from torchao import quantization

    return TorchAoConfig(getattr(quantization, kind)(*arguments, **options))


NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
KINDS: dict[str, tuple[str, Any]] = {
    "bnb_qwen3_moe_nf4": ("qwen3 moe", lambda: BitsAndBytesConfig(**NF4)),
    "bnb_mixtral_int8": ("mixtral", lambda: BitsAndBytesConfig(load_in_8bit=True)),
    "bnb_head_nf4": ("llama", lambda: BitsAndBytesConfig(**NF4, llm_int8_skip_modules=["k_proj"])),
    "bnb_head_int8": ("llama", lambda: BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=["k_proj"])),
    "torchao_int8_weight_only": ("llama", lambda: _torchao("Int8WeightOnlyConfig")),
    "torchao_int8_dynamic": ("llama", lambda: _torchao("Int8DynamicActivationInt8WeightConfig")),
    "torchao_float8_weight_only": ("llama", lambda: _torchao("Float8WeightOnlyConfig")),
    "fp8_qwen3_moe": ("qwen3 moe, blocks", FineGrainedFP8Config),
    "fp8_mixtral": ("mixtral, blocks", FineGrainedFP8Config),
}


def _of_blocks(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return codes.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)


def _dequantised_experts(name: str, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the matrices of transformers' FP8 experts, which it saves one by one."""
    found: dict[str, torch.Tensor] = {}
    if not hasattr(module, "gate_up_proj_scale_inv"):
        return found
    for number, codes in enumerate(module.gate_up_proj):
        gate, up = _of_blocks(codes, module.gate_up_proj_scale_inv[number]).chunk(2)
        down = _of_blocks(module.down_proj[number], module.down_proj_scale_inv[number])
        for own, matrix in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
            found[f"{name}.{number}.{own}"] = matrix.detach()
    return found


def _dequantised(module: torch.nn.Module) -> torch.Tensor | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or not isinstance(module, torch.nn.Module):
        return None
    if weight.dtype == torch.float8_e4m3fn:
        return _of_blocks(weight, module.weight_scale_inv)
    if hasattr(weight, "quant_state"):
        import bitsandbytes

        return bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
    if hasattr(weight, "SCB") and weight.SCB is not None:
        return (
            weight.CB.float() * weight.SCB[:, None] / 127
            if weight.CB is not None
            else weight.data.float() * weight.SCB[:, None] / 127
        )
    if type(weight).__module__.startswith("torchao"):
        return weight.dequantize()
    return None


def write(name: str, out: Path) -> None:
    kind, make = KINDS[name]
    with tempfile.TemporaryDirectory() as scratch:
        dense, packed = Path(scratch) / "dense", Path(scratch) / "packed"
        tiny_model(kind).save_pretrained(dense)
        model = AutoModelForCausalLM.from_pretrained(
            dense, quantization_config=make(), dtype=torch.bfloat16, device_map="cpu"
        )
        weights = {
            module_name: weight
            for module_name, module in model.named_modules()
            if (weight := _dequantised(module)) is not None
        }
        for module_name, module in model.named_modules():
            own = module_name.replace(".mlp.", ".block_sparse_moe.") if "mixtral" in kind else module_name
            weights |= _dequantised_experts(own, module)
        model.save_pretrained(packed)
        versions = {tool: version(tool) for tool in ("transformers", "bitsandbytes", "torchao")}
        keep(f"transformers-{name}", packed, weights, out, tool=versions)


if __name__ == "__main__":
    for name in sys.argv[2:] or KINDS:
        write(name, Path(sys.argv[1]))
