"""Configuration of multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1) from config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config_fields import ConfigFields
from ..rope.config import RopeConfig

NORM_EPS = 1e-6  # of the latents' norms: the families' code does not read it from config.json


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Sizes of a layer's latents and heads. A token's cached key is its latent and one rotated part for all heads."""

    query_rank: int | None  # of the queries' latent; None: queries are projected from the hidden state
    rank: int  # of the latent of keys and values
    plain_size: int  # dimensions of a head's query and key that do not rotate
    rope_size: int  # those that rotate
    value_size: int  # of a head
    interleaved: bool  # pairs (2i, 2i + 1) rotate together, instead of (i, i + rope_size / 2)

    @property
    def key_size(self) -> int:
        """Numbers of a token in the cache of a layer."""
        return self.rank + self.rope_size

    @property
    def query_size(self) -> int:
        """Dimensions of a head's query and key before absorption."""
        return self.plain_size + self.rope_size

    @property
    def expanded_size(self) -> int:
        """Outputs of a head's product that expands the latent: its key's plain part, then its value."""
        return self.plain_size + self.value_size


def parse_latent(fields: ConfigFields) -> LatentConfig:
    """Read the sizes of latent attention. Raises CheckpointError, naming the field."""
    rope_size = fields.count("qk_rope_head_dim")
    if rope_size % 2:
        raise fields.invalid("qk_rope_head_dim", "must be even")
    rank = fields.count("kv_lora_rank")
    if rank % 2:
        raise fields.invalid("kv_lora_rank", "must be even")
    return LatentConfig(
        query_rank=None if fields.raw.get("q_lora_rank") is None else fields.count("q_lora_rank"),
        rank=rank,
        plain_size=fields.count("qk_nope_head_dim"),
        rope_size=rope_size,
        value_size=fields.count("v_head_dim"),
        interleaved=fields.boolean("rope_interleave", default=True),
    )


def latent_scale(fields: ConfigFields, latent: LatentConfig, rope: RopeConfig) -> float:
    """Return the factor of scores. Scaled rotary embeddings with `mscale_all_dim` sharpen all of a head's dimensions.

    Raises CheckpointError for rotary embeddings that latent attention does not compute here.
    """
    if rope.depends_on_length or rope.rotary_dim is not None:
        raise fields.unsupported("rope_scaling", f"{rope.type} or a part of qk_rope_head_dim in latent attention is")
    scale = latent.query_size**-0.5
    if rope.type == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return scale
    return scale * (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2
