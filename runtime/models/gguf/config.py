"""The ModelConfig of a GGUF file: its metadata are mapped to the fields of a config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import ModelConfig, parse_config
from ..errors import CheckpointError
from ..quantised.scheme import GGUF_GROUP, Quantisation, Scheme, WeightKind
from ..rope.angles import rope_amplitude
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
    config = parse_config(_to_config_json(file), file.path)
    config = replace(config, rope=_with_tensors(file, config.rope, config.rope_dim))
    formats = block_modules(file, config)
    if not formats:
        return config
    kind: WeightKind = "int4" if four_bit_modules(formats, config) else "int8"
    scheme = Scheme(kind=kind, source="gguf", group_size=GGUF_GROUP)
    return replace(config, quantisation=Quantisation(scheme, block_formats=formats))


def _to_config_json(file: GgufFile) -> dict[str, Any]:
    if file.architecture not in _ARCHITECTURES:
        raise CheckpointError(
            file.path,
            f"general.architecture: supported: {', '.join(_ARCHITECTURES)}; {file.architecture!r} is not supported",
        )
    if not file.value("{arch}.attention.causal", default=True):
        raise _refused(file, "attention.causal", "true", False)
    raw = {name: file.value(f"{{arch}}.{key}") for name, key in _COUNTS.items()}
    num_experts = file.value("{arch}.expert_count", default=0)
    is_mixtral = file.architecture == "llama" and num_experts
    if "token_embd.weight" not in file.tensors:
        raise CheckpointError(file.path, "the tensor token_embd.weight is missing")
    raw |= {
        "architectures": ["MixtralForCausalLM" if is_mixtral else _ARCHITECTURES[file.architecture]],
        # Rows of the embedding, which may be more than the vocabulary's tokens.
        "vocab_size": int(file.tensors["token_embd.weight"].shape[1]),
        "head_dim": file.value("{arch}.attention.key_length"),
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
    """Return the scaling as config.json has it. Without a type llama.cpp scales linearly, if there is a factor."""

    def scaling(key: str, default: Any = None) -> Any:
        return file.value(f"{{arch}}.rope.scaling.{key}", default=default)

    rope: dict[str, Any] = {"rope_theta": file.value("{arch}.rope.freq_base", default=10000.0)}
    kind = scaling("type", default="linear")
    factor = scaling("factor", default=file.value("{arch}.rope.scale_linear"))
    if kind not in ("none", "linear", "yarn"):
        raise _refused(file, "rope.scaling.type", "none, linear, yarn", kind)
    if kind == "none" or not factor or (kind == "linear" and factor == 1):
        return rope
    for key in ("yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"):
        if (value := scaling(key)) not in (None, 0.0 if key == "yarn_log_multiplier" else 1.0):
            raise _refused(file, f"rope.scaling.{key}", "the default", value)
    return rope | {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": scaling("original_context_length"),
        "beta_fast": scaling("yarn_beta_fast"),
        "beta_slow": scaling("yarn_beta_slow"),
    }


def _with_tensors(file: GgufFile, rope: RopeConfig, head_dim: int) -> RopeConfig:
    """Return the rope with what config.json has no fields for: dimensions that rotate, divisors of their frequencies,
    and a factor of cos and sin."""
    num_rotated = file.value("{arch}.rope.dimension_count", default=head_dim)
    whole_only = file.architecture == "llama"  # as llama.cpp has it: the rows of whole heads are in another order
    if num_rotated != head_dim and (whole_only or num_rotated % 2 or not 0 < num_rotated < head_dim):
        raise _refused(file, "rope.dimension_count", f"the head's size, {head_dim}", num_rotated)
    rope = replace(rope, rotary_dim=None if num_rotated == head_dim else int(num_rotated))
    if (tensor := file.tensors.get(ROPE_FACTORS)) is not None:
        factors = tuple(float(factor) for factor in tensor.data.reshape(-1))
        if len(factors) != num_rotated // 2:
            raise CheckpointError(file.path, f"{ROPE_FACTORS} has {len(factors)} factors for heads of {num_rotated}")
        rope = replace(rope, factors=factors)
    if (attention_factor := file.value("{arch}.rope.scaling.attn_factor")) is not None:
        rope = replace(rope, attention_factor=float(attention_factor) * rope_amplitude(rope))
    return rope


def _refused(file: GgufFile, key: str, supported: str, value: object) -> CheckpointError:
    return CheckpointError(file.path, f"{file.architecture}.{key}: supported: {supported}; {value!r} is not supported")
