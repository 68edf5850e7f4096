"""Floors of time and ceilings of concurrency for one arrangement of devices. Formulas are in docs/planner.md.

Nothing is measured: a real engine is slower than `efficiency` 1 says, by the part of its limits that it reaches.
"""

from __future__ import annotations

import msgspec

from ..models.config import ModelConfig
from ..parallel.stage import Stage
from .devices import DeviceSpec
from .memory import kv_bytes, mlp_width, weight_bytes
from .times import prefill_seconds, step_seconds
from .workload import Arrangement, Workload

PAGE_SIZE = 16


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    arrangement: Arrangement
    weight_bytes: float  # on the device that has most
    max_sequences: int  # of the workload's context, that memory holds; 0: not even the weights fit, or no sequence does
    prefill_seconds: float  # of one prompt by itself: the floor of the time to first token
    step_seconds: float  # between two tokens of a sequence, with the workload's concurrency
    tokens_per_second: float  # decoded, of all sequences

    def cost_per_million(self, price: float) -> float:
        """Of a million decoded tokens, with devices at `price` an hour each."""
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
    """`efficiency` is the part of every rate that is reached, `memory_share` that of the memory that may be used,
    `chunk` the tokens of a step, which its activations take room for. `arrangement` is one that the model can be
    divided by."""
    stages = [Stage(index, arrangement.pp) for index in range(arrangement.pp)]
    weights = [weight_bytes(stage.held(config), arrangement.weights) / arrangement.tp for stage in stages]
    tokens = [kv_bytes(stage.local(config), arrangement.kv, arrangement.tp) for stage in stages]
    activations = chunk * (
        2 * (2 * config.hidden_size + 2 * mlp_width(config) / arrangement.tp) + 4 * 8 * config.num_heads
    )
    logits = 4 * workload.concurrency * config.vocab_size / arrangement.tp
    # Pages have the same numbers on every stage, and hold all of its layers, those with a window too.
    pages = -(-workload.context // PAGE_SIZE)
    sequences = [
        (device.memory * memory_share - held - activations - logits * stage.has_ends) // (token * pages * PAGE_SIZE)
        for stage, held, token in zip(stages, weights, tokens, strict=True)
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
