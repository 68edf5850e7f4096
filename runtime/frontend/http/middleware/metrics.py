"""ASGI middleware that counts, times, traces and logs requests by route."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....processes.logs import REQUESTS
from ....protocol.metrics import FrontendMetrics
from ...core.opentelemetry import OpenTelemetryTracer
from ...records.request import RequestRecorder, current_request
from ..scope import SCOPE_SEND_BODY, owner_of

request_logger = logging.getLogger(REQUESTS)

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"})


class MetricsMiddleware:
    """Outermost middleware. The route label is the template ("/v1/models/{model}"), so labels stay few."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        measures: FrontendMetrics,
        tracer: OpenTelemetryTracer | None = None,
        is_recorded: bool = False,
    ) -> None:
        """`is_recorded`: requests that generate get records."""
        self._app = app
        self._is_recorded = is_recorded
        self._measures = measures
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Lets streams bypass the inner middleware for each token; it only inspects the start and the end.
        scope[SCOPE_SEND_BODY] = send
        status = 499  # the client disconnected before a response

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        recorder = None
        if self._is_recorded:
            recorder = RequestRecorder(f"{scope['method']} {scope['path']}", lambda: owner_of(scope))
            current_request.set(recorder)  # of this request's task and those that it starts
        began = time.monotonic()
        self._measures.num_http_running += 1
        with nullcontext() if self._tracer is None else self._tracer.serve(scope) as span:
            try:
                await self._app(scope, receive, send_noting_status)
            except Exception:
                status = 500  # the server answers with a 500
                raise
            finally:
                scope.pop(SCOPE_SEND_BODY, None)  # the scope is a part of what it refers to
                self._measures.num_http_running -= 1
                route = _route(scope)
                seconds = time.monotonic() - began
                self._measures.answered(route, status, seconds)
                if recorder is not None:
                    recorder.end(route, status)
                if request_logger.isEnabledFor(logging.INFO):
                    _log_request(route, status, seconds, recorder)
                if span is not None:
                    span.end(route, status)


def _log_request(route: str, status: int, seconds: float, recorder: RequestRecorder | None) -> None:
    """Log a line: for people in words, in JSON by fields. It has no text of the request."""
    fields: dict[str, Any] = {"route": route, "status": status, "seconds": round(seconds, 4)}
    told = f"{route} {status}"
    if recorder is not None and recorder.record is not None:
        total, first = recorder.record.totals()
        fields |= {"prompt_tokens": total.prompt, "cached_tokens": total.cached, "completion_tokens": total.completion}
        told += f", {total.prompt} tokens in ({total.cached} cached), {total.completion} out"
        if first is not None:
            fields["first_token_seconds"] = round(first, 4)
            told += f", first after {first:.3f} s"
    request_logger.info("%s, %.3f s", told, seconds, extra={"fields": fields})


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    method = scope["method"] if scope["method"] in METHODS else "OTHER"
    return f"{method} {getattr(route, 'path', 'unknown')}"
