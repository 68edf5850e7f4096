"""Configuration of recurrent layers, from config.json: which layers they are, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from ..config_fields import ConfigFields

RecurrentKind = Literal["gated delta", "mamba2", "mamba1", "short convolution"]
StoredProjections = Literal["by key head", "separate", "gate first", "as computed"]
OutputNorm = Literal["before the gate", "behind the gate", "none"]


class RecurrentFamily(NamedTuple):
    """How an architecture describes and stores its recurrent layers."""

    kind: RecurrentKind
    block: str  # module of the layer, below `model.layers.N`
    # Order of the input projection's rows: those of each key head together in two tensors; one tensor for each part;
    # or one tensor, the gate's rows first or in the order here.
    stored: StoredProjections
    one_part: bool = False  # a layer is a mixer (attention or recurrent) or an MLP, not both
    parallel: bool = False  # every layer attends and is recurrent: both parts read its input, and their outputs add up


QWEN3_NEXT = RecurrentFamily("gated delta", "linear_attn", "by key head")
QWEN3_5 = RecurrentFamily("gated delta", "linear_attn", "separate")
MAMBA2 = RecurrentFamily("mamba2", "mamba", "gate first")
NEMOTRON_H = RecurrentFamily("mamba2", "mamba", "gate first", one_part=True)
FALCON_H1 = RecurrentFamily("mamba2", "mamba", "gate first", parallel=True)
JAMBA = RecurrentFamily("mamba1", "mamba", "as computed")
LFM2 = RecurrentFamily("short convolution", "conv", "as computed")


# Layers of one part by the letters of Nemotron-H's pattern, and by their names in older files.
_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
_OLDER_KINDS = {"mamba": "linear_attention", "attention": "full_attention"}


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Sizes of the recurrent layers. A state has a matrix [key_size, value_size] for each head.

    In Mamba2's terms a key head is a group, a key the matrix B, a query the matrix C, a value the input x. Mamba1 is
    one head whose values are all channels. A short convolution has no matrix: it is one head without keys, whose input
    projection is two gates around its channels.
    """

    family: RecurrentFamily
    layers: tuple[bool, ...]  # True for recurrent layers; the others attend
    num_key_heads: int
    num_heads: int
    key_size: int
    value_size: int
    conv_width: int
    conv_bias: bool = False
    projection_bias: bool = False
    output_bias: bool = False  # of the output projection
    norm: OutputNorm = "behind the gate"  # of each head of a gated delta net, or of each group of Mamba2's
    step_limit: tuple[float, float] = (0.0, float("inf"))  # of Mamba2's time steps
    step_rank: int = 0  # inputs of the product that makes Mamba1's time steps

    @property
    def num_layers(self) -> int:
        """Number of recurrent layers."""
        return sum(self.layers)

    @property
    def is_delta(self) -> bool:
        """True for gated delta nets."""
        return self.family.kind == "gated delta"

    @property
    def is_short(self) -> bool:
        """True for short convolutions, gated before and after, without a recurrence."""
        return self.family.kind == "short convolution"

    @property
    def is_selective(self) -> bool:
        """True for Mamba1, whose keys, queries and time steps are products of the convolution's output."""
        return self.family.kind == "mamba1"

    @property
    def selected(self) -> int:
        """Outputs of the product that makes Mamba1's time steps, keys and queries."""
        return self.step_rank + 2 * self.key_size

    @property
    def inner(self) -> int:
        """Size of the layer's output, all heads together."""
        return self.num_heads * self.value_size

    @property
    def conv_sizes(self) -> tuple[int, int, int]:
        """Channels of the convolution: queries, keys, values of a gated delta net; x, B, C of Mamba2; else x alone."""
        if self.is_selective:
            return self.inner, 0, 0
        keys = self.num_key_heads * self.key_size
        return (keys, keys, self.inner) if self.is_delta else (self.inner, keys, keys)

    @property
    def conv_channels(self) -> int:
        return sum(self.conv_sizes)

    @property
    def num_scalars(self) -> int:
        """Outputs of the input projection that are one number for each head: beta and decay, or Mamba2's time step."""
        return self.num_heads * {"gated delta": 2, "mamba2": 1}.get(self.family.kind, 0)

    @property
    def projected(self) -> int:
        """Outputs of the input projection: the convolution's channels, the gate, the scalars; or a short convolution's
        gate before, gate behind and channels."""
        return self.conv_channels + self.inner * (1 + self.is_short) + self.num_scalars

    @property
    def norm_size(self) -> int:
        """Weights of the norm of the output: of one head, or of all; 0: there is none."""
        if self.norm == "none":
            return 0
        return self.value_size if self.is_delta else self.inner

    @property
    def norm_width(self) -> int:
        """Numbers of the output that are normalised together."""
        return self.value_size if self.is_delta else self.inner // self.num_key_heads

    @property
    def num_not_attending(self) -> int:
        """Number of layers without keys and values."""
        return 0 if self.family.parallel else self.num_layers

    @property
    def num_rates(self) -> int:
        """Heads that have a decay and a bias of their time step."""
        return 0 if self.is_short else self.num_heads

    @property
    def num_own_parameters(self) -> int:
        """Parameters of a layer beside its two projections."""
        scalars = {"gated delta": 2, "mamba2": 3}.get(self.family.kind, 0)
        conv = self.conv_channels * (self.conv_width + self.conv_bias)
        if self.is_selective:
            products = self.inner * (self.selected + self.step_rank)
            return conv + products + self.selected + self.inner * (self.key_size + 2)
        return conv + scalars * self.num_heads + self.norm_size

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of one slot: the float32 states and the convolutions' last inputs of all layers."""
        conv = (self.conv_width - 1) * self.conv_channels * dtype.itemsize
        return self.num_layers * (4 * self.num_heads * self.key_size * self.value_size + conv)


class Multipliers(NamedTuple):
    """Factors of the products of a layer that attends and is recurrent (Falcon-H1)."""

    attention_in: float  # of attention's inputs
    key: float  # of keys
    attention_out: float  # of the output projection's outputs
    recurrent_in: float
    recurrent: tuple[float, ...]  # of the input projection's gate, x, B, C and time steps
    recurrent_out: float
    gate: float  # of the MLP's gate, before its activation
    down: float


def layer_kinds(fields: ConfigFields) -> list[str]:
    """Return the kind of each layer of a model whose layers have one part: linear_attention, full_attention, mlp or
    moe. Raises CheckpointError, naming the field."""
    types, pattern = fields.raw.get("layers_block_type"), fields.raw.get("hybrid_override_pattern")
    if types is None and isinstance(pattern, str):
        types, field, known = list(pattern), "hybrid_override_pattern", _LETTERS
    else:
        field, known = "layers_block_type", {**{kind: kind for kind in _LETTERS.values()}, **_OLDER_KINDS}
    if not isinstance(types, list) or not types or not all(isinstance(kind, str) and kind in known for kind in types):
        raise fields.invalid(field, f"must name one of {', '.join(known)} for each layer")
    kinds = [known[kind] for kind in types]
    if "full_attention" not in kinds:
        raise fields.unsupported(field, "a model without a layer of attention is")
    if "linear_attention" not in kinds:
        raise fields.unsupported(field, "a model without a recurrent layer is")
    return kinds


def parse_recurrent(fields: ConfigFields, family: RecurrentFamily, num_layers: int) -> RecurrentConfig | None:
    """Read the fields of recurrent layers; return None if all layers attend (Granite 4.0 Micro). Raises
    CheckpointError, naming the field."""
    layers = _recurrent_layers(fields, family, num_layers)
    if not any(layers):
        return None
    match family.kind:
        case "gated delta":
            return _gated_delta(fields, family, layers)
        case "mamba2":
            return _mamba2(fields, family, layers)
        case "mamba1":
            return _mamba1(fields, family, layers)
        case "short convolution":
            return _short_convolution(fields, family, layers)


def _gated_delta(fields: ConfigFields, family: RecurrentFamily, layers: tuple[bool, ...]) -> RecurrentConfig:
    fields.one_of("hidden_act", ("silu", "swish"), default="silu")
    num_key_heads, num_heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    if num_heads % num_key_heads:
        raise fields.invalid("linear_num_value_heads", f"is no multiple of linear_num_key_heads {num_key_heads}")
    return RecurrentConfig(
        family=family,
        layers=layers,
        num_key_heads=num_key_heads,
        num_heads=num_heads,
        key_size=fields.count("linear_key_head_dim"),
        value_size=fields.count("linear_value_head_dim"),
        conv_width=fields.count("linear_conv_kernel_dim", least=2),
        norm="before the gate",
    )


def _mamba2(fields: ConfigFields, family: RecurrentFamily, layers: tuple[bool, ...]) -> RecurrentConfig:
    num_heads, groups = fields.count("mamba_n_heads"), fields.count("mamba_n_groups")
    if family.one_part:
        inner = num_heads * fields.count("mamba_d_head")
    elif fields.raw.get("mamba_d_ssm") is not None:
        inner = fields.count("mamba_d_ssm")
    else:
        inner = fields.count("mamba_expand") * fields.count("hidden_size")
    if inner % num_heads or num_heads % groups:
        raise fields.invalid("mamba_n_heads", f"must divide {inner} and be a multiple of mamba_n_groups {groups}")
    if fields.raw.get("mamba_d_head") not in (None, "auto", inner // num_heads):
        raise fields.invalid("mamba_d_head", f"must be {inner // num_heads}")
    bias = fields.boolean("mamba_proj_bias", default=False)
    return RecurrentConfig(
        family=family,
        layers=layers,
        num_key_heads=groups,
        num_heads=num_heads,
        key_size=fields.count("mamba_d_state"),
        value_size=inner // num_heads,
        conv_width=fields.count("mamba_d_conv", least=2),
        conv_bias=fields.boolean("mamba_conv_bias", default=True),
        projection_bias=bias,
        output_bias=fields.boolean("projectors_bias", default=False) if family.parallel else bias,
        norm=_parallel_norm(fields) if family.parallel else "behind the gate",
        step_limit=_step_limit(fields),
    )


def _mamba1(fields: ConfigFields, family: RecurrentFamily, layers: tuple[bool, ...]) -> RecurrentConfig:
    hidden_size, bias = fields.count("hidden_size"), fields.boolean("mamba_proj_bias", default=False)
    by_size = fields.raw.get("mamba_dt_rank") in (None, "auto")
    return RecurrentConfig(
        family=family,
        layers=layers,
        num_key_heads=1,
        num_heads=1,
        key_size=fields.count("mamba_d_state", default=16),
        value_size=fields.count("mamba_expand", default=2) * hidden_size,
        conv_width=fields.count("mamba_d_conv", default=4, least=2),
        conv_bias=fields.boolean("mamba_conv_bias", default=True),
        projection_bias=bias,
        output_bias=bias,
        norm="none",
        step_rank=-(-hidden_size // 16) if by_size else fields.count("mamba_dt_rank"),
    )


def _short_convolution(fields: ConfigFields, family: RecurrentFamily, layers: tuple[bool, ...]) -> RecurrentConfig:
    bias = fields.boolean("conv_bias", default=False)
    return RecurrentConfig(
        family=family,
        layers=layers,
        num_key_heads=1,
        num_heads=1,
        key_size=0,
        value_size=fields.count("hidden_size"),
        conv_width=fields.count("conv_L_cache", default=3, least=2),
        conv_bias=bias,
        projection_bias=bias,
        output_bias=bias,
        norm="none",
    )


def _recurrent_layers(fields: ConfigFields, family: RecurrentFamily, num_layers: int) -> tuple[bool, ...]:
    names = ("linear_attention", "mamba", "conv", "full_attention", "attention")
    if family.parallel:
        return (True,) * num_layers
    if family.kind == "mamba1":
        period = fields.count("attn_layer_period", default=8)
        offset = fields.count("attn_layer_offset", default=4, least=0)
        if offset >= min(period, num_layers):
            raise fields.unsupported("attn_layer_offset", "a model without a layer of attention is")
        return tuple(layer % period != offset for layer in range(num_layers))
    if family.one_part:
        return tuple(kind == "linear_attention" for kind in layer_kinds(fields))
    types = fields.raw.get("layer_types") or fields.raw.get("layers_block_type")
    listed = next((name for name in ("attn_layer_indices", "full_attn_idxs") if fields.raw.get(name) is not None), None)
    if types is None and listed is not None:
        attending = fields.raw[listed]
        if not isinstance(attending, list) or not all(type(layer) is int for layer in attending):
            raise fields.invalid(listed, "must list layers")
        types = ["attention" if layer in attending else "mamba" for layer in range(num_layers)]
    if types is None and family.kind == "mamba2":
        types = ["mamba"] * num_layers
    if types is None and family.kind == "gated delta":
        interval = fields.count("full_attention_interval", default=4)
        types = ["full_attention" if (layer + 1) % interval == 0 else "linear_attention" for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in names for kind in types):
        raise fields.invalid("layer_types", f"must name one of {', '.join(names)} for each of {num_layers} layers")
    layers = tuple(kind in names[:3] for kind in types)
    if all(layers):
        raise fields.unsupported("layer_types", "a model without a layer of attention is")
    return layers


def _parallel_norm(fields: ConfigFields) -> OutputNorm:
    if not fields.boolean("mamba_rms_norm", default=False):
        return "none"
    return "before the gate" if fields.boolean("mamba_norm_before_gate", default=True) else "behind the gate"


def parse_multipliers(fields: ConfigFields) -> Multipliers:
    """Read the factors of a parallel layer's products. Raises CheckpointError, naming the field."""

    def number(field: str) -> float:
        return fields.number(field, default=1.0)

    def numbers(field: str, count: int) -> tuple[float, ...]:
        return (1.0,) * count if fields.raw.get(field) is None else fields.numbers(field, count)

    gate, down = numbers("mlp_multipliers", 2)
    return Multipliers(
        attention_in=number("attention_in_multiplier"),
        key=number("key_multiplier"),
        attention_out=number("attention_out_multiplier"),
        recurrent_in=number("ssm_in_multiplier"),
        recurrent=numbers("ssm_multipliers", 5),
        recurrent_out=number("ssm_out_multiplier"),
        gate=gate,
        down=down,
    )


def _step_limit(fields: ConfigFields) -> tuple[float, float]:
    """Return the bounds of time steps. JSON has no infinity; files write the word, or an object around it."""
    limit = fields.raw.get("time_step_limit")
    if limit is None:
        return 0.0, float("inf")
    try:
        low, high = (float(bound["__float__"] if isinstance(bound, dict) else bound) for bound in limit)
    except (TypeError, ValueError, KeyError):
        raise fields.invalid("time_step_limit", "must be two numbers") from None
    if not low <= high:
        raise fields.invalid("time_step_limit", "must be two numbers, the lower one first")
    return low, high
