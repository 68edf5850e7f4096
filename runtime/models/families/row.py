"""The row of a model family: how its decoder block is built, which fields of config.json complete it, and how its
checkpoints name and lay out tensors. `table` has the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ..experts.config import ExpertFamily
from ..recurrent.config import RecurrentFamily

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
NormKind = Literal["rms", "rms_plus_one", "layer_norm", "layer_norm_plus_one", "layer_norm_no_bias", "layer_norm_plain"]
NormPlacement = Literal["pre", "post", "sandwich", "parallel", "parallel, two norms", "one"]
# without weights: of each head in the layers with positions
QkNorm = Literal["per head", "per head after rope", "all heads", "layer norm per head", "without weights"]
WindowRule = Literal["none", "every layer", "every layer if used", "by layer", "by layer type", "chunks"]
SecondRope = Literal["none where listed", "none in full layers", "own in window layers"]
StoredQkv = Literal["separate", "stacked", "by group"]


class Flag(NamedTuple):
    """A boolean field of config.json, and its value when the field is absent."""

    field: str
    default: bool = False


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
    latent: bool = False  # keys and values are a latent (`latent/`)
    further_layers: tuple[str, ...] = ()  # fields that count stored layers after the last one, which only drafts read
    recurrent: RecurrentFamily | None = None  # of the layers that do not attend
    multipliers: bool = False  # the products of a layer have factors (`recurrent.config.Multipliers`)
    output_gate: bool = False  # attention's output is gated: q_proj has each head's query, then its gate
    activations: tuple[Activation, ...] = ("silu",)  # accepted values of the activation field
    activation_field: str | None = "hidden_act"  # None: the first of `activations`, whatever the file says
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")  # two names: an MLP without a gate
    norm: NormKind = "rms"
    norm_placement: NormPlacement = "pre"
    norm_eps_field: str = "rms_norm_eps"
    scales_embeddings: bool = False  # by sqrt(hidden_size)
    embedding_scale_field: str | None = None
    residual_scale_field: str | None = None  # factor of each part's output
    logit_cap_field: str | None = None
    logit_scale_field: str | None = None  # factor of the logits
    logit_divisor_field: str | None = None
    attention_cap_field: str | None = None
    attention_scale_field: str | None = None  # v: scale v ** -0.5 instead of head_dim ** -0.5
    attention_factor_field: str | None = None  # the scale itself
    query_scales: bool = False  # queries of layers without positions grow with their position (attn_temperature_tuning)
    sinks: bool = False  # each head has a logit without a value in its softmax
    tied_embeddings: bool = False  # when tie_word_embeddings is absent
    rounded_mlp_size: bool = False  # the MLP's size is made from intermediate_size, by the fields `block_...`
    head_bias: bool = False
    learned_positions: int | None = None  # row of the position embedding that is position 0; None: there is none
    second_rope: SecondRope | None = None
    rope_switch_field: str | None = None  # attention has positions only where this field says "rope"
    interleaved_rope: bool = False  # pairs (2i, 2i + 1) of a head's dimensions, instead of (i, i + D / 2)
    rotary_field: str | None = None  # older field with the share (or, named "...dim", the number) of rotating sizes
    stored_qkv: StoredQkv = "separate"  # one tensor: all queries, keys, values; or those of each key/value head
    stored_gate_up: Literal["separate", "stacked"] = "separate"
    transposed: bool = False  # the layers' matrices are stored [in, out]
    renames: tuple[tuple[str, str], ...] = ()  # patterns in stored names, and their replacements, to Llama's names
    skipped: str | None = None  # pattern of tensors that are not read, such as those of a vision tower
    tower: tuple[str, ...] = ()  # modules of a vision tower that is computed: the tower's, then its projector's
    axes_by_turns: bool = False  # pairs of a head turn by the numbers of a position by turns, not in sections
    text_types: tuple[str, ...] = ()  # of a multimodal model: accepted `model_type` of its text_config
    aliases: Mapping[str, str] = {}  # Llama's name of a field: the family's own
    defaults: Mapping[str, Any] = {}  # values of fields that are absent
    required: Mapping[str, Any] = {}  # values that fields must have where they are present; others are refused
    variants: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = ()  # field values, and what they change here


# Patterns in stored names of tensors, and their replacements, to Llama's names.
GPT_NEOX_NAMES = (
    (r"^gpt_neox\.", "model."),
    (r"^model\.embed_in\.", "model.embed_tokens."),
    (r"^model\.final_layer_norm\.", "model.norm."),
    (r"^embed_out\.", "lm_head."),
    (r"\.attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.attention\.dense\.", ".self_attn.o_proj."),
)
GPT2_NAMES = (
    (r"^(transformer\.)?h\.", "model.layers."),
    (r"^(transformer\.)?wte\.", "model.embed_tokens."),
    (r"^(transformer\.)?wpe\.", "model.embed_positions."),
    (r"^(transformer\.)?ln_f\.", "model.norm."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_attn\.", ".self_attn.qkv_proj."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
)
FALCON_NAMES = (
    (r"^transformer\.h\.", "model.layers."),
    (r"^transformer\.word_embeddings\.", "model.embed_tokens."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"\.ln_attn\.", ".input_layernorm."),
    (r"\.ln_mlp\.", ".post_attention_layernorm."),
    (r"\.self_attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
)
OPT_NAMES = (
    (r"^(model\.)?decoder\.", "model."),
    (r"^model\.final_layer_norm\.", "model.norm."),
    (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.self_attn_layer_norm\.", ".input_layernorm."),
    (r"(\.\d+)\.final_layer_norm\.", r"\1.post_attention_layernorm."),
    (r"(\.\d+)\.(fc[12])\.", r"\1.mlp.\2."),
)
