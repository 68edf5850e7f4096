"""Floors of time and ceilings of concurrency for one arrangement of devices. Formulas are in docs/planner.md.

Nothing is measured: a real engine is slower than `efficiency` 1 says, by the part of its limits that it reaches.
"""

from __future__ import annotations

import msgspec

from ..models.config import ModelConfig
from .devices import Device
from .size import KvFormat, WeightFormat, kept_tokens, kv_bytes, mlp_width, model_size, read_bytes, weight_bytes

PAGE_SIZE = 16
ALL_REDUCE_LATENCY = 10e-6  # seconds, of a message so small that its bytes do not count


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    prompt: int  # tokens
    context: int  # tokens of a sequence at its longest, the prompt included
    concurrency: int  # sequences at once
    cached: int = 0  # tokens of the prompt that are in the prefix cache

    @property
    def mean_length(self) -> float:
        """Of a sequence while it is decoded."""
        return (self.prompt + self.context) / 2


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    tp: int = 1
    pp: int = 1
    weights: WeightFormat = "bf16"
    kv: KvFormat = "bf16"

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    arrangement: Arrangement
    weight_bytes: float  # on the fullest device
    kv_token_bytes: float  # of one token, over all devices
    max_sequences: int  # of the workload's context, that memory holds; 0: not even the weights fit, or no sequence does
    prefill_seconds: float  # of one prompt by itself: the floor of the time to first token
    step_seconds: float  # between two tokens of a sequence, with the workload's concurrency
    tokens_per_second: float  # decoded, of all sequences

    def cost_per_million(self, price: float) -> float:
        """Of a million decoded tokens, with devices at `price` an hour each."""
        return price * self.arrangement.num_devices / 3600 / self.tokens_per_second * 1e6


def estimate(
    config: ModelConfig,
    device: Device,
    workload: Workload,
    arrangement: Arrangement,
    *,
    efficiency: float = 1.0,
    memory_share: float = 0.9,
    chunk: int = 2048,
) -> Estimate:
    """`efficiency` is the part of every rate that is reached, `memory_share` that of the memory that may be used,
    `chunk` the tokens of a step, which its activations take room for."""
    size, tp, pp = model_size(config), arrangement.tp, arrangement.pp
    layers_weights = weight_bytes(size, arrangement.weights) / tp
    # The first stage has the embedding, the last the head, so the fullest has its part of the layers and one of them.
    ends = 2 * (size.embedding if size.tied else size.embedding + size.head) / tp
    weights = layers_weights if pp == 1 else (layers_weights - ends) / pp + 2 * size.head / tp
    activations = chunk * (2 * (2 * config.hidden_size + 2 * mlp_width(config) / tp) + 4 * 8 * config.num_heads)
    logits = 4 * workload.concurrency * config.vocab_size / tp
    token = kv_bytes(config, arrangement.kv, tp) / pp  # on one device
    pages = -(-kept_tokens(config, workload.context) // PAGE_SIZE)
    free = device.memory * memory_share - weights - activations - logits
    return Estimate(
        arrangement=arrangement,
        weight_bytes=weights,
        kv_token_bytes=token * tp * pp,
        max_sequences=max(0, int(free // (token * pages * PAGE_SIZE))),
        prefill_seconds=_prefill(config, device, workload, arrangement, efficiency),
        step_seconds=(step := _step(config, device, workload, arrangement, efficiency)),
        tokens_per_second=workload.concurrency / step,
    )


def _matrix_rate(device: Device, weights: WeightFormat) -> float:
    """int8 and int4 are formats of storage here: their products are bf16's."""
    return device.eight_bit if weights == "fp8" else device.bf16


def _prefill(
    config: ModelConfig, device: Device, workload: Workload, arrangement: Arrangement, efficiency: float
) -> float:
    size, new = model_size(config), workload.prompt - workload.cached
    products = 2 * size.active_linear * new + 2 * size.head
    # Each new token meets what is cached and, on average, half of the others: twice, for scores and for values.
    met = sum(
        new * workload.cached + new * new / 2 if window is None else new * min(window, workload.cached + new / 2)
        for window in config.windows
    )
    attention = 4 * config.num_heads * config.head_dim * met
    rate = _matrix_rate(device, arrangement.weights)
    compute = (products / rate + attention / device.bf16) / arrangement.tp / efficiency
    read = read_bytes(size, arrangement.weights, new) / arrangement.tp / device.bandwidth / efficiency
    return max(compute, read) + _communication(config, device, new, arrangement)


def _step(
    config: ModelConfig, device: Device, workload: Workload, arrangement: Arrangement, efficiency: float
) -> float:
    """Pipelined, the sequences are as many parts as there are stages; a part's token passes all of them, one by one."""
    size, tp = model_size(config), arrangement.tp
    batch = max(1.0, workload.concurrency / arrangement.pp)
    length = kept_tokens(config, round(workload.mean_length))
    read = read_bytes(size, arrangement.weights, batch) / tp + batch * length * kv_bytes(config, arrangement.kv, tp)
    memory = read / device.bandwidth
    products = 2 * (size.active_linear + size.head) * batch / tp / _matrix_rate(device, arrangement.weights)
    return max(memory, products) / efficiency + _communication(config, device, batch, arrangement)


def _communication(config: ModelConfig, device: Device, num_tokens: float, arrangement: Arrangement) -> float:
    """Two all-reduces of the hidden states a layer, in rings; a hand-over between stages."""
    num_bytes = 2 * config.hidden_size * num_tokens
    seconds = 0.0
    if arrangement.tp > 1:
        one = 2 * (arrangement.tp - 1) / arrangement.tp * num_bytes / device.link + ALL_REDUCE_LATENCY
        seconds += 2 * config.num_layers * one
    if arrangement.pp > 1:
        seconds += (arrangement.pp - 1) * (num_bytes / device.link + ALL_REDUCE_LATENCY)
    return seconds
