"""A small random checkpoint and an engine on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from ramiform.runtime.engine import ForwardEngine, build_engine
from ramiform.runtime.protocol.config import CoreConfig

torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than this model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=150,  # no multiple of 32
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    path = tmp_path_factory.mktemp("checkpoint")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def engine(checkpoint: Path) -> ForwardEngine:
    return build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=300), checkpoint)
