"""Small random checkpoints of every family, made by transformers, which is also their judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from transformers import (
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

_SIZES = {
    "vocab_size": 203,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.12,
    "tie_word_embeddings": False,
}


def _rope(kind: str, **values: float) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **values}}


_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 0.5}

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama2": lambda: LlamaConfig(**_SIZES | {"num_key_value_heads": 4}),
    "llama3": lambda: LlamaConfig(**_SIZES | {"tie_word_embeddings": True}, **_rope("llama3", **_LLAMA3)),
    "llama with biases": lambda: LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, head_dim=20),
    "llama, one layer": lambda: LlamaConfig(**_SIZES | {"num_hidden_layers": 1, "num_key_value_heads": 1}),
    "llama linear": lambda: LlamaConfig(**_SIZES, **_rope("linear", factor=3.0)),
    "llama dynamic": lambda: LlamaConfig(**_SIZES | {"max_position_embeddings": 64}, **_rope("dynamic", factor=2.0)),
    "llama yarn": lambda: LlamaConfig(**_SIZES, **_rope("yarn", **_YARN)),
    "llama yarn, untruncated": lambda: LlamaConfig(
        **_SIZES, **_rope("yarn", **_YARN, truncate=False, mscale=0.8, mscale_all_dim=0.5)
    ),
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=None),
    "mistral, window": lambda: MistralConfig(**_SIZES, sliding_window=21),
    "qwen2": lambda: Qwen2Config(**_SIZES | {"tie_word_embeddings": True}),
    "qwen2, windows": lambda: Qwen2Config(**_SIZES, use_sliding_window=True, sliding_window=13, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**_SIZES, head_dim=24),
    "qwen3, layer types": lambda: Qwen3Config(
        **_SIZES,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=30,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        **_rope("yarn", **_YARN),
    ),
    "mixtral": lambda: MixtralConfig(**_SIZES, num_local_experts=5, num_experts_per_tok=2),
    "mixtral, window": lambda: MixtralConfig(
        **_SIZES, num_local_experts=3, num_experts_per_tok=3, head_dim=24, sliding_window=17
    ),
    "qwen3 moe": lambda: Qwen3MoeConfig(
        **_SIZES, **_EXPERTS, norm_topk_prob=True, use_sliding_window=True, sliding_window=25
    ),
    "qwen3 moe, some layers dense": lambda: Qwen3MoeConfig(
        **_SIZES | {"num_hidden_layers": 5}, **_EXPERTS, head_dim=24, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "qwen2 moe": lambda: Qwen2MoeConfig(  # panels of products do not straddle gates and ups
        **_SIZES,
        **_EXPERTS | {"moe_intermediate_size": 64},
        shared_expert_intermediate_size=128,
        mlp_only_layers=[0],
        sliding_window=None,
    ),
}


torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than these models


def make_judge(name: str) -> PreTrainedModel:
    """Make a random model in which every parameter matters: transformers starts norms at 1 and biases at 0."""
    torch.manual_seed(len(name))
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directories of the checkpoints by name, made on first use."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("checkpoint")
            make_judge(name).save_pretrained(made[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def judge() -> Callable[[str], PreTrainedModel]:
    """A fresh transformers model of the same weights: its dynamic rope remembers the longest sequence it has seen."""
    return make_judge


@pytest.fixture
def broken(checkpoint: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a checkpoint that a test may damage."""
    for file in checkpoint("llama3").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def change_config(broken: Path) -> Callable[..., Path]:
    """Overwrite fields of the damaged checkpoint's config.json; `...` removes one."""

    def change(**fields: object) -> Path:
        config = json.loads((broken / "config.json").read_text())
        config = {field: value for field, value in (config | fields).items() if value is not ...}
        (broken / "config.json").write_text(json.dumps(config))
        return broken

    return change
