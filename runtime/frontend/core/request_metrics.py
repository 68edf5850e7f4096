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
        span = None if self._tracer is None else self._tracer.begin(request)
        return RequestMetrics(self.measures, span, in_bulk=request.in_bulk)


class RequestMetrics:
    """Measures one request. Tokens that come after its end do not count.

    With `in_bulk` the core's times, which come with the finish, tell when tokens were there. Otherwise `first_seen` is
    when the first ones came.
    """

    __slots__ = (
        "_began",
        "_in_bulk",
        "_last",
        "_measures",
        "_num_output",
        "_num_passes",
        "_over",
        "_span",
        "first_seen",
    )

    def __init__(self, measures: FrontendMetrics, span: RequestSpan | None, *, in_bulk: bool) -> None:
        self._measures = measures
        self._span = span
        self._in_bulk = in_bulk
        self._began = time.monotonic()
        self._last: float | None = None
        self.first_seen: float | None = None
        self._num_output = 0
        self._num_passes = 0
        self._over = False

    def take(self, item: Tokens | ErrorInfo) -> None:
        """Count the core's tokens, or its error, for the request."""
        if isinstance(item, ErrorInfo):
            self.end("error", item)
            return
        self._num_output += len(item.ids)
        if not self._in_bulk and item.ids:
            self._take_streamed(item)
        if item.finish is not None:
            if self._in_bulk and self._num_output and item.timings is not None and not self._over:
                self._note_first(max(0.0, time.monotonic() - self._began - item.since_first))
                if (num_steps := item.num_passes - 1) > 0:
                    self._measures.itl.observe(item.since_first / num_steps, num_steps)
            self.end(item.finish.type, num_cached=item.num_cached)

    def end(self, outcome: RequestOutcome, error: ErrorInfo | None = None, *, num_cached: int = 0) -> None:
        if self._over:
            return
        self._over = True
        self._measures.count(outcome)
        self._measures.e2e.observe(time.monotonic() - self._began)
        self._measures.output_tokens.observe(self._num_output)
        if self._span is not None:
            self._span.end(outcome, num_output=self._num_output, num_cached=num_cached, error=error)

    def _take_streamed(self, item: Tokens) -> None:
        now = time.monotonic()
        if self._last is None:
            self.first_seen = now
            self._note_first(now - self._began)
        else:
            num_steps = max(1, item.num_passes - self._num_passes)  # several with speculation
            self._measures.itl.observe((now - self._last) / num_steps, num_steps)
        self._last = now
        self._num_passes = item.num_passes

    def _note_first(self, seconds: float) -> None:
        self._measures.ttft.observe(seconds)
        if self._span is not None:
            self._span.first_token(seconds)
