"""The ModelConfig of a checkpoint, made from config.json's fields as the row of its family says (`families.table`)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ...kernels import Chunk, StreamingSizes
from .config_fields import ConfigFields
from .experts.config import ExpertsConfig, parse_experts
from .families.positions import parse_positions
from .families.row import Activation, Family, Flag, NormKind, NormPlacement, QkNorm, StoredQkv
from .families.table import FAMILIES
from .latent.config import LatentConfig, latent_scale, parse_latent
from .quantised.config import parse_quantisation
from .quantised.scheme import Quantisation
from .recurrent.config import Multipliers, RecurrentConfig, layer_kinds, parse_multipliers, parse_recurrent
from .rope.config import RopeConfig

# Activations by their names in config.json.
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}


class QueryScales(NamedTuple):
    """Factors of queries by their position p: `1 + strength * log(1 + floor((p + 1) / length))`."""

    strength: float
    length: float


class StoredLayout(NamedTuple):
    """How checkpoints of the family name and lay out tensors, where they differ from Llama's."""

    qkv: StoredQkv = "separate"
    stacked_gate_up: bool = False
    transposed: bool = False  # the layers' matrices are [in, out]
    interleaved_rope: bool = False  # a head's dimensions (2i, 2i + 1) rotate together
    renames: tuple[tuple[str, str], ...] = ()
    skipped: str | None = None


LLAMA_LAYOUT = StoredLayout()

LayerPart = Literal["both", "mixer", "mlp"]  # a mixer attends or is recurrent

CLASSIFICATION_HEAD = r"(score|classifier)\."
_MAX_LAYERS = 10_000  # parse_config makes a value for each


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
    second_rope: RopeConfig | None = None  # of the layers in `second_rope_layers`
    second_rope_layers: tuple[bool, ...] = ()  # empty: none
    learned_positions: int | None = None  # rows of the position embedding before position 0; None: it has none
    context_length: int  # tokens of the longest sequence, rope scaling included
    streaming: StreamingSizes | None = None  # of layers whose window is its window; they attend to sinks too
    windows: tuple[int | None, ...]  # per layer: W attends to the last W positions, its own included
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: QkNorm | None  # RMS norms of queries and keys before rope
    tied_embeddings: bool
    classifies: bool = False  # the checkpoint ends in a classification head, which is computed apart
    activation: Activation = "silu"
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # modules of a dense MLP in the checkpoint
    norm: NormKind = "rms"
    norm_placement: NormPlacement = "pre"
    attention_scale: float  # of q k^T
    query_scales: QueryScales | None = None  # of the layers in `second_rope_layers`
    sinks: bool = False  # each head has a logit without a value in its softmax
    attention_cap: float | None = None  # c: scores become c * tanh(score / c)
    embedding_scale: float | None = None
    residual_scale: float | None = None  # of each part's output, before it is added to the residual stream
    logit_scale: float | None = None
    logit_cap: float | None = None  # as `attention_cap`, of the logits
    head_bias: bool = False
    stored: StoredLayout = LLAMA_LAYOUT
    experts: ExpertsConfig | None = None  # of the layers with a mixture of experts
    latent: LatentConfig | None = None  # keys and values are one head of latents; its size is `head_dim`
    recurrent: RecurrentConfig | None = None  # of the layers that keep a state instead of keys and values, or beside
    multipliers: Multipliers | None = None  # of layers that attend and keep a state
    mlp_layers: tuple[bool, ...] = ()  # True: an MLP alone, False: a mixer alone; empty: every layer has both
    output_gate: bool = False  # a head's attention output is multiplied by the sigmoid of a gate
    quantisation: Quantisation | None = None  # of the checkpoint's tensors
    counted_parameters: int | None = None  # of a model that transformers computes; None: it is a native one

    @property
    def tower(self) -> tuple[str, ...]:
        """Modules of the vision tower that is computed, as `Family.tower`; none: the model reads text only."""
        return FAMILIES[self.architecture].tower if self.is_native and self.architecture in FAMILIES else ()

    @property
    def is_native(self) -> bool:
        """True when the model is computed here, and not by transformers."""
        return self.counted_parameters is None

    @property
    def num_kv_layers(self) -> int:
        """Number of layers that have keys and values."""
        return (
            self.num_layers - sum(self.mlp_layers) - (0 if self.recurrent is None else self.recurrent.num_not_attending)
        )

    @property
    def num_mlps(self) -> int:
        """Number of layers that have an MLP."""
        return sum(self.mlp_layers) or self.num_layers

    def is_recurrent(self, layer: int) -> bool:
        """Return True when the layer keeps a state instead of keys and values."""
        own = self.recurrent
        return own is not None and own.layers[layer] and not own.family.parallel

    def part(self, layer: int) -> LayerPart:
        """Return which parts the layer has."""
        if not self.mlp_layers:
            return "both"
        return "mlp" if self.mlp_layers[layer] else "mixer"

    @property
    def gated_mlp(self) -> bool:
        """True when the MLP multiplies the activated gate by an up projection."""
        return len(self.mlp_names) == 3

    @property
    def rope_dim(self) -> int:
        """Dimensions of a head that the rotary embedding is made for."""
        return self.head_dim if self.latent is None else self.latent.rope_size

    @property
    def output_dim(self) -> int:
        """Numbers of a head's output of attention."""
        return self.head_dim if self.latent is None else self.latent.value_size

    @property
    def num_kv_parts(self) -> int:
        """Tensors of the KV cache: 2, keys and values, or 1 where values are a part of the keys."""
        return 2 if self.latent is None else 1

    def uses_second_rope(self, layer: int) -> bool:
        """Return True when the layer rotates by `second_rope`."""
        return bool(self.second_rope_layers) and self.second_rope_layers[layer]

    def within(self, context_length: int) -> ModelConfig:
        """Return the config for sequences of at most `context_length` tokens."""
        # A chunk that holds the whole context hides nothing.
        windows = tuple(None if isinstance(w, Chunk) and w >= context_length else w for w in self.windows)
        return replace(self, rope=self.rope.within(context_length), windows=windows)

    def streamed(self, streaming: StreamingSizes) -> ModelConfig:
        """Return the config with sinks and a rolling window in all layers that look farther back.

        Raises ValueError with the reason when positions within what is kept cannot be computed.
        """
        reach = streaming.window + streaming.num_sinks
        windows = tuple(
            streaming.window if window is None or window >= streaming.window else window for window in self.windows
        )
        rope = self.rope.within(reach)
        seconds = {self.uses_second_rope(layer) for layer, own in enumerate(windows) if own == streaming.window}
        reasons = {
            "transformers computes it": not self.is_native,
            "its attention is latent": self.latent is not None,
            "it has recurrent layers": self.recurrent is not None,
            "it attends in chunks": any(isinstance(window, Chunk) for window in self.windows),
            "its queries are scaled by their positions": self.query_scales is not None,
            "its positions are learned": self.learned_positions is not None,
            "its rotary scaling depends on the length": rope.depends_on_length,
            "its layers without a window rotate in two ways": len(seconds) > 1,
            f"what is kept is longer than its context of {self.context_length} tokens": reach > self.context_length,
        }
        if (reason := next((reason for reason, holds in reasons.items() if holds), None)) is not None:
            raise ValueError(reason)
        return replace(self, rope=rope, windows=windows, streaming=streaming)

    @property
    def linear_inputs(self) -> tuple[int, ...]:
        """Input sizes of the linear layers of attention and MLP."""
        experts = self.experts
        sizes = [self.hidden_size, self.num_heads * self.output_dim]
        if self.recurrent is not None:
            sizes.append(self.recurrent.inner)
        if self.latent is not None:
            sizes += [self.latent.rank, *([self.latent.query_rank] if self.latent.query_rank is not None else [])]
        if experts is None or not all(experts.layers):
            sizes.append(self.intermediate_size)
        if experts is not None:
            sizes += [experts.intermediate_size, *([experts.shared_size] if experts.shared_size is not None else [])]
            sizes += [] if experts.latent_size is None else [experts.latent_size]
        return tuple(sizes)


def parse_config(raw: dict[str, Any], file: Path) -> ModelConfig:
    """Make the ModelConfig of `raw`, the object in config.json. Errors name `file`.

    Raises CheckpointError, naming the field and its value, for an unknown architecture or setting.
    """
    architecture, classifies = _architecture(ConfigFields(raw, file))
    family, fields = _family_fields(FAMILIES[architecture], raw, file)
    kinds = layer_kinds(fields) if family.recurrent is not None and family.recurrent.one_part else []
    num_layers = len(kinds) or fields.count("num_hidden_layers", most=_MAX_LAYERS)
    hidden_size, num_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    latent = parse_latent(fields) if family.latent else None
    num_kv_heads, head_dim = _head_sizes(fields, family, latent, num_heads, hidden_size)
    positions = parse_positions(fields, family, num_layers, head_dim, head_dim if latent is None else latent.rope_size)
    quantisation = parse_quantisation(fields.nested("quantization_config"), family.renames)
    experts = _experts_as_stored(fields, _experts(fields, family, num_layers, kinds), quantisation)
    attention_scale = _attention_scale(fields, family, latent, positions.rope, head_dim)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_mlp_size(fields, family, hidden_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number(family.norm_eps_field, default=1e-6),
        rope=positions.rope,
        second_rope=positions.second_rope,
        second_rope_layers=positions.second_rope_layers,
        learned_positions=family.learned_positions,
        context_length=positions.context_length,
        windows=positions.windows,
        qkv_bias=_flag(fields, family.qkv_bias),
        o_bias=_flag(fields, family.o_bias),
        mlp_bias=_flag(fields, family.mlp_bias),
        qk_norm=family.qk_norm,
        tied_embeddings=classifies or fields.boolean("tie_word_embeddings", default=family.tied_embeddings),
        classifies=classifies,
        activation=_activation(fields, family),
        mlp_names=family.mlp_names,
        norm=family.norm,
        norm_placement=family.norm_placement,
        attention_scale=attention_scale,
        query_scales=_query_scales(fields) if family.query_scales else None,
        sinks=family.sinks,
        attention_cap=_optional(fields, family.attention_cap_field),
        embedding_scale=_embedding_scale(fields, family, hidden_size),
        residual_scale=_optional(fields, family.residual_scale_field),
        logit_scale=_logit_scale(fields, family),
        logit_cap=_optional(fields, family.logit_cap_field),
        head_bias=family.head_bias,
        stored=_stored_layout(fields, family, num_layers, classifies),
        latent=latent,
        experts=experts,
        recurrent=None if family.recurrent is None else parse_recurrent(fields, family.recurrent, num_layers),
        multipliers=parse_multipliers(fields) if family.multipliers else None,
        mlp_layers=tuple(kind in ("mlp", "moe") for kind in kinds),
        output_gate=family.output_gate,
        quantisation=quantisation,
    )


def _flag(fields: ConfigFields, rule: bool | Flag) -> bool:
    return fields.boolean(rule.field, default=rule.default) if isinstance(rule, Flag) else rule


def _optional(fields: ConfigFields, field: str | None) -> float | None:
    return None if field is None or fields.raw.get(field) is None else fields.number(field)


def _family_fields(family: Family, raw: dict[str, Any], file: Path) -> tuple[Family, ConfigFields]:
    """Return the family's row with its variants applied, and the fields by Llama's names with defaults filled in."""
    if family.text_types:
        outer, raw = raw, raw.get("text_config") or raw
        kept = ("architectures", "quantization_config", "tie_word_embeddings")
        raw = {**raw, **{name: outer[name] for name in kept if outer.get(name) is not None}}
        ConfigFields(raw, file, "text_config.").one_of("model_type", family.text_types, default=family.text_types[0])
    present = {**family.defaults, **raw}  # a field that is null has no default
    for field, accepted in family.required.items():
        if present.get(field) is not None and present[field] != accepted:
            raise ConfigFields(raw, file).unsupported(field, f"for {raw['architectures'][0]} {present[field]!r} is")
    for values, changes in family.variants:
        if all(present.get(field) == value for field, value in values.items()):
            family = family._replace(**changes)
    named = {name: _same(present[own]) for name, own in family.aliases.items() if own in present}
    return family, ConfigFields(present | named, file)


def _head_sizes(
    fields: ConfigFields, family: Family, latent: LatentConfig | None, num_heads: int, hidden_size: int
) -> tuple[int, int]:
    """Return the number of heads of keys and values, and the size of a head. Raises CheckpointError."""
    if latent is not None:
        num_kv_heads, head_dim = 1, latent.key_size
    else:
        num_kv_heads = fields.count("num_key_value_heads", default=num_heads)
        head_dim = fields.count("head_dim", default=family.default_head_dim or max(1, hidden_size // num_heads))
    if num_heads % num_kv_heads:
        raise fields.invalid("num_key_value_heads", f"does not divide num_attention_heads {num_heads}")
    if head_dim % 2 and "head_dim" in fields.raw:
        raise fields.invalid("head_dim", "must be even")
    if head_dim % 2:
        raise fields.invalid("hidden_size", f"gives num_attention_heads {num_heads} an odd head size")
    return num_kv_heads, head_dim


def _attention_scale(
    fields: ConfigFields, family: Family, latent: LatentConfig | None, rope: RopeConfig, head_dim: int
) -> float:
    scaled_by = _optional(fields, family.attention_scale_field)
    factor = _optional(fields, family.attention_factor_field)
    if latent is not None:
        factor = latent_scale(fields, latent, rope)
    return (head_dim if scaled_by is None else scaled_by) ** -0.5 if factor is None else factor


def _embedding_scale(fields: ConfigFields, family: Family, hidden_size: int) -> float | None:
    return hidden_size**0.5 if family.scales_embeddings else _optional(fields, family.embedding_scale_field)


def _logit_scale(fields: ConfigFields, family: Family) -> float | None:
    divisor = _optional(fields, family.logit_divisor_field)
    return _optional(fields, family.logit_scale_field) if divisor is None else 1 / divisor


def _experts(fields: ConfigFields, family: Family, num_layers: int, kinds: list[str]) -> ExpertsConfig | None:
    if family.experts is None or (kinds and "moe" not in kinds):
        return None
    experts = parse_experts(fields, family.experts, num_layers)
    if not kinds:
        return experts
    shared = experts.shared_size and fields.count("moe_shared_expert_intermediate_size")
    latent = None if fields.raw.get("moe_latent_size") is None else fields.count("moe_latent_size")
    layers = tuple(kind == "moe" for kind in kinds)
    return replace(experts, layers=layers, shared_size=shared, latent_size=latent)


def _mlp_size(fields: ConfigFields, family: Family, hidden_size: int) -> int:
    size = fields.count("intermediate_size", default=4 * hidden_size if "intermediate_size" in family.aliases else None)
    if not family.rounded_mlp_size or not fields.boolean("block_auto_adjust_ff_dim", default=True):
        return size
    size = int(2 * size / 3)
    if fields.raw.get("block_ffn_dim_multiplier", 1.0) is None:  # as transformers has it
        return size
    multiple = fields.count("block_multiple_of", default=256)
    return -(-int(fields.number("block_ffn_dim_multiplier", default=1.0) * size) // multiple) * multiple


def _same(value: Any) -> Any:
    """Return the value that a list has for every layer; other values as they are."""
    return value[0] if isinstance(value, list) and value and all(one == value[0] for one in value) else value


def _experts_as_stored(
    fields: ConfigFields, experts: ExpertsConfig | None, quantisation: Quantisation | None
) -> ExpertsConfig | None:
    """Return the experts as a quantised checkpoint stores them: one by one, and MXFP4 of gpt-oss in one tensor.

    Raises CheckpointError for MXFP4 in one tensor where the family stores none.
    """
    if quantisation is None:
        return experts
    if quantisation.scheme.source != "mxfp4":
        return None if experts is None else replace(experts, stacked=None)
    if experts is None or experts.stacked is None:
        raise fields.nested("quantization_config").unsupported("quant_method", "'mxfp4' without gpt-oss's experts is")
    return experts


def _stored_layout(fields: ConfigFields, family: Family, num_layers: int, classifies: bool) -> StoredLayout:
    skipped = [_skipped(fields, family, num_layers), CLASSIFICATION_HEAD if classifies else None]
    return StoredLayout(
        family.stored_qkv,
        family.stored_gate_up == "stacked",
        family.transposed,
        family.interleaved_rope,
        family.renames,
        "|".join(filter(None, skipped)) or None,
    )


def _skipped(fields: ConfigFields, family: Family, num_layers: int) -> str | None:
    """Return the pattern of tensors that are not read; some families store further layers after the last one."""
    count = max((fields.count(name, default=0, least=0, most=_MAX_LAYERS) for name in family.further_layers), default=0)
    if count == 0:
        return family.skipped
    layers = "|".join(str(num_layers + index) for index in range(count))
    return rf"model\.layers\.({layers})\." + ("" if family.skipped is None else f"|{family.skipped}")


def _query_scales(fields: ConfigFields) -> QueryScales | None:
    # Older files have a number.
    if fields.raw.get("attn_temperature_tuning") in (False, 0):
        return None
    return QueryScales(fields.number("attn_scale", default=0.1), fields.number("floor_scale", default=8192.0))


def _architecture(fields: ConfigFields) -> tuple[str, bool]:
    """Return the family's class, and True if the checkpoint's is the same decoder with a classification head."""
    names = fields.raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise fields.invalid("architectures", "must list the model's class")
    name = re.sub(r"ForSequenceClassification$", "ForCausalLM", names[0])
    if name not in FAMILIES:
        raise fields.unsupported("architectures", f"supported: {', '.join(FAMILIES)}; {names[0]!r} is")
    return name, name != names[0]


def _activation(fields: ConfigFields, family: Family) -> Activation:
    if family.activation_field is None:
        return family.activations[0]
    accepted = [name for name, activation in _ACTIVATIONS.items() if activation in family.activations]
    default = next(name for name in accepted if _ACTIVATIONS[name] == family.activations[0])
    activation = _ACTIVATIONS[fields.one_of(family.activation_field, accepted, default=default)]
    gated_experts = family.experts is not None and family.experts.names.gate != ""
    if gated_experts and (activation != "silu" or len(family.mlp_names) != 3):
        raise fields.unsupported(family.activation_field, f"experts with {activation} or without a gate are")
    return activation
