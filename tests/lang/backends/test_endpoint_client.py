"""Calls of an endpoint: what is repeated, what ends a wait, what is counted, what errors say and never say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ramiform
from ramiform import BusyError, OpenAI, ProgramState, RequestError, RuntimeFailed, gen

from .conftest import Answer, JsonServer

KEY = "sk-a-secret"
AT_ONCE = {"Retry-After": "0"}
COUNTS = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}
DONE = Answer({"choices": [{"index": 0, "text": "well", "finish_reason": "stop"}], "usage": COUNTS})


def failing(status: int = 503, headers: dict[str, str] = AT_ONCE, **error: Any) -> Answer:
    return Answer({"error": {"message": "not now", **error}}, status, headers)


@pytest.fixture
def connect(server: JsonServer) -> Iterator[Callable[..., OpenAI]]:
    made: list[OpenAI] = []

    def connect(**options: Any) -> OpenAI:
        made.append(OpenAI("tiny", base_url=f"{server.url}/v1", **{"api_key": KEY, **options}))
        return made[-1]

    yield connect
    for backend in made:
        backend.close()


@ramiform.function
def program(s: ProgramState) -> None:
    s += "Hi" + gen("x", max_tokens=8)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_what_may_succeed_later_is_repeated_and_counted(server: JsonServer, connect: Any, status: int) -> None:
    server.answers = [failing(status), failing(status), DONE]
    backend = connect()
    assert program.run(backend=backend)["x"] == "well"
    assert [each.body for each in server.requests] == [server.requests[0].body] * 3
    usage = backend.usage
    assert (usage.requests, usage.retries) == (3, 2)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.total_tokens) == (7, 5, 3, 10)
    assert "prompt_tokens=7" in repr(usage)
    usage.reset()
    assert (usage.requests, usage.prompt_tokens, backend.token_usage.total_tokens) == (0, 0, 0)


@pytest.mark.slow
def test_a_connection_that_breaks_is_made_again(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer(breaks=True), DONE]
    assert program.run(backend=connect())["x"] == "well"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (failing(400), RequestError),
        (failing(404), RequestError),
        (failing(429, code="insufficient_quota"), BusyError),
        (failing(500, {"x-should-retry": "false"}), RuntimeFailed),
    ],
)
def test_what_cannot_succeed_later_is_not_repeated(
    server: JsonServer, connect: Any, answer: Answer, kind: type[Exception]
) -> None:
    server.answers = [answer]
    with pytest.raises(kind, match="not now"):
        program.run(backend=connect())
    assert len(server.requests) == 1


def test_an_error_names_the_address_the_status_and_the_request(server: JsonServer, connect: Any) -> None:
    server.answers = [failing(503, {**AT_ONCE, "x-request-id": "req_77"})]
    with pytest.raises(RuntimeFailed) as caught:
        program.run(backend=connect(max_retries=1))
    for part in (f"{server.url}/v1/completions", "503 not now", "request req_77", "after 2 attempts"):
        assert part in str(caught.value)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("options", "message"), [({}, "the argument api_key"), ({"api_key": None}, "comes from OPENAI_API_KEY")]
)
def test_a_refused_key_is_named_by_its_source_and_never_shown(
    server: JsonServer, connect: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = [Answer({"error": {"message": f"Incorrect API key provided: {KEY}."}}, 401)]
    with pytest.raises(RequestError, match=message) as caught:
        program.run(backend=connect(**options))
    assert KEY not in str(caught.value)
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_without_a_key_the_error_says_which_variable_to_set(
    server: JsonServer, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.answers = [failing(401)]
    with pytest.raises(RequestError, match="no key was sent: set OPENAI_API_KEY"):
        program.run(backend=connect(api_key=None))
    assert "authorization" not in server.requests[0].headers
    with pytest.raises(RequestError, match="needs an API key: set OPENAI_API_KEY") as caught:
        program.run(backend=OpenAI("gpt-4", base_url="https://api.openai.com/v1"))
    assert caught.value.code == "missing_api_key"


def test_a_wait_beyond_the_timeout_is_not_begun(server: JsonServer, connect: Any) -> None:
    server.answers = [failing(429, {"Retry-After": "3600"})]
    with pytest.raises(BusyError, match=r"asked to wait 3.* beyond the timeout of 30 s"):
        program.run(backend=connect(timeout=30.0))
    assert len(server.requests) == 1


@pytest.mark.slow
def test_a_server_that_is_silent_is_left_at_the_timeout(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer(holds=True)]
    with pytest.raises(RuntimeFailed, match=r"[tT]imed? ?out.*\(beyond the timeout of 0.3 s\)"):
        program.run(backend=connect(timeout=0.3))
    assert server.was_left.wait(30)


@pytest.mark.slow
def test_a_programs_timeout_ends_a_wait(server: JsonServer, connect: Any) -> None:
    server.answers = [failing(429, {"Retry-After": "300"})]
    with pytest.raises(RequestError, match="did not end within") as caught:
        program.run(backend=connect(), timeout=0.5)
    assert caught.value.param == "timeout"


def test_closing_a_program_ends_its_wait_and_frees_its_place(server: JsonServer, connect: Any) -> None:
    refused = threading.Event()

    def reply(request: Any) -> Answer:
        if refused.is_set():
            return DONE
        refused.set()
        return failing(429, {"Retry-After": "300"})

    server.reply = reply
    backend = connect(max_concurrency=1)
    state = program.run(stream=True, backend=backend)
    assert refused.wait(30)
    state.close()
    assert program.run(backend=backend)["x"] == "well"


@ramiform.function
def streamed(s: ProgramState) -> None:
    s += "Hi" + gen("x", max_tokens=8)


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


@pytest.mark.exhaustive
def test_a_stream_that_breaks_before_its_first_text_is_begun_again(server: JsonServer, connect: Any) -> None:
    busy = {"error": {"message": "overloaded", "type": "overloaded_error"}}
    whole = Answer(events=[piece("we"), piece("ll", "stop"), {"choices": [], "usage": COUNTS}, "[DONE]"])
    server.answers = [Answer(events=[piece("")]), Answer(events=[busy]), whole]
    backend = connect()
    state = streamed.run(stream=True, backend=backend)
    assert "".join(state.text_iter("x")) == "well"
    assert (backend.usage.requests, backend.usage.retries, backend.usage.completion_tokens) == (3, 2, 3)


def test_a_stream_that_breaks_after_text_is_not_repeated(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer(events=[piece("we")])]
    pieces = streamed.run(stream=True, backend=connect()).text_iter("x")
    assert next(pieces) == "we"
    with pytest.raises(RuntimeFailed, match=r"ended without \[DONE\]"):
        next(pieces)
    assert len(server.requests) == 1


def test_further_fields_are_a_part_of_every_request(server: JsonServer, connect: Any) -> None:
    server.answers = [DONE]
    program.run(backend=connect(extra_body={"service_tier": "flex", "max_tokens": 5}))
    body = server.requests[0].body
    assert (body["service_tier"], body["max_tokens"], body["prompt"]) == ("flex", 5, "Hi")


def test_answers_without_counts_are_counted_as_such(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer({"choices": [{"index": 0, "text": "well"}]})]
    backend = connect()
    program.run(backend=backend)
    assert (backend.usage.uncounted, backend.usage.total_tokens) == (1, 0)


def test_no_more_calls_run_at_once_than_allowed(server: JsonServer, connect: Any) -> None:
    running, most, lock = 0, 0, threading.Lock()
    second = threading.Event()

    def reply(request: Any) -> Answer:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 2:
                second.set()
        second.wait(30)  # until two are here at once
        with lock:
            running -= 1
        return DONE

    server.reply = reply
    server._lock = threading.RLock()  # replies run at once
    server._answer = lambda request: (server.requests.append(request), reply(request))[1]  # type: ignore[method-assign]
    program.run_batch([{}] * 9, backend=connect(max_concurrency=2))
    assert (most, len(server.requests)) == (2, 9)


@pytest.mark.slow
def test_requests_beyond_a_limit_wait_and_are_let_through_in_order(
    server: JsonServer, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramiform.lang.backends.endpoints.rate_limits.WINDOW_SECONDS", 0.2)
    server.answers = [DONE]
    states = program.run_batch([{}] * 7, backend=connect(requests_per_minute=3))
    assert [state["x"] for state in states] == ["well"] * 7


@pytest.mark.slow
def test_a_programs_timeout_ends_the_wait_for_a_rate_limit(server: JsonServer, connect: Any) -> None:
    server.answers = [DONE]
    backend = connect(tokens_per_minute=12)
    program.run(backend=backend)  # counts 10
    with pytest.raises(RequestError, match="did not end within"):
        program.run(backend=backend, timeout=0.3)
    assert len(server.requests) == 1


def test_a_request_that_no_limit_lets_through_is_refused(server: JsonServer, connect: Any) -> None:
    with pytest.raises(RequestError, match=r"about 8 tokens.* exceeds tokens_per_minute = 5") as caught:
        program.run(backend=connect(tokens_per_minute=5))
    assert caught.value.param == "tokens_per_minute"
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_concurrency": 0}, "max_concurrency"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": 2.5}, "tokens_per_minute"),
        ({"extra_body": {"x": object()}}, "extra_body"),
        ({"default_headers": {"X": "a\r\nY: b"}}, "default_headers"),
        ({"default_headers": {"X": 3}}, "default_headers"),
        ({"max_retires": 3}, "max_retires"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        OpenAI("tiny", base_url="http://127.0.0.1:9/v1", **options)
    assert caught.value.param == param


@pytest.mark.parametrize("error", [{"code": {}}, {"code": ["a"], "param": 3}, {"param": {"a": 1}, "type": []}])
def test_an_error_with_fields_of_other_types_is_an_error_of_its_status(
    server: JsonServer, connect: Any, error: dict[str, Any]
) -> None:
    server.answers = [failing(400, **error)]
    with pytest.raises(RequestError, match="not now") as raised:
        program.run(backend=connect())
    assert (raised.value.param, raised.value.code) == (None, "http_400")


def test_an_event_with_fields_of_other_types_is_an_error_of_the_server(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer(events=[{"error": {"message": "not now", "code": {}, "param": []}}])]
    with pytest.raises(RuntimeFailed, match="not now"):
        program.run(backend=connect(max_retries=0), stream=True).sync()


def test_an_answer_that_is_nested_too_deep_is_refused(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer(events=["[" * 100_000])]
    with pytest.raises(RuntimeFailed, match="no JSON"):
        program.run(backend=connect(max_retries=0), stream=True).sync()


@pytest.mark.parametrize("url", ["http://user:secret@127.0.0.1/v1", "http://127.0.0.1:99999/v1", "http://[::1/v1"])
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(RequestError) as raised:
        OpenAI("tiny", base_url=url, api_key=KEY)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("counts", [{"prompt_tokens": "7"}, {"completion_tokens": -5, "prompt_tokens_details": [1]}])
def test_counts_that_are_no_natural_numbers_count_as_none(server: JsonServer, connect: Any, counts: Any) -> None:
    server.answers = [Answer({"choices": [{"index": "0", "text": "well", "finish_reason": "stop"}], "usage": counts})]
    backend = connect()
    assert program.run(backend=backend, max_total_tokens=100)["x"] == "well"
    assert backend.usage.total_tokens == 0


def test_choices_that_are_no_objects_are_a_failure_of_the_endpoint(server: JsonServer, connect: Any) -> None:
    server.answers = [Answer({"choices": ["well"]})]
    with pytest.raises(RuntimeFailed, match="where 1 choices were asked for"):
        program.run(backend=connect())
