"""The ModelConfig of a GGUF file: its metadata are mapped to the fields of a config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import ModelConfig, parse_config
from ..errors import CheckpointError
from ..quantised.scheme import GGUF_GROUP, Quantisation, Scheme, WeightKind
from ..rope.config import RopeConfig
from .block_reader import block_modules, four_bit_modules
from .file import GgufFile

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
_COUNTS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}
ROPE_FACTORS = "rope_freqs.weight"


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Make the ModelConfig of `file`. Raises CheckpointError for an architecture or setting that is not computed
    here."""
    path = file.path
    config = parse_config(_to_config_json(file), path)
    if ROPE_FACTORS in file.tensors:
        factors = tuple(float(factor) for factor in file.tensors[ROPE_FACTORS].data.reshape(-1))
        if len(factors) != config.head_dim // 2:
            raise CheckpointError(path, f"{ROPE_FACTORS} has {len(factors)} factors for heads of {config.head_dim}")
        config = replace(config, rope=_with_frequency_factors(config.rope, factors))
    formats = block_modules(file, config)
    if not formats:
        return config
    kind: WeightKind = "int4" if four_bit_modules(formats, config) else "int8"
    scheme = Scheme(kind=kind, source="gguf", group_size=GGUF_GROUP)
    return replace(config, quantisation=Quantisation(scheme, block_formats=formats))


def _with_frequency_factors(rope: RopeConfig, factors: tuple[float, ...]) -> RopeConfig:
    return replace(rope, type="listed", factors=factors)


def _to_config_json(file: GgufFile) -> dict[str, Any]:
    if file.architecture not in _ARCHITECTURES:
        raise CheckpointError(
            file.path,
            f"general.architecture: supported: {', '.join(_ARCHITECTURES)}; {file.architecture!r} is not supported",
        )
    raw = {name: file.value(f"{{arch}}.{key}") for name, key in _COUNTS.items()}
    num_experts = file.value("{arch}.expert_count", default=0)
    is_mixtral = file.architecture == "llama" and num_experts
    if "token_embd.weight" not in file.tensors:
        raise CheckpointError(file.path, "the tensor token_embd.weight is missing")
    raw |= {
        "architectures": ["MixtralForCausalLM" if is_mixtral else _ARCHITECTURES[file.architecture]],
        # Rows of the embedding, which may be more than the vocabulary's tokens.
        "vocab_size": int(file.tensors["token_embd.weight"].shape[1]),
        "head_dim": file.value("{arch}.attention.key_length", default=file.value("{arch}.rope.dimension_count")),
        "attention_bias": any(f"blk.0.attn_{name}.bias" in file.tensors for name in ("q", "output")),
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "num_experts": num_experts or None,
        # Default: Qwen3's reference implementation normalises, Qwen2's does not.
        "norm_topk_prob": file.value("{arch}.expert_weights_norm", default=file.architecture == "qwen3moe"),
        "rope_parameters": _rope(file),
    }
    return raw


def _rope(file: GgufFile) -> dict[str, Any]:
    kind = file.value("{arch}.rope.scaling.type", default="none")
    rope: dict[str, Any] = {"rope_theta": file.value("{arch}.rope.freq_base", default=10000.0)}
    if kind == "none":
        return rope
    return rope | {
        "rope_type": kind,
        "factor": file.value("{arch}.rope.scaling.factor"),
        "original_max_position_embeddings": file.value("{arch}.rope.scaling.original_context_length"),
    }
