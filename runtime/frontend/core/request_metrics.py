"""Each request to the core as its frontend sees it: when its tokens came, and how it ended. Knows no clients."""

from __future__ import annotations

import time
from typing import Protocol

from ...protocol.core import Generate, Tokens
from ...protocol.errors import ErrorInfo
from ...protocol.metrics import FrontendMetrics, RequestOutcome


class Span(Protocol):
    """What traces a request; the current trace is its parent."""

    def first_token(self) -> None: ...

    def end(self, outcome: RequestOutcome, *, num_output: int, num_cached: int, error: ErrorInfo | None) -> None: ...


class Tracer(Protocol):
    def begin(self, request: Generate) -> Span: ...


class RequestObserver:
    """Counts into `measures`, and traces when there is a tracer."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self.measures = FrontendMetrics()
        self._tracer = tracer

    def begin(self, request: Generate) -> RequestMetrics:
        """`request` is on its way now."""
        self.measures.prompt_tokens.observe(len(request.tokens))
        return RequestMetrics(self.measures, None if self._tracer is None else self._tracer.begin(request))


class RequestMetrics:
    """One request. What comes after its end does not count."""

    __slots__ = ("_began", "_last", "_measures", "_num_cached", "_num_output", "_num_passes", "_over", "_span")

    def __init__(self, measures: FrontendMetrics, span: Span | None) -> None:
        self._measures = measures
        self._span = span
        self._began = time.monotonic()
        self._last: float | None = None
        self._num_output = 0
        self._num_passes = 0
        self._num_cached = 0
        self._over = False

    def take(self, item: Tokens | ErrorInfo) -> None:
        """What the core said of it."""
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
