"""Histograms and counters of the processes, as values that travel and add up."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal

import msgspec

RequestOutcome = Literal["stop", "length", "abort", "error"]

WAIT_BUCKETS = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160]
GAP_BUCKETS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5]
DURATION_BUCKETS = [0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960]
MICROSECOND_BUCKETS = [1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.1, 1]
TOKEN_BUCKETS = [1.0 * (1 << power) for power in range(18)]


class Histogram(msgspec.Struct):
    """Counts of values below each bound and above the previous one; the last count has no bound."""

    bounds: list[float]  # ascending; a value equal to a bound is below it
    counts: list[int]
    sum: float = 0.0

    @classmethod
    def over(cls, bounds: list[float]) -> Histogram:
        return cls(bounds, [0] * (len(bounds) + 1))

    @property
    def num(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, num: int = 1) -> None:
        """Add `num` values that are all `value`."""
        self.counts[bisect_left(self.bounds, value)] += num
        self.sum += num * value

    def add(self, other: Histogram) -> None:
        assert self.bounds == other.bounds
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


def _histogram(bounds: list[float]) -> Histogram:
    return msgspec.field(default_factory=lambda: Histogram.over(bounds))


class FrontendMetrics(msgspec.Struct, kw_only=True):
    """Metrics of one frontend, in seconds and tokens. A request is one sequence that the core was asked for."""

    ttft: Histogram = _histogram(WAIT_BUCKETS)  # from request to first token
    itl: Histogram = _histogram(GAP_BUCKETS)  # between one step's tokens of a request and the next one's
    e2e: Histogram = _histogram(DURATION_BUCKETS)
    prompt_tokens: Histogram = _histogram(TOKEN_BUCKETS)
    output_tokens: Histogram = _histogram(TOKEN_BUCKETS)
    outcomes: dict[RequestOutcome, int] = {}
    http_answers: dict[str, int] = {}  # "METHOD route status"
    http_seconds: dict[str, Histogram] = {}  # by "METHOD route", to the last byte
    num_http_running: int = 0

    def count(self, outcome: RequestOutcome) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def answered(self, route: str, status: int, seconds: float) -> None:
        key = f"{route} {status}"
        self.http_answers[key] = self.http_answers.get(key, 0) + 1
        if (spent := self.http_seconds.get(route)) is None:
            spent = self.http_seconds[route] = Histogram.over(DURATION_BUCKETS)
        spent.observe(seconds)


class CoreMetrics(msgspec.Struct, kw_only=True):
    """Metrics of the core, in seconds and tokens."""

    queue: Histogram = _histogram(WAIT_BUCKETS)  # waiting for its turn
    prefill: Histogram = _histogram(WAIT_BUCKETS)  # from there to the first token
    decode: Histogram = _histogram(DURATION_BUCKETS)  # from there to the last
    step: Histogram = _histogram(GAP_BUCKETS)  # one step: planning and forward
    step_tokens: Histogram = _histogram(TOKEN_BUCKETS)
    grammar_compile: Histogram = _histogram(GAP_BUCKETS)
    grammar_mask: Histogram = _histogram(MICROSECOND_BUCKETS)
    num_bad_grammars: int = 0
    num_grammars: int = 0  # cached
    num_grammar_bytes: int = 0  # that they take, as estimated
    num_grammar_renewals: int = 0  # of automata that had grown too large
    tower: Histogram = _histogram(WAIT_BUCKETS)  # one picture through the vision tower
    num_reused_pictures: int = 0  # pictures of prompts whose features were kept


def sum_metrics(parts: Iterable[FrontendMetrics]) -> FrontendMetrics:
    """Sum over all frontends."""
    whole = FrontendMetrics()
    for part in parts:
        for name in ("ttft", "itl", "e2e", "prompt_tokens", "output_tokens"):
            getattr(whole, name).add(getattr(part, name))
        _add_counts(whole.outcomes, part.outcomes)
        _add_counts(whole.http_answers, part.http_answers)
        for route, spent in part.http_seconds.items():
            whole.http_seconds.setdefault(route, Histogram.over(spent.bounds)).add(spent)
        whole.num_http_running += part.num_http_running
    return whole


def _add_counts(
    whole: dict[str, int] | dict[RequestOutcome, int], part: dict[str, int] | dict[RequestOutcome, int]
) -> None:
    for key, num in part.items():
        whole[key] = whole.get(key, 0) + num  # type: ignore[index, call-overload]
