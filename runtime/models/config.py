"""Model architectures as data: FAMILIES has one row each; parse_config makes a ModelConfig from config.json's fields.

A Llama-like architecture is one row. Its fields say how the decoder block is built and which fields of config.json
complete it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .config_fields import ConfigFields
from .experts_config import MIXTRAL, QWEN2_MOE, QWEN3_MOE, ExpertFamily, ExpertsConfig, parse_experts
from .quantised.config import parse_quantisation
from .quantised.scheme import Quantisation
from .rope_config import RopeConfig, parse_rope

Activation = Literal["silu", "gelu", "gelu_tanh"]
NormKind = Literal["rms", "rms_plus_one", "layer_norm"]
NormPlacement = Literal["pre", "post", "sandwich"]
QkNorm = Literal["per head", "all heads"]
WindowRule = Literal["none", "every layer", "every layer if used", "by layer", "by layer type"]

# Activations by their names in config.json.
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


class Flag(NamedTuple):
    """A boolean field of config.json, and its value when the field is absent."""

    field: str
    default: bool = False


_ATTENTION_BIAS = Flag("attention_bias")


class Family(NamedTuple):
    """One architecture: the data of its decoder block, and the fields of config.json that complete them.

    The defaults describe a Llama block without biases. `None` for a field name means that no field is read.
    """

    qkv_bias: bool | Flag = False
    o_bias: bool | Flag = False
    mlp_bias: bool | Flag = False
    qk_norm: QkNorm | None = None
    windows: WindowRule = "none"
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    experts: ExpertFamily | None = None
    activations: tuple[Activation, ...] = ("silu",)  # accepted values of the activation field
    activation_field: str = "hidden_act"
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # two names: an MLP without a gate
    norm: NormKind = "rms"
    norm_placement: NormPlacement = "pre"
    norm_eps_field: str = "rms_norm_eps"
    scales_embeddings: bool = False  # by sqrt(hidden_size)
    logit_cap_field: str | None = None
    attention_cap_field: str | None = None
    attention_scale_field: str | None = None  # v: scale v ** -0.5 instead of head_dim ** -0.5
    tied_embeddings: bool = False  # when tie_word_embeddings is absent


FAMILIES = {
    "LlamaForCausalLM": Family(_ATTENTION_BIAS, _ATTENTION_BIAS, Flag("mlp_bias")),
    "MistralForCausalLM": Family(windows="every layer"),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows="by layer"),
    "Qwen3ForCausalLM": Family(
        _ATTENTION_BIAS, _ATTENTION_BIAS, qk_norm="per head", windows="by layer", default_head_dim=128
    ),
    "MixtralForCausalLM": Family(windows="every layer", experts=MIXTRAL),
    "Qwen2MoeForCausalLM": Family(Flag("qkv_bias", default=True), experts=QWEN2_MOE),
    "Qwen3MoeForCausalLM": Family(
        _ATTENTION_BIAS, _ATTENTION_BIAS, qk_norm="per head", windows="every layer if used", experts=QWEN3_MOE
    ),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder's sizes and the data of its block, resolved from config.json."""

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
    context_length: int  # tokens of the longest sequence, rope scaling included
    windows: tuple[int | None, ...]  # per layer: W attends to the last W positions, its own included
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: QkNorm | None  # RMS norms of queries and keys before rope
    tied_embeddings: bool
    activation: Activation = "silu"
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # modules of a dense MLP in the checkpoint
    norm: NormKind = "rms"
    norm_placement: NormPlacement = "pre"
    attention_scale: float  # of q k^T
    attention_cap: float | None = None  # c: scores become c * tanh(score / c)
    embedding_scale: float | None = None
    logit_cap: float | None = None  # as `attention_cap`, of the logits
    experts: ExpertsConfig | None = None  # of the layers with a mixture of experts
    quantisation: Quantisation | None = None  # of the checkpoint's tensors

    @property
    def gated_mlp(self) -> bool:
        """True when the MLP multiplies the activated gate by an up projection."""
        return len(self.mlp_names) == 3

    @property
    def linear_inputs(self) -> tuple[int, ...]:
        """Input sizes of the linear layers of attention and MLP."""
        experts = self.experts
        sizes = [self.hidden_size, self.num_heads * self.head_dim]
        if experts is None or not all(experts.layers):
            sizes.append(self.intermediate_size)
        if experts is not None:
            sizes += [experts.intermediate_size, *([experts.shared_size] if experts.shared_size is not None else [])]
        return tuple(sizes)


def parse_config(raw: dict[str, Any], file: Path) -> ModelConfig:
    """Make the ModelConfig of `raw`, the object in config.json. Errors name `file`.

    Raises CheckpointError, naming the field and its value, for an unknown architecture or setting.
    """
    fields = ConfigFields(raw, file)
    architecture = _architecture(fields)
    family = FAMILIES[architecture]
    activation = _activation(fields, family)

    def flag(rule: bool | Flag) -> bool:
        return fields.boolean(rule.field, default=rule.default) if isinstance(rule, Flag) else rule

    def optional(field: str | None) -> float | None:
        return None if field is None or fields.raw.get(field) is None else fields.number(field)

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
    scaled_by = optional(family.attention_scale_field)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number(family.norm_eps_field, default=1e-6),
        rope=rope,
        context_length=rope.context_length(max_positions),
        windows=_windows(fields, family, num_layers),
        qkv_bias=flag(family.qkv_bias),
        o_bias=flag(family.o_bias),
        mlp_bias=flag(family.mlp_bias),
        qk_norm=family.qk_norm,
        tied_embeddings=fields.boolean("tie_word_embeddings", default=family.tied_embeddings),
        activation=activation,
        mlp_names=family.mlp_names,
        norm=family.norm,
        norm_placement=family.norm_placement,
        attention_scale=(head_dim if scaled_by is None else scaled_by) ** -0.5,
        attention_cap=optional(family.attention_cap_field),
        embedding_scale=hidden_size**0.5 if family.scales_embeddings else None,
        logit_cap=optional(family.logit_cap_field),
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


def _activation(fields: ConfigFields, family: Family) -> Activation:
    accepted = [name for name, activation in _ACTIVATIONS.items() if activation in family.activations]
    activation = _ACTIVATIONS[fields.one_of(family.activation_field, accepted, default=accepted[0])]
    if family.experts is not None and (activation != "silu" or len(family.mlp_names) != 3):
        raise fields.unsupported(family.activation_field, f"experts with {activation} or without a gate are")
    return activation


def _windows(fields: ConfigFields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Return each layer's sliding window by the family's rule.

    Mistral and Mixtral use `sliding_window` in every layer; Qwen3-MoE only with `use_sliding_window`. Qwen2 and Qwen3,
    with `use_sliding_window`, use it in the layers that `layer_types` names, or else from `max_window_layers` on.
    The rule "by layer type" follows `layer_types` alone.
    """
    used = fields.boolean("use_sliding_window", default=False)
    if family.windows == "none":
        if used:
            raise fields.unsupported("use_sliding_window", f"for {fields.raw['architectures'][0]} true is")
        return (None,) * num_layers
    if fields.raw.get("sliding_window") is None:
        return (None,) * num_layers
    if not used and family.windows not in ("every layer", "by layer type"):
        return (None,) * num_layers
    window = fields.count("sliding_window")
    if family.windows not in ("by layer", "by layer type"):
        return (window,) * num_layers
    types = fields.raw.get("layer_types")
    if types is None and family.windows == "by layer":
        first = fields.count("max_window_layers", default=28, least=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    kinds = {"sliding_attention": window, "full_attention": None}
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in kinds for kind in types):
        raise fields.invalid("layer_types", f"must name one of {', '.join(kinds)} for each of {num_layers} layers")
    return tuple(kinds[kind] for kind in types)
