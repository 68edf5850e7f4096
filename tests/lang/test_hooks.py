"""Hooks are told of every call of a model, wherever it is made, and spans follow OpenTelemetry's conventions."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import code_attributes, gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

import ramiform
from ramiform import Hook, HookedCall, OpenTelemetryHook, ProgramState, RequestError, Scripted, gen, select, user


class Told(Hook):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, HookedCall]] = []

    def before(self, call: HookedCall) -> None:
        self.events.append(("before", call))

    def after(self, call: HookedCall) -> None:
        self.events.append(("after", call))

    def error(self, call: HookedCall) -> None:
        self.events.append(("error", call))

    @property
    def variables(self) -> list[str | None]:
        return [call.variable for kind, call in self.events if kind == "after"]


@ramiform.function
def inner(s: ProgramState, q: str) -> str:
    s += f"Inner {q}:" + gen("a", max_tokens=7)  # the inner line
    return s["a"]  # type: ignore[no-any-return]


@ramiform.function
def outer(s: ProgramState) -> None:
    s += "Outer:" + gen("first") + select("second", ["yes", "no"])
    s.decide(third="Is it?")
    assert s["third"]
    assert inner("x")


def line_of(marker: str) -> str:
    lines, first = inspect.getsourcelines(inspect.getmodule(line_of))  # type: ignore[arg-type]
    [number] = [number for number, line in enumerate(lines, max(first, 1)) if line.rstrip().endswith(f"# {marker}")]
    return f"{__file__}:{number}"


def test_each_call_is_told_before_and_after_with_what_is_known_of_it() -> None:
    told = Told()
    with ramiform.hooks(told):
        outer.run(backend=Scripted(["one two", "no", "yes", "three"]))
    before = [call for kind, call in told.events if kind == "before"]
    after = [call for kind, call in told.events if kind == "after"]
    assert [call.variable for call in before] == [call.variable for call in after] == ["first", "second", "third", "a"]
    assert all(one is other for one, other in zip(before, after, strict=True))
    first, second, third, last = after
    assert (first.prompt, first.text, first.program) == ("Outer:", "one two", "outer")
    assert (second.prompt, second.text) == ("Outer:one two", "no")
    assert third.prompt == "Outer:one twono"
    assert (last.prompt, last.text, last.program, last.line) == (
        "Inner x:",
        "three",
        "inner",
        line_of("the inner line"),
    )
    assert (last.tokens.prompt, last.tokens.completion, last.finish) == (2, 1, "stop")  # type: ignore[union-attr]
    assert all(call.seconds >= 0 and call.error is None for call in after)


def test_a_failed_call_is_told_with_its_error() -> None:
    told = Told()
    with ramiform.hooks(told), pytest.raises(RequestError, match="mine"):
        inner.run("x", backend=Scripted([RequestError("mine", code="bad")]))
    [(_, before), (kind, call)] = told.events
    assert before is call
    assert kind == "error"
    assert (call.error.code, call.text, call.tokens) == ("bad", None, None)  # type: ignore[union-attr]


def test_hooks_reach_batches_and_event_loops_and_end_with_their_block() -> None:
    told, also = Told(), Told()
    backend = Scripted(lambda text: "word")
    with ramiform.hooks(told):
        inner.run_batch([{"q": "x"}] * 5, backend=backend)
        with ramiform.hooks(also):
            asyncio.run(inner.arun("x", backend=backend))
        assert also.variables == ["a"]
    assert told.variables == ["a"] * 6
    inner.run("x", backend=backend)
    assert len(told.events) == 12


def test_a_hook_that_raises_is_logged_and_the_program_goes_on(caplog: Any) -> None:
    class Broken(Hook):
        def before(self, call: HookedCall) -> None:
            raise KeyError("before")

        def after(self, call: HookedCall) -> None:
            raise KeyError("after")

    with ramiform.hooks(Broken()):
        assert inner.run("x", backend=Scripted(["word"])).ret_value == "word"
    assert [str(record.exc_info[1]) for record in caplog.records] == ["'before'", "'after'"]
    with pytest.raises(RequestError, match="methods before, after and error"), ramiform.hooks(3):  # type: ignore[arg-type]
        pass


@pytest.fixture
def exported() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_spans_have_the_attributes_of_the_conventions(exported: Any) -> None:
    @ramiform.function
    def asks(s: ProgramState) -> None:
        s += user("Hello")
        with s.assistant():
            s += gen("answer", max_tokens=9, temperature=0.5, seed=3, stop=["."])

    provider, exporter = exported
    mine = provider.get_tracer("mine")
    with ramiform.hooks(OpenTelemetryHook(provider, content=True)), mine.start_as_current_span("request"):
        asks.run(backend=Scripted(["Hi there"]))
    span, request = sorted(exporter.get_finished_spans(), key=lambda one: one.name)
    assert (span.name, span.kind, span.parent.span_id) == ("chat", SpanKind.CLIENT, request.context.span_id)
    names = gen_ai_attributes
    found = dict(span.attributes)
    assert found[names.GEN_AI_OPERATION_NAME] == names.GenAiOperationNameValues.CHAT.value
    assert found[names.GEN_AI_REQUEST_MAX_TOKENS] == 9
    assert found[names.GEN_AI_REQUEST_TEMPERATURE] == 0.5
    assert found[names.GEN_AI_REQUEST_SEED] == 3
    assert found[names.GEN_AI_REQUEST_STOP_SEQUENCES] == (".",)
    assert found[names.GEN_AI_USAGE_OUTPUT_TOKENS] == 2
    assert found[names.GEN_AI_RESPONSE_FINISH_REASONS] == ("stop",)
    assert "Hello" in found[names.GEN_AI_INPUT_MESSAGES]
    assert "Hi there" in found[names.GEN_AI_OUTPUT_MESSAGES]
    assert found[code_attributes.CODE_FILE_PATH] == __file__
    known = {value for module in (names, code_attributes) for value in vars(module).values() if isinstance(value, str)}
    assert {name for name in found if name.startswith(("gen_ai.", "code."))} <= known
    assert span.end_time >= span.start_time


def test_the_span_of_a_failed_call_has_its_error_and_no_texts(exported: Any) -> None:
    provider, exporter = exported
    with ramiform.hooks(OpenTelemetryHook(provider)), pytest.raises(RequestError):
        inner.run("x", backend=Scripted([RequestError("mine", code="bad")]))
    [span] = exporter.get_finished_spans()
    assert (span.name, span.status.status_code) == ("text_completion", StatusCode.ERROR)
    assert span.attributes["error.type"] == "bad"
    assert not {name for name in span.attributes if name.endswith("messages")}


def test_spans_name_the_model(runtime: Any, exported: Any) -> None:
    provider, exporter = exported
    with ramiform.hooks(OpenTelemetryHook(provider)):
        inner.run("x", backend=runtime)
    [span] = exporter.get_finished_spans()
    name = ramiform.get_server_info(runtime)["name"]
    assert span.name == f"text_completion {name}"
    assert span.attributes[gen_ai_attributes.GEN_AI_REQUEST_MODEL] == name
