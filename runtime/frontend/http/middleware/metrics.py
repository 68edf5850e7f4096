"""Counts and times every HTTP request by its route, and traces it when there is a tracer. Plain ASGI."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ....protocol.metrics import FrontendMetrics

METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"})


SCOPE_SEND_BODY = (
    "ramiform.parts"  # in the scope: sends a part of a body that is not the last, past all that stands between
)


class ServerSpan(Protocol):
    def end(self, route: str, status: int) -> None: ...


class HttpTracer(Protocol):
    def serve(self, scope: Scope) -> AbstractContextManager[ServerSpan]: ...


class _NoSpan:
    def end(self, route: str, status: int) -> None:
        """Nobody traces."""


class MetricsMiddleware:
    """The outermost layer. A request's route is its template ("/v1/models/{model}"), so that names stay few."""

    def __init__(self, app: ASGIApp, *, measures: FrontendMetrics, tracer: HttpTracer | None = None) -> None:
        self._app = app
        self._measures = measures
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[SCOPE_SEND_BODY] = (
            send  # every layer on the way costs each token; they look at an answer's begin and end only
        )
        status = 499  # the client left before there was an answer

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        began = time.monotonic()
        self._measures.num_http_running += 1
        tracing: AbstractContextManager[ServerSpan] = nullcontext(_NoSpan())
        if self._tracer is not None:
            tracing = self._tracer.serve(scope)
        with tracing as span:
            try:
                await self._app(scope, receive, send_noting)
            except Exception:
                status = 500  # answered further out
                raise
            finally:
                self._measures.num_http_running -= 1
                route = _route(scope)
                self._measures.answered(route, status, time.monotonic() - began)
                span.end(route, status)


def _route(scope: Scope) -> str:
    route: Any = scope.get("route")
    method = scope["method"] if scope["method"] in METHODS else "OTHER"
    return f"{method} {getattr(route, 'path', 'unknown')}"
