"""Statistics of a load test's round: percentiles, throughput and goodput."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from .client import Measured, Outcome

PERCENTILES = (50, 95, 99)
BUSY_CPU = 0.8  # share of a core above which the client may be the bottleneck
BUSY_LAG = 0.01  # seconds


@dataclass(frozen=True)
class Summary:
    """Figures of one round. Times are in seconds, rates per second.

    `ttft`, `tpot`, `itl` and `e2e` map "p50", "p95", "p99", "mean" and "max" to times: from the scheduled time of a
    request to its first text and to its end, per token after the first, and between chunks. `goodput` counts the
    requests that met every objective; None without objectives.
    """

    label: str
    num_requests: int
    num_done: int
    errors: dict[str, int]
    seconds: float
    request_rate: float
    output_rate: float
    total_rate: float
    num_prompt: int
    num_cached: int
    num_output: int
    num_chunks: int
    goodput: float | None
    num_valid: int
    num_structured: int
    has_usage: bool
    client_cpu: float
    client_lag: float
    ttft: dict[str, float]
    tpot: dict[str, float]
    itl: dict[str, float]
    e2e: dict[str, float]

    @property
    def is_client_busy(self) -> bool:
        """Return True if the client itself may have been the bottleneck."""
        return self.client_cpu > BUSY_CPU or self.client_lag > BUSY_LAG

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolate linearly between the two nearest values; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Return percentiles, mean and maximum; zeros without values."""
    named = {f"p{percent}": percentile(values, percent) for percent in PERCENTILES}
    return named | {"mean": math.fsum(values) / max(1, len(values)), "max": max(values, default=0.0)}


def times_of(outcome: Outcome) -> dict[str, float]:
    """Return the times of a finished request: "ttft", "e2e", and "tpot" if it has more than one token."""
    first = outcome.chunks[0] if outcome.chunks else outcome.ended
    times = {"ttft": first - outcome.scheduled, "e2e": outcome.ended - outcome.scheduled}
    if outcome.num_output > 1 and outcome.chunks:
        times["tpot"] = (outcome.chunks[-1] - first) / (outcome.num_output - 1)
    return times


def meets(outcome: Outcome, objectives: Mapping[str, float]) -> bool:
    """Return True if the request succeeded within every objective; one without a second token meets `tpot`."""
    if outcome.error is not None:
        return False
    times = times_of(outcome)
    return all(times.get(name, 0.0) <= limit for name, limit in objectives.items())


def summarise(label: str, measured: Measured, objectives: Mapping[str, float]) -> Summary:
    """Summarise a round."""
    done = [outcome for outcome in measured.outcomes if outcome.error is None]
    times = [times_of(outcome) for outcome in done]
    gaps = [after - before for outcome in done for before, after in pairwise(outcome.chunks)]
    seconds = max(measured.seconds, 1e-9)
    num_prompt, num_output = (sum(getattr(each, name) for each in done) for name in ("num_prompt", "num_output"))
    return Summary(
        label=label,
        num_requests=len(measured.outcomes),
        num_done=len(done),
        errors=dict(Counter(outcome.error for outcome in measured.outcomes if outcome.error is not None)),
        seconds=measured.seconds,
        request_rate=len(done) / seconds,
        output_rate=num_output / seconds,
        total_rate=(num_prompt + num_output) / seconds,
        num_prompt=num_prompt,
        num_cached=sum(outcome.num_cached for outcome in done),
        num_output=num_output,
        num_chunks=sum(len(outcome.chunks) for outcome in done),
        goodput=sum(meets(outcome, objectives) for outcome in done) / seconds if objectives else None,
        num_valid=sum(outcome.is_valid is True for outcome in done),
        num_structured=sum(outcome.is_valid is not None for outcome in done),
        has_usage=not any(outcome.is_counted for outcome in done),
        client_cpu=measured.client_cpu,
        client_lag=percentile(measured.lags, 99),
        ttft=distribution([each["ttft"] for each in times]),
        tpot=distribution([each["tpot"] for each in times if "tpot" in each]),
        itl=distribution(gaps),
        e2e=distribution([each["e2e"] for each in times]),
    )
