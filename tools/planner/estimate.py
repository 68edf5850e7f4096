"""Estimates of speed and concurrency for an arrangement of devices. The formulas are in docs/operate/planner.md.

A step takes the larger of its compute time and its read time, for each stage. Stages get it in micro-batches, as the
runtime sends them (`models/parallel/stage.py`). Nothing is measured: a real engine reaches the part `efficiency` of the
rates.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ...runtime.models.config import ModelConfig
from ...runtime.models.parallel.stage import MIN_MICRO_BATCH_TOKENS, Stage, num_micro_batches
from ...runtime.protocol.config import KvDtypeName
from .devices import DeviceSpec
from .memory import (
    WeightFormat,
    kv_bytes,
    mean_kept_tokens,
    mlp_width,
    read_bytes,
    sequence_kv_bytes,
    state_bytes,
    weight_bytes,
)

# Part of the bandwidth at which a kernel reads weights, by its instructions: the one for int4 issues 541 for 4 kB, in
# which time an H100 reads 8 kB (docs/inside/kernels.md).
KERNEL_READ: dict[WeightFormat, float] = {"int4": 0.5}
TRANSFER_LATENCY = 10e-6  # seconds of an empty message


@dataclass(frozen=True)
class StepLoad:
    """Tokens, outputs, KV reads and attention pairs of one step."""

    num_tokens: float
    num_outputs: float  # tokens whose logits are computed
    kv_read: float  # bytes of KV that one device reads per layer, on average
    attended: float  # pairs of a new and a kept token per layer, on average


def prefill_seconds(
    config: ModelConfig,
    device: DeviceSpec,
    workload: Workload,
    arrangement: Arrangement,
    *,
    efficiency: float,
    chunk: int,
) -> float:
    """Time of one prompt alone, in equal steps of at most `chunk` tokens."""
    new = workload.prompt - workload.cached
    # Each new token attends to the cached ones and, on average, half of the new ones.
    attended = [
        new * workload.cached + new * new / 2 if window is None else new * min(window, workload.cached + new / 2)
        for window in config.windows
    ]
    num_steps = -(-new // chunk)
    step = StepLoad(new / num_steps, 1 / num_steps, 0.0, sum(attended) / config.num_layers / num_steps)
    return num_steps * _forward_seconds(config, device, arrangement, step, efficiency)


def step_seconds(
    config: ModelConfig, device: DeviceSpec, workload: Workload, arrangement: Arrangement, *, efficiency: float
) -> float:
    """Time between two tokens of a sequence when all sequences are half-way."""
    batch = workload.concurrency
    length = mean_kept_tokens(config, round(workload.mean_length))
    of_a_sequence = length * kv_bytes(config, arrangement.kv, arrangement.tp) + 2 * state_bytes(config)  # and written
    read = batch * of_a_sequence / config.num_layers
    return _forward_seconds(config, device, arrangement, StepLoad(batch, batch, read, 0.0), efficiency)


def _forward_seconds(
    config: ModelConfig, device: DeviceSpec, arrangement: Arrangement, step: StepLoad, efficiency: float
) -> float:
    """Time of a step. Its first micro-batch goes through all stages; the others leave the slowest stage one by one.

    The logits follow on the first stage.
    """
    tp, pp = arrangement.tp, arrangement.pp
    num_parts = num_micro_batches(int(step.num_tokens), pp, least=MIN_MICRO_BATCH_TOKENS["cuda"])
    T = step.num_tokens / num_parts
    rate = _matrix_rate(device, arrangement.weights) * tp
    stages = []
    for stage in (Stage(index, pp) for index in range(pp)):
        size = stage.size_of(config)
        num_layers = len(stage.layers(config))
        layers = (read_bytes(size, arrangement.weights, T) - 2 * size.head) / KERNEL_READ.get(arrangement.weights, 1.0)
        read = layers / tp + num_layers * step.kv_read / num_parts
        products = 2 * size.active_linear * T / rate
        # Two products: scores and values.
        both_sizes = config.head_dim + (config.head_dim if config.latent is None else config.latent.rank)
        num_attending = num_layers * config.num_kv_layers / config.num_layers
        attention = 2 * config.num_heads * both_sizes * num_attending * step.attended / num_parts / tp / device.bf16
        stages.append(
            max(products + attention, read / device.bandwidth) / efficiency
            + num_layers * _all_reduce_seconds(config, device, arrangement, T)
            + _transfer_seconds(config, device, arrangement, T)
        )
    head = 2 * config.vocab_size * config.hidden_size  # its bytes, and the operations of one token
    logits = max(head * step.num_outputs / rate, head / tp / device.bandwidth) / efficiency
    return sum(stages) + (num_parts - 1) * max(stages) + logits


def _matrix_rate(device: DeviceSpec, weights: WeightFormat) -> float:
    """Return the rate of matrix products. int8 and int4 are storage formats here: their products run in bf16."""
    return device.eight_bit if weights == "fp8" else device.bf16


def _all_reduce_seconds(config: ModelConfig, device: DeviceSpec, arrangement: Arrangement, num_tokens: float) -> float:
    """Time of a layer's two all-reduces of the hidden states, in rings."""
    tp = arrangement.tp
    if tp == 1:
        return 0.0
    return 2 * (2 * (tp - 1) / tp * 2 * config.hidden_size * num_tokens / device.link + TRANSFER_LATENCY)


def _transfer_seconds(config: ModelConfig, device: DeviceSpec, arrangement: Arrangement, num_tokens: float) -> float:
    """Time until the next stage has the hidden states; after the last stage that is the first."""
    return 0.0 if arrangement.pp == 1 else 2 * config.hidden_size * num_tokens / device.link + TRANSFER_LATENCY


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Shape of the requests to be served."""

    prompt: int  # tokens
    context: int  # tokens of a sequence at its longest, the prompt included
    concurrency: int  # sequences at once
    cached: int = 0  # tokens of the prompt that are in the prefix cache

    @property
    def mean_length(self) -> float:
        """Mean length of a sequence while it is decoded."""
        return (self.prompt + self.context) / 2


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    """Parallelism and number formats of a deployment."""

    tp: int = 1
    pp: int = 1
    weights: WeightFormat = "bf16"
    kv: KvDtypeName = "bf16"

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Memory, concurrency and speed of one arrangement."""

    arrangement: Arrangement
    weight_bytes: float  # on the device with most
    max_sequences: int  # of the workload's context; 0: weights or one sequence do not fit
    prefill_seconds: float  # of one prompt alone: the least time to first token
    step_seconds: float  # between two tokens of a sequence, at the workload's concurrency
    tokens_per_second: float  # decoded, of all sequences

    def cost_per_million(self, price: float) -> float:
        """Return the cost of a million decoded tokens with devices at `price` an hour each."""
        return price * self.arrangement.num_devices / 3600 / self.tokens_per_second * 1e6


def estimate(
    config: ModelConfig,
    device: DeviceSpec,
    workload: Workload,
    arrangement: Arrangement,
    *,
    efficiency: float = 1.0,
    memory_share: float = 0.9,
    chunk: int = 2048,
) -> Estimate:
    """Estimate one arrangement, which the model must be divisible by.

    `efficiency` is the reached part of every rate, `memory_share` the usable part of the memory, `chunk` the tokens of
    a step, whose activations need memory.
    """
    stages = [Stage(index, arrangement.pp) for index in range(arrangement.pp)]
    weights = [weight_bytes(stage.size_of(config), arrangement.weights) / arrangement.tp for stage in stages]
    kvs = [
        sequence_kv_bytes(stage.local(config), arrangement.kv, arrangement.tp, arrangement.pp, workload.context)
        for stage in stages
    ]
    activations = chunk * (
        2 * (2 * config.hidden_size + 2 * mlp_width(config) / arrangement.tp) + 4 * 8 * config.num_heads
    )
    logits = 4 * workload.concurrency * config.vocab_size / arrangement.tp
    sequences = [
        (device.memory * memory_share - held - activations - logits * stage.has_ends) // (kv + state_bytes(config))
        for stage, held, kv in zip(stages, weights, kvs, strict=True)
    ]
    step = step_seconds(config, device, workload, arrangement, efficiency=efficiency)
    return Estimate(
        arrangement=arrangement,
        weight_bytes=max(weights),
        max_sequences=max(0, int(min(sequences))),
        prefill_seconds=prefill_seconds(config, device, workload, arrangement, efficiency=efficiency, chunk=chunk),
        step_seconds=step,
        tokens_per_second=workload.concurrency / step,
    )
