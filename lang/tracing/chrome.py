"""Traces in the Chrome trace event format, for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...runtime.programs.records.events import Event, RunRecord
from ...runtime.programs.records.spans import phases, spans_of


def chrome_events(trace: RunRecord, process: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace in the Chrome trace event format, times in microseconds.

    Each state is a track, each fork or join an arrow. Gaps of a track have the category "gap" and are named by their
    cause. `process` numbers the run among those of one file.
    """

    def event(phase: str, state: int, name: str, seconds: float, **more: Any) -> dict[str, Any]:
        return {"ph": phase, "pid": process, "tid": state, "name": name, "ts": round(seconds * 1e6, 3), **more}

    yield event("M", 0, "process_name", 0.0, args={"name": trace.title})
    begins = {state.number: next((one.start for one in state.events), None) for state in trace.states}
    ends = {state.number: max((one.end or one.start for one in state.events), default=0.0) for state in trace.states}
    for state in trace.states:
        title = "program" if state.parent is None else f"state {state.number}, of {state.parent}"
        yield event("M", state.number, "thread_name", 0.0, args={"name": title})
        for span in spans_of(trace, state):
            if span.is_gap:
                length = round(span.seconds * 1e6, 3)
                yield event(
                    "X", state.number, span.cause, span.start, dur=length, cat="gap", args={"place": span.place}
                )
        for index, one in enumerate(state.events):
            end = one.start if one.end is None else one.end
            name = one.name or one.kind
            duration = round((end - one.start) * 1e6, 3)
            yield event("X", state.number, name, one.start, dur=duration, cat=one.kind, args=_arguments(one))
            for part, start, until in _phases(one):
                yield event("X", state.number, part, start, dur=round((until - start) * 1e6, 3), cat="phase")
            for other in one.states:
                arrow = {"id": f"{process}.{state.number}.{index}.{other}", "cat": one.kind}
                if one.kind == "fork" and (begin := begins.get(other)) is not None:
                    yield event("s", state.number, "fork", end, **arrow)
                    yield event("f", other, "fork", begin, bp="e", **arrow)
                elif one.kind in ("join", "gather") and ends[other] <= end:
                    yield event("s", other, "join", ends[other], **arrow)
                    yield event("f", state.number, "join", end, bp="e", **arrow)


def _phases(event: Event) -> Iterator[tuple[str, float, float]]:
    """Yield the phases of a generation: name, start, end.

    Without the runtime's timings the first streamed text separates prefill from decode.
    """
    if event.end is None:
        return
    if (timings := event.timings) is not None:
        for name, start, until in phases(timings, event.start, event.end, event.seconds):
            if name in ("queue", "prefill", "decode") or (name != "transport" and until > start):
                yield name, start, until
    elif event.first_text is not None:
        yield "prefill", event.start, event.first_text
        yield "decode", event.first_text, event.end


def _arguments(event: Event) -> dict[str, Any]:
    """Return the details that the viewer shows for a selected event."""
    arguments: dict[str, Any] = {"label": event.label, "place": event.place, "text": event.text}
    if event.tokens is not None:
        arguments["prompt_tokens"] = event.tokens.prompt
        arguments["cached_tokens"] = event.tokens.cached
        arguments["completion_tokens"] = event.tokens.completion
        arguments["forced_tokens"] = event.tokens.forced
        arguments["accepted_tokens"] = event.tokens.accepted
    arguments |= {"samples": event.samples, "runtime_seconds": event.seconds, "error": event.error}
    return {name: value for name, value in arguments.items() if value is not None}
