"""Search of the arrangements of devices that meet a workload's targets, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...runtime.models.config import ModelConfig
from ...runtime.models.parallel.shard import why_indivisible
from ...runtime.protocol.config import KvDtypeName
from .devices import DeviceSpec
from .estimate import Arrangement, Estimate, Workload, estimate
from .memory import WeightFormat

WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("bf16", "fp8", "int8", "int4")
KV_FORMATS: tuple[KvDtypeName, ...] = ("bf16", "fp8")  # unless one is asked for


def arrangements(
    config: ModelConfig, num_devices: int, kv_formats: Sequence[KvDtypeName] = KV_FORMATS
) -> Iterator[Arrangement]:
    """Iterate over arrangements with at most `num_devices`: tp a power of two that divides the model, pp up to its
    layers, but 1 of a model with recurrent layers, which are not divided."""
    most_stages = config.num_layers if config.recurrent is None else 1
    for tp in (1 << exponent for exponent in range(num_devices.bit_length())):
        if why_indivisible(config, tp) is not None:
            continue
        for pp in range(1, min(num_devices // tp, most_stages) + 1):
            for weights in WEIGHT_FORMATS:
                for kv in kv_formats:
                    yield Arrangement(tp=tp, pp=pp, weights=weights, kv=kv)


def choose(
    config: ModelConfig,
    device: DeviceSpec,
    num_devices: int,
    workload: Workload,
    *,
    max_ttft: float | None = None,
    max_itl: float | None = None,
    efficiency: float = 1.0,
    kv_formats: Sequence[KvDtypeName] = KV_FORMATS,
) -> list[Estimate]:
    """Return the estimates that fit and meet the targets, in seconds.

    They are sorted by number of devices, then by width of the formats, widest first, then by speed.
    """
    found = [
        estimate(config, device, workload, arrangement, efficiency=efficiency)
        for arrangement in arrangements(config, num_devices, kv_formats)
    ]
    fitting = [
        one
        for one in found
        if one.max_sequences >= workload.concurrency
        and (max_ttft is None or one.prefill_seconds <= max_ttft)
        and (max_itl is None or one.step_seconds <= max_itl)
    ]

    def rank(one: Estimate) -> tuple[float, ...]:
        a = one.arrangement
        return a.num_devices, WEIGHT_FORMATS.index(a.weights) + kv_formats.index(a.kv), one.step_seconds

    return sorted(fitting, key=rank)
