"""A worker of NVIDIA Dynamo: token ids from its frontend to the core, tokens and KV events back."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from typing import Any

from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, ZmqSource
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup, DynamoRuntimeConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument

from ..frontend.core.client import CoreClient, TokenStream
from ..frontend.http.native.metrics import exposition
from ..processes.bounded_sleep import poll_until
from ..protocol.config import RuntimeConfig, ServeConfig
from ..protocol.core import Generate, ModelInfo
from ..protocol.errors import RamiformError, RequestError
from .request import chunk_of, generate_of, session_of

SNAPSHOT_SECONDS = 0.5  # between reports of the load to the router

# Where Dynamo's sockets of a worker listen. Each defaults to all addresses; here, to the host of HTTP.
_HOST_VARIABLES = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST")


def set_environment(serve: ServeConfig) -> None:
    """Let Dynamo listen where HTTP does, and let requests drain, unless the environment says otherwise."""
    for name in _HOST_VARIABLES:
        os.environ.setdefault(name, serve.host)
    grace = float(os.environ.setdefault("DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS", "2"))  # until routers have heard
    os.environ.setdefault("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT", str(int(grace + serve.drain_seconds) + 10))


def worker_config(info: ModelInfo) -> WorkerConfig:
    """Read Dynamo's settings from its environment variables (`DYN_NAMESPACE`, `DYN_DISCOVERY_BACKEND`, ...)."""
    parser = argparse.ArgumentParser()
    DynamoRuntimeArgGroup().add_arguments(parser)
    settings = DynamoRuntimeConfig.from_cli_args(parser.parse_args([]))
    settings.validate()
    return WorkerConfig.from_runtime_config(
        settings,
        model_name=info.path,
        served_model_name=info.name,
        component=os.environ.get("DYN_COMPONENT", "backend"),
        disaggregation_mode=DisaggregationMode.AGGREGATED,
    )


class DynamoEngine(LLMEngine):
    """Serves Dynamo's requests with a core.

    `on_ready` is called before the first request. Running requests end before `cleanup` returns, unless they take
    longer than `drain_seconds`, or `is_urgent` is true.
    """

    def __init__(
        self,
        config: RuntimeConfig,
        core: CoreClient,
        info: ModelInfo,
        on_ready: Callable[[], None],
        is_urgent: Callable[[], bool],
    ) -> None:
        self._config = config
        self._core = core
        self._info = info
        self._on_ready = on_ready
        self._is_urgent = is_urgent
        self._streams: dict[str, TokenStream] = {}  # by Dynamo's id of the request
        self._publisher: Any = None
        self._reports: asyncio.Task[None] | None = None
        self._exposition = ""

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[LLMEngine, WorkerConfig]:
        raise NotImplementedError("started by `ramiform serve --engine dynamo`")

    async def start(self, worker_id: int) -> EngineConfig:
        core = self._config.core
        self._reports = asyncio.create_task(self._report())
        return EngineConfig(
            model=self._info.path,
            served_model_name=self._info.name,
            model_aliases=list(self._info.aliases),
            llm=LlmRegistration(
                context_length=self._info.max_request_tokens,
                kv_cache_block_size=self._info.page_size,
                total_kv_blocks=self._info.num_pages,
                max_num_seqs=self._info.max_running,
                max_num_batched_tokens=core.prefill_budget,
            ),
        )

    async def on_endpoint_ready(self, endpoint: Any) -> None:
        self._on_ready()

    async def kv_event_sources(self) -> list[KvEventSource]:
        core = self._config.core
        if core.kv_events is None or not core.prefix_cache:
            return []
        here = core.kv_events.replace("//0.0.0.0:", "//127.0.0.1:").replace("//*:", "//127.0.0.1:")
        return [ZmqSource(endpoint=here, topic=core.kv_events_topic, dp_rank=0)]

    def component_metrics_dp_ranks(self) -> list[int]:
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        self._publisher = publisher

    async def register_prometheus(self, metrics: Any) -> None:
        metrics.register_prometheus_expfmt_callback(lambda: self._exposition)

    async def health_check_payload(self) -> dict[str, Any]:
        return build_health_check_payload(0)

    async def generate(self, request: Any, context: Any) -> AsyncGenerator[dict[str, Any], None]:
        normalize_request_token_ids(request)
        name = context.id()
        message: Generate | None = None
        try:
            message = generate_of(request, self._info)
            with self._core.submit(message) as stream:
                self._streams[name] = stream
                num_output = 0
                async for tokens in stream:
                    num_output += len(tokens.ids)
                    yield chunk_of(tokens, len(message.tokens), num_output)
        except RequestError as error:
            raise InvalidArgument(str(error)) from None
        except RamiformError as error:
            raise EngineShutdown(str(error)) from None
        finally:
            self._streams.pop(name, None)
            if message is not None and message.program is not None and session_of(request)[1]:
                self._core.end_states(message.program, None)

    async def abort(self, context: Any) -> None:
        if (stream := self._streams.get(context.id())) is not None:
            stream.abort()

    async def cleanup(self) -> None:
        # Dynamo has taken the worker out of discovery, and would now close the connections of running requests.
        await poll_until(lambda: self._is_urgent() or not self._streams, self._config.serve.drain_seconds)
        if self._reports is not None:
            self._reports.cancel()
            self._reports = None

    async def _report(self) -> None:
        """Report the load to the router, and the metrics to whoever scrapes Dynamo's system port."""
        while not self._core.has_failed:
            stats, measures = await self._core.measures()
            self._exposition = exposition(self._core.observer.measures, (self._info, stats, measures)).decode()
            if self._publisher is not None:
                snapshot = ComponentSnapshot(
                    kv_used_blocks=stats.num_held_pages,
                    kv_total_blocks=self._info.num_pages,
                    gpu_cache_usage=stats.num_held_pages / self._info.num_pages,
                    kv_cache_hit_rate=stats.cache_hit_rate if stats.num_prompt_tokens else None,
                    dp_rank=0,
                )
                self._publisher.publish(0, snapshot)
            await asyncio.sleep(SNAPSHOT_SECONDS)
