"""Spans of OpenTelemetry for every call of a model, by its semantic conventions of generative AI."""

from __future__ import annotations

import json
from typing import Any

from ...runtime.protocol import session
from ...runtime.protocol.errors import RequestError
from ..operations.hooks import Hook, HookedCall

_REQUEST = {  # of the conventions -> a sampling parameter
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_new_tokens",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.stop_sequences": "stop",
}


class OpenTelemetryHook(Hook):
    """A hook that makes a span of each call, below the span that is current where the program asks.

    `tracer_provider` is one of OpenTelemetry's SDK, by default the process's. With `content` the spans have prompts and
    answers. Raises RequestError without the extra `otel`.
    """

    def __init__(self, tracer_provider: Any = None, *, content: bool = False) -> None:
        try:
            from opentelemetry import trace
        except ImportError:
            raise RequestError(
                "spans need OpenTelemetry: pip install ramiform[otel]", param="tracer_provider", code="not_installed"
            ) from None
        self._kind = trace.SpanKind.CLIENT
        self._failed = trace.StatusCode.ERROR
        self._tracer = trace.get_tracer("ramiform", tracer_provider=tracer_provider)
        self._content = content

    def before(self, call: HookedCall) -> None:
        """Begin the span."""
        call.memo[self] = self._tracer.start_span("ramiform", kind=self._kind, start_time=round(call.began * 1e9))

    def after(self, call: HookedCall) -> None:
        """End the span with what was answered."""
        self._end(call, {})

    def error(self, call: HookedCall) -> None:
        """End the span with the error."""
        error = call.error
        assert error is not None
        call.memo[self].set_status(self._failed, error.message)
        self._end(call, {"error.type": error.code or error.kind})

    def _end(self, call: HookedCall, found: dict[str, Any]) -> None:
        span = call.memo.pop(self)
        kind = "chat" if call.has_roles else "text_completion"
        file, _, line = call.line.rpartition(":")
        found |= {
            "gen_ai.operation.name": kind,
            "gen_ai.provider.name": "ramiform",
            "code.file.path": file,
            "code.line.number": int(line),
            "code.function.name": call.program,
            "ramiform.variable": call.variable,
        }
        if (model := call.model) is not None:
            found |= {"gen_ai.request.model": model, "gen_ai.response.model": model}
        if isinstance(call.operation, session.Gen):
            sampling = call.operation.sampling
            found |= {name: getattr(sampling, parameter) or None for name, parameter in _REQUEST.items()}
            found["gen_ai.request.temperature"] = sampling.temperature
            found["gen_ai.request.choice.count"] = call.operation.n if call.operation.n > 1 else None
        if (tokens := call.tokens) is not None:
            found["gen_ai.usage.input_tokens"] = tokens.prompt
            found["gen_ai.usage.output_tokens"] = tokens.completion
            found["gen_ai.usage.cache_read.input_tokens"] = tokens.cached
        if call.finish is not None:
            found["gen_ai.response.finish_reasons"] = [call.finish]
        if self._content:
            found["gen_ai.input.messages"] = _message("user", call.prompt)
            if call.text is not None:
                found["gen_ai.output.messages"] = _message("assistant", call.text)
        span.update_name(" ".join(filter(None, (kind, model))))
        span.set_attributes({name: value for name, value in found.items() if value is not None})
        span.end(round((call.began + (call.seconds or 0.0)) * 1e9))


def _message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}], ensure_ascii=False)
