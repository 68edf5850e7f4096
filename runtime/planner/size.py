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
    norms: int  # and the routers of mixtures: what no format makes smaller
    tied: bool
    experts: int = 0  # those of `linear` that are a mixture's; a token meets `chosen_share` of them
    chosen_share: float = 1.0

    @property
    def num_parameters(self) -> int:
        return self.linear + self.embedding + self.norms + (0 if self.tied else self.head)

    @property
    def active_linear(self) -> float:
        """Those of `linear` that one token is multiplied with."""
        return self.linear - self.experts * (1 - self.chosen_share)

    @property
    def num_active(self) -> float:
        """Of all parameters, those that one token has to do with."""
        return self.num_parameters - self.linear + self.active_linear


def model_size(config: ModelConfig) -> ModelSize:
    E, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    attention = E * (H + 2 * K) * D + H * D * E
    biases = config.qkv_bias * (H + 2 * K) * D + config.o_bias * E
    mixture = config.experts
    num_mixtures = sum(mixture.layers) if mixture is not None else 0
    dense = 3 * E * config.intermediate_size + config.mlp_bias * (2 * config.intermediate_size + E)
    experts = shared = routers = 0
    if mixture is not None:
        experts = num_mixtures * mixture.num_experts * 3 * E * mixture.intermediate_size
        shared = num_mixtures * 3 * E * (mixture.shared_size or 0)
        routers = num_mixtures * E * (mixture.num_experts + (mixture.shared_size is not None))
    mlps = (config.num_layers - num_mixtures) * dense + shared + experts
    return ModelSize(
        linear=config.num_layers * (attention + biases) + mlps,
        embedding=config.vocab_size * E,
        head=config.vocab_size * E,
        norms=config.num_layers * (2 * E + 2 * D * config.qk_norm) + E + routers,
        tied=config.tied_embeddings,
        experts=experts,
        chosen_share=1.0 if mixture is None else mixture.num_per_token / mixture.num_experts,
    )


def weight_bytes(size: ModelSize, weights: WeightFormat) -> float:
    """All of them. Embedding, head and norms stay in bf16."""
    return size.linear * WEIGHT_BYTES[weights] + 2 * (size.num_parameters - size.linear)


def read_bytes(size: ModelSize, weights: WeightFormat, num_tokens: float) -> float:
    """What a step of so many tokens reads of them. Of a mixture's experts, those that a token chooses: each token's are
    taken to be as if drawn, whoever else is there."""
    met = 1 - (1 - size.chosen_share) ** num_tokens
    linear = size.linear - size.experts * (1 - met)
    return linear * WEIGHT_BYTES[weights] + 2 * (size.head + size.norms)


def mlp_width(config: ModelConfig) -> int:
    """Numbers between gate and down, of one token in the layer that has most."""
    experts = config.experts
    if experts is None:
        return config.intermediate_size
    chosen = experts.num_per_token * experts.intermediate_size + (experts.shared_size or 0)
    return chosen if all(experts.layers) else max(chosen, config.intermediate_size)


def kv_bytes(config: ModelConfig, kv: KvFormat, tp: int = 1) -> float:
    """Of one token, on one of `tp` devices; key heads that cannot be split are held twice."""
    return 2 * config.num_layers * math.ceil(config.num_kv_heads / tp) * config.head_dim * KV_BYTES[kv]


def kept_tokens(config: ModelConfig, context: int) -> float:
    """How many of a context's tokens a layer keeps on average: a window forgets the others."""
    kept = (context if window is None else min(window, context) for window in config.windows)
    return sum(kept) / config.num_layers
