"""Checkpoints of random weights with the shipped tokenizer: for speed, and for outputs that only constraints shape."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

HALF_BILLION: dict[str, int] = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2,
}  # fmt: skip


def qwen2_shaped(folder: Path, vocab_size: int, *, dtype: torch.dtype = torch.bfloat16, **sizes: int) -> Path:
    """Write a model of Qwen2-0.5B's shape, except for the given sizes, for contexts of 2,560 tokens unless given."""
    sizes = {"max_position_embeddings": 2560, **HALF_BILLION, **sizes}
    config = transformers.Qwen2Config(vocab_size=vocab_size, tie_word_embeddings=True, **sizes)
    return _save(config, folder, dtype, seed=0)


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
