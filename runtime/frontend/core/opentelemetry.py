"""Exports OpenTelemetry traces of HTTP requests and of programs.

A server span for each HTTP request has one for each request to the core under it. A program is a workflow: its span has
those of its generations and tools under it, and one for each branch with the branch's own. Names are those of the
semantic conventions (http.*, gen_ai.*); texts are not exported. The caller's `traceparent` is the parent. The libraries
are the extra `otel`, imported only when traces are enabled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...programs.records.events import Event
from ...programs.records.view import ProgramView
from ...protocol.core import Generate
from ...protocol.errors import ErrorInfo, RamiformError
from ...protocol.metrics import RequestOutcome

FLUSH_MS = 5000  # the time that a frontend waits for the collector when it ends
MAX_PROGRAM_SPANS = 1000  # of one program
CHATS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat")  # routes whose operation is a chat

TOOL = "tool "  # begins the label of a tool's call

_path: ContextVar[str] = ContextVar("ramiform_path", default="")  # of the HTTP request
_GENERATIONS = ("gen", "select", "decide")


class OpenTelemetryTracer:
    """Sends spans to `endpoint` (OTLP over HTTP), or to `exporter` if given.

    Raises RamiformError without the libraries.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        try:
            from opentelemetry import context, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.propagate import extract
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise RamiformError(f"traces need the extra `otel` (pip install ramiform[otel]): {error}") from None
        self._trace = trace
        self._extract = extract
        self._context = context
        self.model = ""  # the served model's name, once it is known
        exporter = exporter or OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=FLUSH_MS / 1000)
        # An own provider: the process's global one belongs to the program that embeds the runtime.
        self._provider = TracerProvider(resource=Resource.create({"service.name": "ramiform"}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("ramiform")

    @contextmanager
    def serve(self, scope: Mapping[str, Any]) -> Iterator[HttpSpan]:
        """Open the span of an HTTP request, which is the current span inside the block."""
        _path.set(scope["path"])
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        with self._tracer.start_as_current_span(
            scope["method"],
            context=self._extract(headers),
            kind=self._trace.SpanKind.SERVER,
            attributes={"http.request.method": scope["method"], "url.path": scope["path"]},
        ) as span:
            yield HttpSpan(span, self._trace)

    def current_context(self) -> Any:
        """Return the context of the span that is open now."""
        return self._context.get_current()

    def begin(self, request: Generate) -> RequestSpan | None:
        """Start the span of a request to the core. Those of programs are exported with these."""
        if request.program is not None:
            return None
        sampling = request.sampling
        operation = "chat" if _path.get() in CHATS else "text_completion"
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "ramiform",
            "gen_ai.request.model": self.model,
            "gen_ai.request.max_tokens": sampling.max_new_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.usage.input_tokens": len(request.tokens),
            "ramiform.rid": request.rid,
        }
        name = f"{operation} {self.model}".strip()
        span = self._tracer.start_span(name, kind=self._trace.SpanKind.INTERNAL, attributes=attributes)
        return RequestSpan(span, self._trace)

    def export_program(self, view: ProgramView, traceparent: str | None, context: Any) -> None:
        """Export the spans of a program that has ended, below the span `traceparent`, or the one of `context`."""
        if traceparent is not None:
            context = self._extract({"traceparent": traceparent})
        root = self._start(f"invoke_workflow {view.title}", view.began_at, context, _program_attributes(view))
        spans: dict[int, tuple[Any, float]] = {}  # of each state, with its end
        num_spans = 0
        for number, state in enumerate(view.states):
            parent = root if state.parent is None else spans.get(state.parent, (root, 0.0))[0]
            span = parent
            if state.parent is not None:
                span = self._start(f"branch {number}", view.began_at + state.begin, self._below(parent), {})
            spans[state.number] = span, state.end
            has_roles = False
            for event in state.events:
                has_roles |= event.kind == "role"
                num_spans += 1
                if num_spans <= MAX_PROGRAM_SPANS:
                    self._export_event(event, view.began_at, self._below(span), has_roles)
            if num_spans > MAX_PROGRAM_SPANS:
                root.set_attribute("ramiform.spans_left_out", True)
        for span, end in reversed(list(spans.values())):
            if span is not root:
                span.end(_ns(view.began_at + end))
        if view.status in ("failed", "lost"):
            root.set_attribute("error.type", view.status)
            root.set_status(self._trace.Status(self._trace.StatusCode.ERROR, view.error or view.status))
        root.end(_ns(view.began_at + view.seconds))

    def _export_event(self, event: Event, began_at: float, context: Any, has_roles: bool) -> None:
        """Export the span of an operation that generated or called a tool."""
        attributes = _event_attributes(event, self.model, has_roles)
        if attributes is None or event.end is None:
            return
        about = attributes.get("gen_ai.request.model", attributes.get("gen_ai.tool.name"))
        name = f"{attributes['gen_ai.operation.name']} {about}".strip()
        span = self._start(name, began_at + event.start, context, attributes)
        if event.error is not None:
            span.set_attribute("error.type", "failed")
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, event.error))
        span.end(_ns(began_at + event.end))

    def _start(self, name: str, at: float, context: Any, attributes: dict[str, Any]) -> Any:
        kind = self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(name, context=context, kind=kind, attributes=attributes, start_time=_ns(at))

    def _below(self, span: Any) -> Any:
        return self._trace.set_span_in_context(span)

    def close(self) -> None:
        """Send the remaining spans. Blocks for FLUSH_MS at most."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


def _program_attributes(view: ProgramView) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.provider.name": "ramiform",
        "gen_ai.agent.name": view.title,
        "gen_ai.workflow.name": view.title,  # its name in conventions before 2026
        "gen_ai.usage.input_tokens": view.prompt_tokens,
        "gen_ai.usage.output_tokens": view.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": view.cached_tokens,
        "ramiform.program": view.id,
        "ramiform.states": len(view.states),
        **_place_attributes(view.place or ""),
    }


def _event_attributes(event: Event, model: str, has_roles: bool) -> dict[str, Any] | None:
    """Return the attributes of an operation; None if it has no span."""
    attributes = _place_attributes(event.place)
    if event.kind == "ask" and event.label.startswith(TOOL):
        tool = event.label.removeprefix(TOOL)
        kind = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool, "gen_ai.tool.type": "function"}
        return {**kind, **attributes}
    if event.kind not in _GENERATIONS:
        return None
    attributes["gen_ai.operation.name"] = "chat" if has_roles else "text_completion"
    attributes["gen_ai.provider.name"] = "ramiform"
    attributes["gen_ai.request.model"] = model
    attributes["ramiform.operation"] = event.kind
    if event.name is not None:
        attributes["ramiform.variable"] = event.name
    if event.tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = event.tokens.prompt
        attributes["gen_ai.usage.output_tokens"] = event.tokens.completion
        attributes["gen_ai.usage.cache_read.input_tokens"] = event.tokens.cached
    if event.finish is not None:
        attributes["gen_ai.response.finish_reasons"] = [event.finish]
    if (timings := event.timings) is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = timings.queue + timings.grammar + timings.prefill
        attributes |= {f"ramiform.{name}_seconds": getattr(timings, name) for name in timings.__struct_fields__}
    return attributes


def _place_attributes(place: str) -> dict[str, Any]:
    file, _, line = place.rpartition(":")
    return {"code.file.path": file, "code.line.number": int(line)} if line.isdecimal() else {}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


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

    def first_token(self, seconds: float) -> None:
        """Note that the first token came after so many seconds."""
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)

    def end(self, outcome: RequestOutcome, *, num_output: int, num_cached: int, error: ErrorInfo | None) -> None:
        self._span.set_attribute("gen_ai.response.finish_reasons", [outcome])
        self._span.set_attribute("gen_ai.usage.output_tokens", num_output)
        self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", num_cached)
        if error is not None:
            self._span.set_attribute("error.type", error.kind)
            self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error.message))
        self._span.end()
