"""Measures each request to the core at the frontend: when its tokens came, and how it ended."""

from __future__ import annotations

import time

from ...protocol.core import Generate, Tokens
from ...protocol.errors import ErrorInfo
from ...protocol.metrics import FrontendMetrics, RequestOutcome
from .opentelemetry import OpenTelemetryTracer, RequestSpan


class RequestObserver:
    """Counts requests into `measures`, and traces them when there is a tracer."""

    def __init__(self, tracer: OpenTelemetryTracer | None = None) -> None:
        self.measures = FrontendMetrics()
        self._tracer = tracer

    def begin(self, request: Generate) -> RequestMetrics:
        """Start measuring `request`, which is being sent."""
        self.measures.prompt_tokens.observe(len(request.tokens))
        return RequestMetrics(self.measures, None if self._tracer is None else self._tracer.begin(request))


class RequestMetrics:
    """Measures one request. Tokens that come after its end do not count."""

    __slots__ = ("_began", "_last", "_measures", "_num_cached", "_num_output", "_num_passes", "_over", "_span")

    def __init__(self, measures: FrontendMetrics, span: RequestSpan | None) -> None:
        self._measures = measures
        self._span = span
        self._began = time.monotonic()
        self._last: float | None = None
        self._num_output = 0
        self._num_passes = 0
        self._num_cached = 0
        self._over = False

    def take(self, item: Tokens | ErrorInfo) -> None:
        """Count the core's tokens, or its error, for the request."""
        if isinstance(item, ErrorInfo):
            self.end("error", item)
            return
        if item.ids:
            now = time.monotonic()
            if self._last is None:
                self._measures.ttft.observe(now - self._began)
                if self._span is not None:
                    self._span.first_token()
            else:
                num_steps = max(1, item.num_passes - self._num_passes)  # several where tokens come in bulk
                self._measures.itl.observe((now - self._last) / num_steps, num_steps)
            self._last = now
            self._num_passes = item.num_passes
            self._num_output += len(item.ids)
        if item.finish is not None:
            self._num_cached = item.num_cached
            self.end(item.finish.type)

    def end(self, outcome: RequestOutcome, error: ErrorInfo | None = None) -> None:
        if self._over:
            return
        self._over = True
        self._measures.count(outcome)
        self._measures.e2e.observe(time.monotonic() - self._began)
        self._measures.output_tokens.observe(self._num_output)
        if self._span is not None:
            self._span.end(outcome, num_output=self._num_output, num_cached=self._num_cached, error=error)
