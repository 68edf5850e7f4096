"""Attention with sinks (gpt-oss) and in chunks (Llama 4) with everything else: pages, schedules, drafts and ranks.

Random models. Their tokens are transformers' own (`test_any_model`); here they are compared with those of each request
alone, without a cache and without drafts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from .one_model import check_deterministic, check_draft_trees, check_retraction, check_schedule

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "num_local_experts": 4,
}
MODELS = {
    "gpt-oss": lambda: transformers.GptOssConfig(**SIZES, sliding_window=40, num_experts_per_tok=2),
    "llama 4": lambda: transformers.Llama4TextConfig(
        **SIZES, intermediate_size_mlp=64, no_rope_layers=[1, 0], attention_chunk_size=37, floor_scale=30
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[request.param](), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.5)
    found: Path = tmp_path_factory.mktemp("model")
    model.save_pretrained(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram, few pages, chunks", "two ranks"])
def test_requests_get_the_same_in_any_schedule(name: str, path: Path) -> None:
    check_schedule(path, name)


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_draft_trees_change_nothing(kv_dtype: str, path: Path) -> None:
    check_draft_trees(path, kv_dtype)


@pytest.mark.slow
def test_retracted_requests_get_the_same_tokens(path: Path) -> None:
    check_retraction(path)


@pytest.mark.exhaustive
def test_deterministic_bits_do_not_depend_on_batch_cache_drafts_or_ranks(path: Path) -> None:
    check_deterministic(path, 2)
