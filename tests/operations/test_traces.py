"""OpenTelemetry traces as a collector receives them, over OTLP on the loopback."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import httpx
import pytest

import ramiform

pytest.importorskip("opentelemetry.sdk")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@contextmanager
def collecting() -> Iterator[tuple[str, list[Any]]]:
    """A collector's address and the spans that it received, in protobuf."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            assert self.path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
                service = {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"]
                assert service == "ramiform"
                spans.extend(span for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Not on the tests' output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", spans
        finally:
            server.shutdown()
            thread.join()


def attributes(span: Any) -> dict[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(each) for each in found.values] if kind == "array_value" else found

    return {attribute.key: value(attribute.value) for attribute in span.attributes}


@pytest.mark.exhaustive
def test_a_request_is_a_span_of_the_caller_s_trace_and_its_sequences_are_spans_of_it() -> None:
    with collecting() as (endpoint, spans), ramiform.Runtime(port=0, num_pages=256, otlp_endpoint=endpoint) as runtime:
        assert runtime.url is not None
        with httpx.Client(base_url=runtime.url, timeout=120) as client:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            body = {"model": "ramiform-demo", "prompt": "One two", "max_tokens": 5, "n": 2, "ignore_eos": True}
            answer = client.post("/v1/completions", json=body, headers=headers).json()
            stream = client.post("/v1/completions", json=body | {"stream": True}, headers=headers)
            assert stream.text.endswith("data: [DONE]\n\n")
            wrong = {"text": "x", "sampling_params": {"regex": "[a-"}}
            assert client.post("/generate", json=wrong).status_code == 400
        runtime.shutdown()  # what it had to say has been said then
    first, second, failed = (span for span in spans if span.name.startswith("POST"))
    for server in (first, second):
        assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
        assert server.name == "POST /v1/completions"
        facts = attributes(server)
        assert (facts["http.route"], facts["http.response.status_code"]) == ("/v1/completions", 200)
        sequences = [span for span in spans if span.parent_span_id == server.span_id]
        assert len(sequences) == 2
        for span in sequences:
            assert span.trace_id == server.trace_id
            facts = attributes(span)
            assert facts["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
            assert facts["gen_ai.usage.output_tokens"] == facts["gen_ai.request.max_tokens"] == 5
            assert facts["gen_ai.response.finish_reasons"] == ["length"]
            length = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
            assert 0 < facts["gen_ai.response.time_to_first_chunk"] <= length
            assert server.start_time_unix_nano <= span.start_time_unix_nano
    [sequence] = [span for span in spans if span.parent_span_id == failed.span_id]
    assert failed.trace_id.hex() != TRACE
    assert (attributes(failed)["http.response.status_code"], attributes(sequence)["error.type"]) == (400, "request")
    assert "regex" in sequence.status.message


@pytest.mark.exhaustive
def test_a_collector_that_is_gone_harms_nobody() -> None:
    with ramiform.Runtime(port=0, num_pages=256, otlp_endpoint="http://127.0.0.1:9") as runtime:
        assert runtime.url is not None
        assert httpx.post(f"{runtime.url}/generate", json={"text": "x"}, timeout=120).status_code == 200


def look_up(num: Literal[1, 2]) -> str:
    """Look something up."""
    return "Rome" * num


@ramiform.function
def travel(s: ramiform.ProgramState) -> None:
    s += "A" + ramiform.gen("a", max_tokens=3, temperature=0, ignore_eos=True)
    branches = s.fork(2)
    branches += ramiform.gen("b", max_tokens=2, temperature=0, ignore_eos=True)
    branches.join("concate_and_append")
    s += ramiform.gen("call", tools=[look_up], max_tokens=40)


@ramiform.function
def talk(s: ramiform.ProgramState) -> None:
    s += ramiform.user("Hi")
    s += ramiform.assistant(ramiform.gen("a", max_tokens=3, temperature=0, ignore_eos=True))
    s += ramiform.gen("b", regex="(")


@pytest.mark.exhaustive
@pytest.mark.parametrize("over_http", [False, True])
def test_a_program_is_a_workflow_with_its_generations_branches_and_tools(over_http: bool) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("the program's own")
    with collecting() as (endpoint, spans), ramiform.Runtime(port=0, num_pages=256, otlp_endpoint=endpoint) as runtime:
        assert runtime.url is not None
        backend = ramiform.HttpRuntime(runtime.url) if over_http else runtime
        with tracer.start_as_current_span("request of a user") as own:
            parent = own.get_span_context()
            state = travel.run(backend=backend)  # whose state is held
        with pytest.raises(ramiform.RequestError):
            talk.run(backend=backend)
        if over_http:
            backend.close()
        runtime.shutdown()
    assert state.text()
    roots = {span.name: span for span in spans if span.name.startswith("invoke_workflow")}
    assert set(roots) == {"invoke_workflow travel", "invoke_workflow talk"}
    root = roots["invoke_workflow travel"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (f"{parent.trace_id:032x}", f"{parent.span_id:016x}")
    assert attributes(root)["gen_ai.operation.name"] == "invoke_workflow"
    assert attributes(root)["gen_ai.agent.name"] == "travel"
    by_name: dict[str, list[Any]] = {}
    for span in spans:
        if span.trace_id == root.trace_id and span is not root and not span.name.startswith("POST"):
            by_name.setdefault(span.name, []).append(span)
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano
    generations = by_name.pop("text_completion ramiform-demo")
    branches = [by_name.pop(f"branch {number}")[0] for number in (1, 2)]
    [tool] = by_name.pop("execute_tool look_up")
    assert not by_name
    assert all(branch.parent_span_id == root.span_id for branch in branches)
    assert attributes(tool)["gen_ai.tool.name"] == "look_up"
    assert [span.parent_span_id for span in generations].count(root.span_id) == 2
    for branch in branches:
        [inside] = [span for span in generations if span.parent_span_id == branch.span_id]
        facts = attributes(inside)
        assert facts["gen_ai.usage.output_tokens"] == 2
        assert facts["ramiform.variable"] == "b"
        assert facts["code.file.path"] == __file__
    total = sum(attributes(span)["gen_ai.usage.output_tokens"] for span in generations)
    assert attributes(root)["gen_ai.usage.output_tokens"] == total
    failed = roots["invoke_workflow talk"]
    assert failed.status.code == failed.status.STATUS_CODE_ERROR
    assert "regex" in failed.status.message
    inside = [span for span in spans if span.parent_span_id == failed.span_id]
    assert [span.name for span in inside] == ["chat ramiform-demo"] * 2
