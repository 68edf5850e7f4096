"""What a checkpoint's `config.json` says of its decoder, as data. Knows the supported families; opens no weights.

A family is a row of `FAMILIES`: seven architectures differ in biases, query/key norms, where windows come from
and what their MLPs are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .config_fields import ConfigFields, read_json_object
from .errors import CheckpointError
from .experts_config import MIXTRAL, QWEN2_MOE, QWEN3_MOE, ExpertFamily, ExpertsConfig, parse_experts
from .gguf.file import is_gguf, open_gguf
from .quantised.config import parse_quantisation
from .quantised.scheme import Quantisation
from .rope_config import RopeConfig, parse_rope


class Family(NamedTuple):
    """How an architecture reads its config. `bias` fields: "config" means the field of that name decides."""

    qkv_bias: bool | Literal["config"]
    o_bias: bool | Literal["config"]
    mlp_bias: bool | Literal["config"]
    qk_norm: bool
    windows: Literal["none", "every layer", "every layer if used", "by layer"]
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    experts: ExpertFamily | None = None
    bias_field: str = "attention_bias"


FAMILIES = {
    "LlamaForCausalLM": Family("config", "config", "config", qk_norm=False, windows="none"),
    "MistralForCausalLM": Family(False, False, False, qk_norm=False, windows="every layer"),
    "Qwen2ForCausalLM": Family(True, False, False, qk_norm=False, windows="by layer"),
    "Qwen3ForCausalLM": Family("config", "config", False, qk_norm=True, windows="by layer", default_head_dim=128),
    "MixtralForCausalLM": Family(False, False, False, qk_norm=False, windows="every layer", experts=MIXTRAL),
    "Qwen2MoeForCausalLM": Family(
        "config", False, False, qk_norm=False, windows="none", experts=QWEN2_MOE, bias_field="qkv_bias"
    ),
    "Qwen3MoeForCausalLM": Family(
        "config", "config", False, qk_norm=True, windows="every layer if used", experts=QWEN3_MOE
    ),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int  # of dense MLPs
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    context_length: int  # the longest sequence the model is meant for, rope scaling included
    windows: tuple[int | None, ...]  # per layer: W sees the last W positions, its own among them
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    experts: ExpertsConfig | None = None  # of the layers that are mixtures
    quantisation: Quantisation | None = None  # of what the checkpoint stores

    @property
    def linear_inputs(self) -> tuple[int, ...]:
        """The sizes that linear layers of attention and MLP take in."""
        experts = self.experts
        sizes = [self.hidden_size, self.num_heads * self.head_dim]
        if experts is None or not all(experts.layers):
            sizes.append(self.intermediate_size)
        if experts is not None:
            sizes += [experts.intermediate_size, *([experts.shared_size] if experts.shared_size is not None else [])]
        return tuple(sizes)


def read_config(path: Path) -> ModelConfig:
    """The config of the checkpoint in directory `path`, or of the GGUF file `path`.

    Raises CheckpointError when there is none, it is not JSON, or it asks for what we do not compute: the error names
    the field and its value.
    """
    if not path.exists():
        raise CheckpointError(path, "no such model directory")
    if is_gguf(path):
        whole = open_gguf(path)  # says so when the package that reads it is not installed
        from .gguf.config import read_gguf_config

        return read_gguf_config(whole)
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(path, "not a Hugging Face checkpoint: it has no config.json")
    return parse_config(read_json_object(file), file)


def parse_config(raw: dict[str, Any], file: Path) -> ModelConfig:
    """The ModelConfig of `raw`, the object in config.json; `file` is named in errors."""
    fields = ConfigFields(raw, file)
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    fields.one_of("hidden_act", ("silu", "swish"), default="silu")

    def flag(rule: bool | Literal["config"], field: str) -> bool:
        # Only Qwen2-MoE has biases when the field that speaks of them is absent.
        return fields.boolean(field, default=field == "qkv_bias") if rule == "config" else rule

    num_layers = fields.count("num_hidden_layers")
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    num_kv_heads = fields.count("num_key_value_heads", default=num_heads)
    head_dim = fields.count("head_dim", default=family.default_head_dim or max(1, hidden_size // num_heads))
    if num_heads % num_kv_heads:
        raise fields.invalid("num_key_value_heads", f"does not divide num_attention_heads {num_heads}")
    if head_dim % 2:
        raise (
            fields.invalid("head_dim", "must be even")
            if "head_dim" in raw
            else fields.invalid("hidden_size", f"gives num_attention_heads {num_heads} an odd head size")
        )
    max_positions = fields.count("max_position_embeddings")
    rope = parse_rope(fields, max_positions)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        rope=rope,
        context_length=rope.context_length(max_positions),
        windows=_windows(fields, family, num_layers),
        qkv_bias=flag(family.qkv_bias, family.bias_field),
        o_bias=flag(family.o_bias, "attention_bias"),
        mlp_bias=flag(family.mlp_bias, "mlp_bias"),
        qk_norm=family.qk_norm,
        tied_embeddings=fields.boolean("tie_word_embeddings", default=False),
        experts=None if family.experts is None else parse_experts(fields, family.experts, num_layers),
        quantisation=parse_quantisation(fields.nested("quantization_config")),
    )


def _architecture(fields: ConfigFields) -> str:
    names = fields.raw.get("architectures")
    if not isinstance(names, list) or not names:
        raise fields.invalid("architectures", "must list the model's class")
    if names[0] not in FAMILIES:
        raise fields.unsupported("architectures", f"supported: {', '.join(FAMILIES)}; {names[0]!r} is")
    return str(names[0])


def _windows(fields: ConfigFields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Mistral and Mixtral: `sliding_window` everywhere; Qwen3-MoE too, but only with `use_sliding_window`. Qwen, with
    that: on the layers that `layer_types` names, or without it on those from `max_window_layers` on."""
    used = fields.boolean("use_sliding_window", default=False)
    if family.windows == "none":
        if used:
            raise fields.unsupported("use_sliding_window", f"for {fields.raw['architectures'][0]} true is")
        return (None,) * num_layers
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    if not used and family.windows != "every layer":
        return (None,) * num_layers
    window = fields.count("sliding_window")
    if family.windows != "by layer":
        return (window,) * num_layers
    types = fields.raw.get("layer_types")
    if types is None:
        first = fields.count("max_window_layers", default=28, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    kinds = {"sliding_attention": window, "full_attention": None}
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in kinds for kind in types):
        raise fields.invalid("layer_types", f"must name one of {', '.join(kinds)} for each of {num_layers} layers")
    return tuple(kinds[kind] for kind in types)
