"""Configuration of recurrent layers, from config.json: which layers they are, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from ..config_fields import ConfigFields

RecurrentKind = Literal["gated delta", "mamba2"]
StoredProjections = Literal["by key head", "separate", "gate first"]


class RecurrentFamily(NamedTuple):
    """How an architecture describes and stores its recurrent layers."""

    kind: RecurrentKind
    block: str  # module of the layer, below `model.layers.N`
    # Order of the input projection's rows: those of each key head together in two tensors; one tensor for each part;
    # or one tensor, the gate's rows first.
    stored: StoredProjections


QWEN3_NEXT = RecurrentFamily("gated delta", "linear_attn", "by key head")
QWEN3_5 = RecurrentFamily("gated delta", "linear_attn", "separate")
MAMBA2 = RecurrentFamily("mamba2", "mamba", "gate first")


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """Sizes of the recurrent layers. A state has a matrix [key_size, value_size] for each head.

    In Mamba2's terms a key head is a group, a key the matrix B, a query the matrix C, a value the input x.
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
    step_limit: tuple[float, float] = (0.0, float("inf"))  # of Mamba2's time steps

    @property
    def num_layers(self) -> int:
        """Number of recurrent layers."""
        return sum(self.layers)

    @property
    def is_delta(self) -> bool:
        """True for gated delta nets."""
        return self.family.kind == "gated delta"

    @property
    def inner(self) -> int:
        """Size of the layer's output, all heads together."""
        return self.num_heads * self.value_size

    @property
    def conv_sizes(self) -> tuple[int, int, int]:
        """Channels of the convolution: queries, keys, values of a gated delta net; x, B, C of Mamba2."""
        keys = self.num_key_heads * self.key_size
        return (keys, keys, self.inner) if self.is_delta else (self.inner, keys, keys)

    @property
    def conv_channels(self) -> int:
        return sum(self.conv_sizes)

    @property
    def num_scalars(self) -> int:
        """Outputs of the input projection that are one number for each head: beta and decay, or Mamba2's time step."""
        return self.num_heads * (2 if self.is_delta else 1)

    @property
    def projected(self) -> int:
        """Outputs of the input projection: the convolution's channels, the gate, the scalars."""
        return self.conv_channels + self.inner + self.num_scalars

    @property
    def norm_size(self) -> int:
        """Weights of the norm of the output: of one head, or of all."""
        return self.value_size if self.is_delta else self.inner

    @property
    def num_own_parameters(self) -> int:
        """Parameters of a layer beside its two projections."""
        scalars = 2 if self.is_delta else 3
        conv = self.conv_channels * (self.conv_width + self.conv_bias)
        return conv + scalars * self.num_heads + self.norm_size

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes of one slot: the float32 states and the convolutions' last inputs of all layers."""
        conv = (self.conv_width - 1) * self.conv_channels * dtype.itemsize
        return self.num_layers * (4 * self.num_heads * self.key_size * self.value_size + conv)


def parse_recurrent(fields: ConfigFields, family: RecurrentFamily, num_layers: int) -> RecurrentConfig:
    """Read the fields of recurrent layers. Raises CheckpointError, naming the field."""
    layers = _recurrent_layers(fields, family, num_layers)
    if family.kind == "gated delta":
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
        )
    num_heads, groups = fields.count("mamba_n_heads"), fields.count("mamba_n_groups")
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    if inner % num_heads or num_heads % groups:
        raise fields.invalid("mamba_n_heads", f"must divide {inner} and be a multiple of mamba_n_groups {groups}")
    if fields.raw.get("mamba_d_head") not in (None, "auto", inner // num_heads):
        raise fields.invalid("mamba_d_head", f"must be {inner // num_heads}")
    return RecurrentConfig(
        family=family,
        layers=layers,
        num_key_heads=groups,
        num_heads=num_heads,
        key_size=fields.count("mamba_d_state"),
        value_size=inner // num_heads,
        conv_width=fields.count("mamba_d_conv", least=2),
        conv_bias=fields.boolean("mamba_conv_bias", default=True),
        projection_bias=fields.boolean("mamba_proj_bias", default=False),
        step_limit=_step_limit(fields),
    )


def _recurrent_layers(fields: ConfigFields, family: RecurrentFamily, num_layers: int) -> tuple[bool, ...]:
    names = ("linear_attention", "mamba", "full_attention", "attention")
    types = fields.raw.get("layer_types") or fields.raw.get("layers_block_type")
    if types is None and (attending := fields.raw.get("attn_layer_indices")) is not None:
        if not isinstance(attending, list) or not all(type(layer) is int for layer in attending):
            raise fields.invalid("attn_layer_indices", "must list layers")
        types = ["attention" if layer in attending else "mamba" for layer in range(num_layers)]
    if types is None and family.kind == "mamba2":
        types = ["mamba"] * num_layers
    if types is None:
        interval = fields.count("full_attention_interval", default=4)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in names for kind in types):
        raise fields.invalid("layer_types", f"must name one of {', '.join(names)} for each of {num_layers} layers")
    layers = tuple(kind in names[:2] for kind in types)
    if all(layers):
        raise fields.unsupported("layer_types", "a model without a layer of attention is")
    return layers


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
