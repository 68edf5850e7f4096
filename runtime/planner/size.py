"""What a model weighs and what a token of its context takes, from its config alone.

Legend: E hidden size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from ..models.config import ModelConfig

WeightFormat = Literal["bf16", "fp8", "int8", "int4"]
KvFormat = Literal["bf16", "fp8", "int8"]

# Bytes of a layer's weight, scales included: one float32 for a channel is lost in the noise, int4 has 16 bits of scale
# and 4 of zero point for each 128.
WEIGHT_BYTES: dict[WeightFormat, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 20 / 8 / 128}
KV_BYTES: dict[KvFormat, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0}


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of numbers."""

    linear: int  # the layers' matrices and their biases: what quantisation makes smaller
    embedding: int  # looked up, not read whole
    head: int  # read whole for each token; the embedding itself when tied
    norms: int
    tied: bool

    @property
    def num_parameters(self) -> int:
        return self.linear + self.embedding + self.norms + (0 if self.tied else self.head)


def model_size(config: ModelConfig) -> ModelSize:
    E, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    attention = E * (H + 2 * K) * D + H * D * E
    biases = (
        config.qkv_bias * (H + 2 * K) * D + config.o_bias * E + config.mlp_bias * (2 * config.intermediate_size + E)
    )
    return ModelSize(
        linear=config.num_layers * (attention + 3 * E * config.intermediate_size + biases),
        embedding=config.vocab_size * E,
        head=config.vocab_size * E,
        norms=config.num_layers * (2 * E + 2 * D * config.qk_norm) + E,
        tied=config.tied_embeddings,
    )


def weight_bytes(size: ModelSize, weights: WeightFormat) -> float:
    """All of them. Embedding, head and norms stay in bf16."""
    return size.linear * WEIGHT_BYTES[weights] + 2 * (size.num_parameters - size.linear)


def read_bytes(size: ModelSize, weights: WeightFormat) -> float:
    """What each step reads of them."""
    return size.linear * WEIGHT_BYTES[weights] + 2 * (size.head + size.norms)


def kv_bytes(config: ModelConfig, kv: KvFormat, tp: int = 1) -> float:
    """Of one token, on one of `tp` devices; key heads that cannot be split are held twice."""
    return 2 * config.num_layers * math.ceil(config.num_kv_heads / tp) * config.head_dim * KV_BYTES[kv]


def kept_tokens(config: ModelConfig, context: int) -> float:
    """How many of a context's tokens a layer keeps on average: a window forgets the others."""
    kept = (context if window is None else min(window, context) for window in config.windows)
    return sum(kept) / config.num_layers
