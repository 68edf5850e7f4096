"""Exports OpenTelemetry traces: a server span for each HTTP request, and under it one for each request to the core.

Names are those of the semantic conventions (http.*, gen_ai.*). The caller's `traceparent` is the parent. The libraries
are the extra `otel`, imported only when traces are enabled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Scope

from ...protocol.core import Generate
from ...protocol.errors import ErrorInfo, RamiformError
from ...protocol.metrics import RequestOutcome

FLUSH_MS = 5000  # the time that a frontend waits for the collector when it ends


class OpenTelemetryTracer:
    """Sends spans to `endpoint` (OTLP over HTTP), or to `exporter` if given.

    Raises RamiformError without the libraries.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.propagate import extract
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise RamiformError(f"traces need the extra `otel` (pip install ramiform[otel]): {error}") from None
        self._trace = trace
        self._extract = extract
        exporter = exporter or OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=FLUSH_MS / 1000)
        # An own provider: the process's global one belongs to the program that embeds the runtime.
        self._provider = TracerProvider(resource=Resource.create({"service.name": "ramiform"}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ramiform")

    @contextmanager
    def serve(self, scope: Scope) -> Iterator[HttpSpan]:
        """Open the span of an HTTP request, which is the current span inside the block."""
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        with self._tracer.start_as_current_span(
            scope["method"],
            context=self._extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": scope["method"], "url.path": scope["path"]},
        ) as span:
            yield HttpSpan(span, self._trace)

    def begin(self, request: Generate) -> RequestSpan:
        """Start the span of a request to the core."""
        sampling = request.sampling
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "ramiform",
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.input_tokens": len(request.tokens),
            "ramiform.rid": request.rid,
        }
        if request.program is not None:
            attributes["ramiform.program"] = request.program
        span = self._tracer.start_span("text_completion", kind=self._trace.SpanKind.INTERNAL, attributes=attributes)
        return RequestSpan(span, self._trace)

    def close(self) -> None:
        """Send the remaining spans. Blocks for FLUSH_MS at most."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


class HttpSpan:
    """The span of an HTTP request."""

    def __init__(self, span: Any, trace: Any) -> None:
        self._span = span
        self._trace = trace

    def end(self, route: str, status: int) -> None:
        self._span.update_name(route)
        self._span.set_attribute("http.route", route.partition(" ")[2])
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(self._trace.StatusCode.ERROR)


class RequestSpan:
    """The span of a request to the core, a child of the current span."""

    def __init__(self, span: Any, trace: Any) -> None:
        self._span = span
        self._trace = trace
        self._began = time.monotonic()

    def first_token(self) -> None:
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", time.monotonic() - self._began)

    def end(self, outcome: RequestOutcome, *, num_output: int, num_cached: int, error: ErrorInfo | None) -> None:
        self._span.set_attribute("gen_ai.response.finish_reasons", [outcome])
        self._span.set_attribute("gen_ai.usage.output_tokens", num_output)
        self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", num_cached)
        if error is not None:
            self._span.set_attribute("error.type", error.kind)
            self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error.message))
        self._span.end()
