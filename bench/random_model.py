"""A checkpoint of random numbers in Qwen2-0.5B's shape, for speed alone: what it says is noise."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

HALF_BILLION: dict[str, int] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}


def qwen2_shaped(folder: Path, vocab_size: int, *, dtype: torch.dtype = torch.bfloat16, **sizes: int) -> Path:
    """Qwen2-0.5B's sizes but for those given, for contexts of 2,560 tokens; the tokenizer is the shipped model's."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=vocab_size, max_position_embeddings=2560, tie_word_embeddings=True, **(HALF_BILLION | sizes)
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((SHIPPED_MODEL / name).read_bytes())
    return folder
