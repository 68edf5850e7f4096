"""Configuration of rotary embeddings, from `rope_parameters` or the older `rope_scaling` beside `rope_theta`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ...scheduler.rope_switch import RopeSwitch
from ..config_fields import ConfigFields

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "none"]
_TYPES: tuple[RopeType, ...] = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "su")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Type and parameters of a rotary embedding. `original_context` is the length that the frequencies were trained
    on."""

    type: RopeType
    theta: float
    original_context: int
    rotary_dim: int | None = None  # dimensions of a head that rotate, the first ones; None: all
    axes: tuple[int, ...] = ()  # which of a position's three numbers each pair turns by; none: they have one
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    factors: tuple[float, ...] = ()  # listed, longrope up to the original context: divisor of each pair's frequency
    long_factors: tuple[float, ...] = ()  # longrope: beyond the original context
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    attention_factor: float | None = None  # of cos and sin; None: 1, or yarn's from the next two, or from factor
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn

    @property
    def depends_on_length(self) -> bool:
        """True when a position's angle depends on the sequence's length."""
        return self.type in ("dynamic", "longrope")

    def within(self, context_length: int) -> RopeConfig:
        """Return the config for sequences of at most `context_length` tokens, which may need no switch of factors."""
        if not self.depends_on_length or context_length > self.original_context:
            return self
        return replace(self, type="default")

    @property
    def switch(self) -> RopeSwitch | None:
        """How angles depend on the sequence's length; None: they do not."""
        if self.type != "longrope" and self.type != "dynamic":
            return None
        return RopeSwitch(self.type, self.original_context)

    def context_length(self, max_positions: int) -> int:
        """Return the context length. `max_position_embeddings` counts scaling in llama3 files and some yarn files
        only."""
        match self.type:
            case "linear" | "dynamic":
                return int(max_positions * self.factor)
            case "yarn":
                return max(max_positions, int(self.original_context * self.factor))
            case _:
                return max_positions


NO_ROPE = RopeConfig(type="none", theta=1.0, original_context=1)  # of layers without positions


def parse_rope(
    config: ConfigFields,
    max_positions: int,
    head_dim: int,
    *,
    layers: str | None = None,
    share_field: str | None = None,
    axes_by_turns: bool = False,
) -> RopeConfig:
    """Read the rope of config.json. Raises CheckpointError, naming an unsupported type or a missing field.

    `layers` picks the parameters of one type of layers where `rope_parameters` lists several. `share_field` names an
    older field with the share of a head's dimensions that rotate, or their number if it ends in "dim". `axes_by_turns`
    is the family's way with `mrope_section`.
    """
    spelling = "rope_scaling" if config.raw.get("rope_scaling") is not None else "rope_parameters"
    rope = config.nested(spelling)
    if layers is not None and layers in rope.raw:
        rope = rope.nested(layers)
    kind = rope.one_of("type" if "rope_type" not in rope.raw else "rope_type", (*_TYPES, "mrope"), default="default")
    kind = "default" if kind == "mrope" else kind
    theta = (rope if rope.raw.get("rope_theta") is not None else config).number("rope_theta", default=10000.0)
    rotary_dim = _rotary_dim(config, rope, head_dim, share_field)
    if kind == "dynamic" and rope.raw.get("alpha") is not None:  # Hunyuan: a larger base, whatever the length
        theta *= rope.number("alpha") ** (head_dim / (head_dim - 2))
        kind = "default"
    if kind == "default":
        axes = _axes(rope, (rotary_dim or head_dim) // 2, axes_by_turns)
        return RopeConfig(type="default", theta=theta, original_context=max_positions, rotary_dim=rotary_dim, axes=axes)
    if kind in ("longrope", "su"):
        return _parse_longrope(config, rope, theta, max_positions, rotary_dim, head_dim)

    def optional(field: str) -> float | None:
        return None if rope.raw.get(field) is None else rope.number(field)

    original = max_positions  # for linear and dynamic
    if kind in ("yarn", "llama3"):
        original = rope.count("original_max_position_embeddings", default=max_positions)
    return RopeConfig(
        axes=_axes(rope, (rotary_dim or head_dim) // 2, axes_by_turns),
        type=kind,  # type: ignore[arg-type]  # one_of has checked it
        theta=theta,
        original_context=original,
        rotary_dim=rotary_dim,
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor", default=None if kind == "llama3" else 1.0),
        high_freq_factor=rope.number("high_freq_factor", default=None if kind == "llama3" else 4.0),
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        truncate=rope.boolean("truncate", default=True),
        attention_factor=optional("attention_factor") if kind == "yarn" else None,
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
    )


def _rotary_dim(config: ConfigFields, rope: ConfigFields, head_dim: int, share_field: str | None) -> int | None:
    """Return the number of dimensions that rotate, or None for all."""
    fields, name = rope, "partial_rotary_factor"
    if rope.raw.get(name) is None:
        fields = config
        if config.raw.get(name) is None and share_field is not None:
            name = share_field
    if fields.raw.get(name) is None:
        return None
    size = fields.number(name) if name.endswith("dim") else int(fields.number(name) * head_dim)
    if size < 2 or size > head_dim or size % 2:
        raise fields.invalid(name, f"must rotate an even number of a head's {head_dim} dimensions")
    return None if size == head_dim else int(size)


def _axes(rope: ConfigFields, num_pairs: int, by_turns: bool) -> tuple[int, ...]:
    """Return the axis of each pair of dimensions by `mrope_section`: sections side by side, or `by_turns`. Sections
    that are not of so many pairs count as none: text does not need them."""
    if rope.raw.get("mrope_section") is None:
        return ()
    sections = [int(size) for size in rope.numbers("mrope_section", 3)]
    if sum(sections) != num_pairs:
        return ()
    if not by_turns:
        return tuple(axis for axis, size in enumerate(sections) for _ in range(size))
    axes = [0] * num_pairs
    for axis in (1, 2):
        for pair in range(axis, min(3 * sections[axis], num_pairs), 3):
            axes[pair] = axis
    return tuple(axes)


def _parse_longrope(
    config: ConfigFields, rope: ConfigFields, theta: float, max_positions: int, rotary_dim: int | None, head_dim: int
) -> RopeConfig:
    """Read the two lists of factors of LongRoPE (Ding et al. 2024)."""
    holder = rope if rope.raw.get("original_max_position_embeddings") is not None else config
    original = holder.count("original_max_position_embeddings", default=max_positions)
    factor = max_positions / original
    if rope.raw.get("attention_factor") is not None:
        amplitude = rope.number("attention_factor")
    else:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeConfig(
        type="longrope",
        theta=theta,
        original_context=original,
        rotary_dim=rotary_dim,
        factors=rope.numbers("short_factor", (rotary_dim or head_dim) // 2),
        long_factors=rope.numbers("long_factor", (rotary_dim or head_dim) // 2),
        attention_factor=amplitude,
    )
