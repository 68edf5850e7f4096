"""Checkpoints of random weights with the shipped tokenizer: for speed, and for outputs that only constraints shape."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

HALF_BILLION: dict[str, int] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}


def qwen2_shaped(folder: Path, vocab_size: int, *, dtype: torch.dtype = torch.bfloat16, **sizes: int) -> Path:
    """Write a model of Qwen2-0.5B's shape, except for the given sizes, for contexts of 2,560 tokens."""
    config = transformers.Qwen2Config(
        vocab_size=vocab_size, max_position_embeddings=2560, tie_word_embeddings=True, **(HALF_BILLION | sizes)
    )
    return _save(config, folder, dtype, seed=0)


def deepseek_shaped(folder: Path, *, num_layers: int = 8, hidden_size: int = 512) -> Path:
    """Write a small model of DeepSeek V3's kind with one layer of multi-token prediction, which guesses at random."""
    config = transformers.DeepseekV3Config(
        vocab_size=2048,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers + 1,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=2560,
        kv_lora_rank=128,
        q_lora_rank=192,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        moe_intermediate_size=hidden_size // 2,
        n_routed_experts=16,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
    )
    _save(config, folder, torch.bfloat16, seed=0)
    prefix, tensors = f"model.layers.{num_layers}", load_file(folder / "model.safetensors")
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{prefix}.{norm}.weight"] = torch.ones(hidden_size, dtype=torch.bfloat16)
    tensors[f"{prefix}.eh_proj.weight"] = torch.randn(hidden_size, 2 * hidden_size).bfloat16() * 0.02
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    counts = {"num_hidden_layers": num_layers, "num_nextn_predict_layers": 1}
    if raw.get("mlp_layer_types"):
        counts["mlp_layer_types"] = raw["mlp_layer_types"][:num_layers]
    (folder / "config.json").write_text(json.dumps(raw | counts), "utf-8")
    return folder


def tiny_llama(folder: Path, context_length: int = 2048, seed: int = 0, vocab_size: int = 2048) -> Path:
    """Write a model of one layer and 32 channels, whose outputs are nearly uniformly random."""
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context_length,
        tie_word_embeddings=False,
        eos_token_id=[1, 7],
    )
    return _save(config, folder, torch.float32, seed)


def _save(config: transformers.PretrainedConfig, folder: Path, dtype: torch.dtype, seed: int) -> Path:
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(SHIPPED_MODEL / name, folder)
    return folder
