"""Configuration of rotary embeddings, from `rope_parameters` or the older `rope_scaling` beside `rope_theta`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .config_fields import ConfigFields

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "listed"]
_TYPES: tuple[RopeType, ...] = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Type and parameters of a rotary embedding. `original_context` is the length that the frequencies were trained
    on."""

    type: RopeType
    theta: float
    original_context: int
    factor: float = 1.0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    factors: tuple[float, ...] = ()  # listed: divisor of each pair's frequency; GGUF files only
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    attention_factor: float | None = None  # yarn; None: from the next two, or from factor
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn

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


def parse_rope(config: ConfigFields, max_positions: int) -> RopeConfig:
    """Read the rope of config.json. Raises CheckpointError, naming an unsupported type or a missing field."""
    spelling = "rope_scaling" if config.raw.get("rope_scaling") is not None else "rope_parameters"
    rope = config.nested(spelling)
    kind = rope.one_of("type" if "rope_type" not in rope.raw else "rope_type", _TYPES, default="default")
    for fields in (config, rope):
        if fields.raw.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise fields.unsupported("partial_rotary_factor", "rotating a part of the head is")
    theta = (rope if rope.raw.get("rope_theta") is not None else config).number("rope_theta", default=10000.0)
    if kind == "default":
        return RopeConfig(type="default", theta=theta, original_context=max_positions)

    def optional(field: str) -> float | None:
        return None if rope.raw.get(field) is None else rope.number(field)

    original = max_positions  # for linear and dynamic
    if kind in ("yarn", "llama3"):
        original = rope.count("original_max_position_embeddings", default=max_positions)
    return RopeConfig(
        type=kind,  # type: ignore[arg-type]  # one_of has checked it
        theta=theta,
        original_context=original,
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor", default=None if kind == "llama3" else 1.0),
        high_freq_factor=rope.number("high_freq_factor", default=None if kind == "llama3" else 4.0),
        beta_fast=rope.number("beta_fast", default=32.0),
        beta_slow=rope.number("beta_slow", default=1.0),
        truncate=rope.boolean("truncate", default=True),
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
    )
