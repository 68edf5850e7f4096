"""Bytes of weights and KV cache in each format."""

from __future__ import annotations

import math
from typing import Literal

import torch

from ...kernels import QUANTISED_MAX, stored_size
from ...runtime.engine.kv_format import KV_DTYPES, choose_kv_dtype
from ...runtime.engine.kv_pool import PAGE_SIZE
from ...runtime.engine.window_size import default_ratio
from ...runtime.models.config import ModelConfig
from ...runtime.models.size import ModelSize
from ...runtime.protocol.config import KvDtypeName
from ...runtime.protocol.errors import RequestError

WeightFormat = Literal["bf16", "fp8", "int8", "int4"]

# Bytes of a layer's weight, scales included: a float32 scale per channel is negligible; int4 has 16 bits of scale and
# 4 of zero point per 128 weights.
WEIGHT_BYTES: dict[WeightFormat, float] = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 20 / 8 / 128}


def weight_bytes(size: ModelSize, weights: WeightFormat) -> float:
    """Return the bytes of all weights. Embedding, head and norms stay in bf16."""
    return size.linear * WEIGHT_BYTES[weights] + 2 * (size.num_parameters - size.linear)


def read_bytes(size: ModelSize, weights: WeightFormat, num_tokens: float) -> float:
    """Return the bytes of weights that a step of `num_tokens` reads.

    Of a mixture's experts that is the expected share of those chosen, with each token's choice independent and uniform.
    """
    read_share = 1 - (1 - size.chosen_share) ** num_tokens
    linear = size.linear - size.experts * (1 - read_share)
    return linear * WEIGHT_BYTES[weights] + 2 * (size.head + size.norms)


def mlp_width(config: ModelConfig) -> int:
    """Return the numbers between gate and down for one token, in the layer that has most."""
    experts = config.experts
    if experts is None:
        return config.intermediate_size
    chosen = experts.num_per_token * experts.intermediate_size + (experts.shared_size or 0)
    return chosen if all(experts.layers) else max(chosen, config.intermediate_size)


def kv_bytes(config: ModelConfig, kv: KvDtypeName, tp: int = 1) -> float:
    """Return the bytes of one token's KV on one of `tp` devices. Key heads that cannot be split are held twice."""
    heads, dtype = math.ceil(config.num_kv_heads / tp), KV_DTYPES[kv]
    is_scaled = dtype in QUANTISED_MAX and config.latent is None
    head = stored_size(config.head_dim, dtype, is_scaled=is_scaled) * dtype.itemsize
    return config.num_kv_parts * config.num_kv_layers * heads * head


def check_kv_format(config: ModelConfig, kv: KvDtypeName) -> None:
    """Raise RequestError naming `kv_dtype` if the model's keys and values have no such format on any device."""
    choose_kv_dtype(
        kv, torch.bfloat16, torch.device("cpu"), head_dim=config.head_dim, is_latent=config.latent is not None
    )


def possible_kv_formats(config: ModelConfig) -> list[KvDtypeName]:
    """Return the formats that the model's keys and values may have."""
    found: list[KvDtypeName] = []
    for kv in KV_DTYPES:
        try:
            check_kv_format(config, kv)
        except RequestError:
            continue
        found.append(kv)
    return found


def sequence_kv_bytes(config: ModelConfig, kv: KvDtypeName, tp: int, pp: int, context: int) -> float:
    """Return the bytes of the KV of a sequence of `context` tokens in whole pages, on one of `tp` devices of one stage.

    Layers with a window have pages of their own, as many as the runtime gives them by default, unless there are stages.
    """
    num_pages, page = -(-context // PAGE_SIZE), PAGE_SIZE * kv_bytes(config, kv, tp)
    windows = [window for window in config.windows if window is not None]
    longest = max(windows, default=context)
    if longest >= context or pp > 1 or config.latent is not None or config.recurrent is not None:
        return page * num_pages
    ratio, share = default_ratio(config, context), len(windows) / config.num_layers
    num_window_pages = -(-longest // PAGE_SIZE) + 1
    return page * (1 - share + ratio * share) * max(num_pages, num_window_pages / ratio)


def state_bytes(config: ModelConfig) -> int:
    """Return the bytes of one sequence's recurrent states, whose convolutions' inputs are in bf16."""
    return 0 if config.recurrent is None else config.recurrent.state_bytes(torch.bfloat16)


def mean_kept_tokens(config: ModelConfig, context: int) -> float:
    """Return the mean number of a context's tokens that a layer keeps; a sliding window drops the others."""
    kept = (context if window is None else min(window, context) for window in config.windows)
    return sum(kept) / config.num_layers
