"""Hybrid checkpoints in FP8 by blocks, as Qwen publishes them. Judge: transformers with the dequantised weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.read_config import read_config

from .test_decoder_equals_transformers import forward, load, page_tables, rows_of, tokens
from .test_families import SIZES

_FIELDS: dict[str, Any] = {
    **SIZES,
    "hidden_size": 128,
    "intermediate_size": 128,
    "layer_types": ["linear_attention", "full_attention"],
    "num_hidden_layers": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "head_dim": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
_DENSE = r"(embed_tokens|lm_head|conv1d|in_proj_ba|in_proj_[ab]|mlp\.gate|shared_expert_gate|norm)$"


def quantised(stored: Path, folder: Path, prefix: str = "model.", **config: Any) -> tuple[Path, Path]:
    """Write a checkpoint in FP8 and the dense one of the same weights; return their folders."""
    packed, dense, skipped = {}, {}, ["lm_head"]
    for name, tensor in load_file(stored / "model.safetensors").items():
        module, own = name.removesuffix(".weight"), re.sub(r"^model\.", prefix, name)
        if tensor.dim() != 2 or re.search(_DENSE, module):
            packed[own] = dense[name] = tensor
            skipped.append(own.removesuffix(".weight"))
            continue
        parts = tensor.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        # Blocks of unlike sizes, so that a scale in another's place is seen.
        parts = parts * torch.linspace(0.5, 2.0, parts[:, 0, :, 0].numel()).view(len(parts), 1, -1, 1)
        scale = parts.abs().amax((1, 3), keepdim=True) / 448
        codes = (parts / scale).to(torch.float8_e4m3fn)
        packed[own] = codes.reshape(tensor.shape)
        packed[f"{own}_scale_inv"] = scale[:, 0, :, 0].contiguous()
        dense[name] = (codes.float() * scale).reshape(tensor.shape)
    raw = json.loads((stored / "config.json").read_text())
    method = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    settings = {"quantization_config": method | {"modules_to_not_convert": skipped}}
    raw_packed = {**config, "text_config": raw, **settings} if config else raw | settings
    for place, tensors, own_config in (("packed", packed, raw_packed), ("dense", dense, raw)):
        (folder / place).mkdir()
        save_file(tensors, folder / place / "model.safetensors", metadata={"format": "pt"})
        (folder / place / "config.json").write_text(json.dumps(own_config))
    return folder / "packed", folder / "dense"


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": ("Qwen3Next", {}),
    "Qwen3.5": (
        "Qwen3_5Text",
        {"prefix": "model.language_model.", "architectures": ["Qwen3_5ForConditionalGeneration"]},
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    kind, settings = MODELS[request.param]
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**_FIELDS)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder / "stored")
    return quantised(folder / "stored", folder, **settings)


def test_blocks_of_fp8_give_the_logits_of_their_dequantised_weights(folders: tuple[Path, Path]) -> None:
    packed, dense = folders
    model, pool = load(packed)
    prompt = tokens(21, seed=1)
    [row] = rows_of(prompt, page_tables(21)[0], [21])
    [found] = forward(model, pool, [row])
    judge = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        want = judge.eval()(torch.tensor([prompt]), use_cache=False).logits[0]
    assert ((found - want).norm() / want.norm()).item() < 1e-3


def test_heads_that_cut_a_block_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    raw = json.loads((folders[0] / "config.json").read_text())
    sizes = {"linear_key_head_dim": 64, "linear_num_key_heads": 4}
    target = raw.get("text_config", raw)
    target |= sizes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "model.safetensors").symlink_to(folders[0] / "model.safetensors")
    if read_config(tmp_path).architecture != "Qwen3NextForCausalLM":
        return  # its parts are stored apart
    with pytest.raises(CheckpointError, match=r"in_proj_qkvz.weight_scale_inv: its rows are stored in another order"):
        load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
