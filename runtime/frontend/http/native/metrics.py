"""`/metrics`: Prometheus metrics of all frontends and the core, also under the names of vLLM and SGLang.

Sources of the names: vLLM's and SGLang's "Production Metrics". Histograms under a foreign name keep this server's
buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from fastapi import APIRouter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry
from starlette.responses import PlainTextResponse, Response

from ....protocol.core import CoreStats, DiskStats, ModelInfo
from ....protocol.errors import RuntimeFailed
from ....protocol.metrics import CoreMetrics, FrontendMetrics, Histogram
from ...core.client import CoreClient
from ...core.frontend_peers import FrontendPeers
from ..transport.body_route import BodyRoute

# Ours, without "ramiform_" -> the same elsewhere. A counter's name is without "_total".
METRIC_ALIASES = {
    "requests_running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "requests_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_held": ("vllm:kv_cache_usage_perc", "sglang:token_usage"),
    "cache_hit_rate": ("sglang:cache_hit_rate",),
    "kv_slots": ("sglang:max_total_num_tokens",),
    "kv_pages": ("sglang:num_pages",),
    "kv_page_tokens": ("sglang:page_size",),
    "kv_slots_held": ("sglang:num_used_tokens",),
    "prompt_tokens": ("vllm:prompt_tokens", "vllm:prefix_cache_queries", "sglang:prompt_tokens"),
    "cached_tokens": ("vllm:prefix_cache_hits", "sglang:cached_tokens"),
    "generated_tokens": ("vllm:generation_tokens", "sglang:generation_tokens"),
    "retractions": ("vllm:num_preemptions", "sglang:num_retracted_requests"),
    "guessed_tokens": ("vllm:spec_decode_num_draft_tokens",),
    "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens",),
    "accepted_length": ("sglang:spec_accept_length",),
    "step_tokens": ("vllm:iteration_tokens_total",),
    "time_to_first_token_seconds": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "inter_token_latency_seconds": ("vllm:inter_token_latency_seconds", "sglang:inter_token_latency_seconds"),
    "request_seconds": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    "queue_seconds": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    "prefill_seconds": ("vllm:request_prefill_time_seconds",),
    "decode_seconds": ("vllm:request_decode_time_seconds",),
    "request_prompt_tokens": ("vllm:request_prompt_tokens",),
    "request_generated_tokens": ("vllm:request_generation_tokens",),
    "requests_finished": ("sglang:num_requests",),
    "requests_aborted": ("sglang:num_aborted_requests",),
}


def exposition(frontends: FrontendMetrics, core: tuple[ModelInfo, CoreStats, CoreMetrics] | None) -> bytes:
    """Return the text for Prometheus. `core` is None while the model loads."""
    name = "" if core is None else core[0].name
    collector = _MetricFamilies(name)
    collector.frontends(frontends)
    if core is not None:
        collector.core(*core)
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


class _MetricFamilies:
    """Collector of fixed values, the interface that prometheus_client expects."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._all: list[Metric] = []

    def describe(self) -> list[Metric]:
        """Return nothing: a collector is built for each scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._all

    def frontends(self, measures: FrontendMetrics) -> None:
        histogram, counter, gauge = self._histogram, self._counter, self._gauge
        histogram("time_to_first_token_seconds", "From a request to its first token", measures.ttft)
        histogram("inter_token_latency_seconds", "Between a step's tokens of a request and the next's", measures.itl)
        histogram("request_seconds", "From a request to its end", measures.e2e)
        histogram("request_prompt_tokens", "Tokens of a prompt", measures.prompt_tokens)
        histogram("request_generated_tokens", "Tokens of an output", measures.output_tokens)
        ended = measures.outcomes
        counter("requests_finished", "Requests that ended, for any reason", sum(ended.values()))
        counter("requests_aborted", "Requests that were ended early", ended.get("abort", 0))
        for full in ("ramiform_request_outcomes", "vllm:request_success"):
            family = CounterMetricFamily(full, "Requests that ended, by how", labels=["model_name", "finished_reason"])
            for outcome, num in sorted(ended.items()):
                if full.startswith("ramiform") or outcome != "error":
                    family.add_metric([self._model, outcome], num)
            self._all.append(family)
        self._http(measures)
        gauge("http_requests_running", "HTTP requests being answered", measures.num_http_running)

    def _http(self, measures: FrontendMetrics) -> None:
        answers = CounterMetricFamily("ramiform_http_requests", "HTTP answers", labels=["method", "route", "status"])
        errors = CounterMetricFamily(
            "ramiform_http_errors", "HTTP answers that are errors", labels=["method", "route", "status"]
        )
        for key, num in sorted(measures.http_answers.items()):
            method, route, status = key.split(" ")
            answers.add_metric([method, route, status], num)
            if int(status) >= 400:
                errors.add_metric([method, route, status], num)
        spent = HistogramMetricFamily(
            "ramiform_http_request_seconds", "To the last byte of an HTTP answer", labels=["method", "route"]
        )
        for key, seconds in sorted(measures.http_seconds.items()):
            spent.add_metric(key.split(" "), _buckets(seconds), seconds.sum)
        self._all += [answers, errors, spent]

    def core(self, info: ModelInfo, stats: CoreStats, measures: CoreMetrics) -> None:
        histogram, counter, gauge = self._histogram, self._counter, self._gauge
        gauge("requests_running", "Requests that a step computes", stats.num_running)
        gauge("requests_waiting", "Requests that wait for a place, or their grammar", stats.num_waiting)
        gauge("kv_use", "Share of the KV pool's pages in use, cached prefixes included", stats.kv_use)
        gauge("kv_slots", "Tokens whose KV fits at once", info.num_slots)
        gauge("kv_pages", "KV pages of the pool", info.num_pages)
        gauge("kv_page_tokens", "Tokens of a KV page", info.page_size)
        self._endpoint_picker(info)
        gauge(
            "kv_held",
            "Share of the KV pool's pages that running requests hold",
            stats.num_held_pages / max(1, info.num_pages),
        )
        gauge("kv_slots_held", "Tokens' places that running requests hold", stats.num_held_pages * info.page_size)
        gauge("cached_pages", "KV pages that hold prefixes for reuse", stats.num_cached_pages)
        gauge("host_cached_pages", "Host pages that hold prefixes for reuse", stats.num_host_cached_pages)
        gauge("cache_hit_rate", "Share of prompt tokens that were not computed, since start", stats.cache_hit_rate)
        counter("prompt_tokens", "Prompt tokens of requests that started", stats.num_prompt_tokens)
        counter("cached_tokens", "Prompt tokens taken from the cache", stats.num_cached_tokens)
        counter("generated_tokens", "Tokens generated", stats.num_output_tokens)
        counter("forced_tokens", "Generated tokens that a grammar forced", stats.num_forced_tokens)
        counter("guessed_tokens", "Draft tokens that were verified", stats.num_guessed_tokens)
        counter("accepted_tokens", "Draft tokens that were accepted", stats.num_accepted_tokens)
        self._accepted_lengths(stats.accepted_lengths)
        self._speculation(stats)
        counter("retractions", "Times that a running request was retracted", stats.num_retractions)
        counter("evicted_pages", "KV pages that lost what they held", stats.num_evicted_pages)
        if info.num_state_slots:
            gauge("state_slots", "Slots of recurrent states", info.num_state_slots)
            gauge("state_checkpoints", "Recurrent states kept of cached prefixes", stats.num_checkpoints)
            counter("kept_states", "Recurrent states that were kept of cached prefixes", stats.num_kept_states)
            counter("evicted_states", "Kept states that were given away for want of slots", stats.num_evicted_states)
            counter("replayed_tokens", "Cached tokens computed again for want of a state", stats.num_replayed_tokens)
        if info.num_window_pages:
            gauge("window_pages", "KV pages of layers with a sliding window", info.num_window_pages)
            gauge("window_pages_held", "Those that running requests hold", stats.num_held_window_pages)
            counter("window_pages_lost", "Those that cached prefixes lost", stats.num_lost_window_pages)
        self._disk(stats.disk)
        counter("steps", "Forward steps", stats.num_steps)
        histogram("queue_seconds", "A request's wait for its turn, beside that for its grammar", measures.queue)
        histogram("prefill_seconds", "From a request's first step to its first token", measures.prefill)
        histogram("decode_seconds", "From a request's first token to its last", measures.decode)
        histogram("step_seconds", "One step: planning, forward, sampling", measures.step)
        histogram("step_tokens", "Tokens computed in one step", measures.step_tokens)
        histogram("grammar_compile_seconds", "Compiling one constraint", measures.grammar_compile)
        histogram("grammar_mask_seconds", "One mask of the vocabulary", measures.grammar_mask)
        counter("grammar_errors", "Constraints that could not be compiled", measures.num_bad_grammars)
        gauge("grammars", "Compiled constraints that are cached", measures.num_grammars)
        gauge("grammar_bytes", "Memory of cached constraints and their masks", measures.num_grammar_bytes)
        counter("grammar_renewals", "Automata of constraints that were begun afresh", measures.num_grammar_renewals)
        if info.reads_pictures:
            histogram("tower_seconds", "One pass of the vision tower, of one image", measures.tower)
            counter("reused_images", "Images of prompts whose features were kept", measures.num_reused_pictures)

    def _endpoint_picker(self, info: ModelInfo) -> None:
        """Add what the endpoint pickers of llm-d and the gateway inference extension read from labels.

        Requests are not counted by adapter. All that are loaded can run at once, so they are named as running.
        """
        cache = {"block_size": str(info.page_size), "num_gpu_blocks": str(info.num_pages)}
        loaded = [adapter.name for adapter in info.adapters]
        adapters = {
            "max_lora": str(len(loaded)),
            "running_lora_adapters": ",".join(loaded),
            "waiting_lora_adapters": "",
        }
        for name, meaning, labels, value in (
            ("vllm:cache_config_info", "Size and number of the KV pages", cache, 1),
            ("vllm:lora_requests_info", "LoRA adapters that are loaded", adapters, 0),
        ):
            family = GaugeMetricFamily(name, meaning, labels=["model_name", *labels])
            family.add_metric([self._model, *labels.values()], value)
            self._all.append(family)

    def _accepted_lengths(self, lengths: Sequence[int]) -> None:
        """Add the histogram of accepted guesses per verification, which yields one further token each."""
        num, accepted = sum(lengths), sum(index * count for index, count in enumerate(lengths))
        buckets = [(str(index), float(count)) for index, count in enumerate(accumulate(lengths))]
        self._add(
            HistogramMetricFamily,
            "accepted_guesses",
            "Guesses of a draft that proved right, of one verification",
            lambda family: family.add_metric([self._model], [*buckets, ("+Inf", float(num))], accepted),
        )
        self._gauge("accepted_length", "Tokens that a verification gave, on average", 1 + accepted / num if num else 0)

    def _speculation(self, stats: CoreStats) -> None:
        """Add where drafts are made, and what they gain. The reasons are in `/get_server_info`."""
        labels = ["model_name", "source", "text", "requests"]
        for name, meaning, value in (
            ("speculation_open", "Whether drafts are made for these texts and so many requests at once", "is_open"),
            ("speculation_gain", "Speed lately over plain decoding's; 0: not measured", "gain"),
        ):
            family = GaugeMetricFamily(f"ramiform_{name}", meaning, labels=labels)
            for state in stats.speculation:
                own = [self._model, stats.draft_source, state.text, str(state.num_rows)]
                family.add_metric(own, float(getattr(state, value)))
            self._all.append(family)

    def _disk(self, disk: DiskStats | None) -> None:
        """Add what the disk cache holds and has done."""
        if disk is None:
            return
        self._gauge("disk_pages", "KV pages on disk that can be read", disk.num_pages)
        self._gauge("disk_bytes", "Size of the disk cache's files", disk.num_bytes)
        self._gauge(
            "disk_writing", "1 if this process writes to the disk cache", disk.is_writer and not disk.has_failed
        )
        self._counter("disk_hit_tokens", "Prompt tokens whose KV came from the disk", disk.num_hit_tokens)
        self._counter("disk_ahead_tokens", "Tokens whose KV was read before a request came", disk.num_ahead_tokens)
        self._counter("disk_saved_pages", "KV pages written to the disk", disk.num_saved)
        self._counter("disk_evicted_pages", "KV pages removed from the disk for want of room", disk.num_evicted)
        self._counter("disk_damaged_pages", "KV pages on disk that were dropped as damaged", disk.num_damaged)

    def _counter(self, name: str, meaning: str, value: float) -> None:
        self._add(CounterMetricFamily, name, meaning, lambda family: family.add_metric([self._model], value))

    def _gauge(self, name: str, meaning: str, value: float) -> None:
        self._add(GaugeMetricFamily, name, meaning, lambda family: family.add_metric([self._model], value))

    def _histogram(self, name: str, meaning: str, values: Histogram) -> None:
        buckets = _buckets(values)
        self._add(
            HistogramMetricFamily, name, meaning, lambda family: family.add_metric([self._model], buckets, values.sum)
        )

    def _add(self, kind: Any, name: str, meaning: str, fill: Any) -> None:
        for full in (f"ramiform_{name}", *METRIC_ALIASES.get(name, ())):
            family = kind(full, meaning, labels=["model_name"])
            fill(family)
            self._all.append(family)


def _buckets(values: Histogram) -> list[tuple[str, float]]:
    """Convert counts to Prometheus' cumulative buckets."""
    bounds = [*(str(float(bound)) for bound in values.bounds), "+Inf"]
    return list(zip(bounds, (float(count) for count in accumulate(values.counts)), strict=True))


class MetricsApi:
    """Route for Prometheus."""

    def __init__(self, core: CoreClient, peers: FrontendPeers) -> None:
        self._core = core
        self._peers = peers

    @property
    def router(self) -> APIRouter:
        router = APIRouter(tags=["operations"], route_class=BodyRoute)
        router.add_api_route(
            "/metrics", self.metrics, methods=["GET"], response_model=None, response_class=PlainTextResponse
        )
        return router

    async def metrics(self) -> Response:
        """Return all metrics as Prometheus text; only those of the frontends while the model loads."""
        try:
            info = self._core.require_info()
            core = info, *await self._core.measures()
        except RuntimeFailed:
            core = None
        return Response(exposition(await self._peers.total(), core), media_type=CONTENT_TYPE_LATEST)
