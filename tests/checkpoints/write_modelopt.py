"""Writes checkpoints with NVIDIA's ModelOpt: `python write_modelopt.py OUT [NAME ...]`."""

from __future__ import annotations

import copy
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from tiny_models import keep, samples, tiny_model
from transformers import AutoModelForCausalLM

KINDS = {
    "fp8": "FP8_DEFAULT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "int8_smoothquant": "INT8_SMOOTHQUANT_CFG",
    "fp8_per_channel": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "fp8_kv": "FP8_DEFAULT_CFG",
}


def write(name: str, out: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tiny_model().save_pretrained(scratch)
        model = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.bfloat16)
    config = copy.deepcopy(getattr(mtq, KINDS[name]))
    if name == "fp8_kv":
        config = mtq.utils.update_quant_cfg_with_kv_cache_quant(config, mtq.FP8_KV_CFG["quant_cfg"])
    calibrate = None if name.startswith("nvfp4") else lambda m: [m(**sample) for sample in samples()]
    mtq.quantize(model, config, calibrate)
    weights = {
        module_name: module.weight_quantizer(module.weight).detach().clone()
        for module_name, module in model.named_modules()
        if getattr(getattr(module, "weight_quantizer", None), "is_enabled", False)
    }
    with tempfile.TemporaryDirectory() as scratch:
        with torch.inference_mode():
            export_hf_checkpoint(model, export_dir=scratch)
        keep(f"modelopt-{name}", Path(scratch), weights, out, tool=f"modelopt {version('nvidia-modelopt')}")


if __name__ == "__main__":
    for name in sys.argv[2:] or KINDS:
        write(name, Path(sys.argv[1]))
