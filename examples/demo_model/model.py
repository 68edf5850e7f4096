"""The model's configuration, and writing its files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 2048


def config(vocab_size: int, ids: dict[str, int]) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=ids["<|bos|>"],
        eos_token_id=[ids["<|eos|>"], ids["<|end|>"]],
        pad_token_id=ids["<|pad|>"],
    )


def fresh(settings: LlamaConfig, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(settings)


def save_weights(model: LlamaForCausalLM, out: Path) -> None:
    """Write the weights to a temporary file and rename it: concurrent readers see the old file or the new one,
    whole."""
    tensors = {
        name: value.detach().to(torch.bfloat16).contiguous().clone()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }  # tied to the embedding
    temporary = out / "model.safetensors.tmp"
    save_file(tensors, str(temporary), metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, out / "model.safetensors")


def save_config(settings: LlamaConfig, out: Path) -> None:
    """Write both spellings of the RoPE base: libraries differ in which they read."""
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 10000.0,
    }
    for name in (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings bos_token_id eos_token_id pad_token_id "
        "initializer_range"
    ).split():
        values[name] = getattr(settings, name)
    (out / "config.json").write_text(json.dumps(values, indent=2) + "\n")
    generation = {
        "bos_token_id": settings.bos_token_id,
        "eos_token_id": settings.eos_token_id,
        "pad_token_id": settings.pad_token_id,
        "do_sample": False,
        "max_new_tokens": 256,
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
