"""Malformed input is answered with an error, and other clients do not notice."""

from __future__ import annotations

import re

import httpx
import msgspec
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ramiform
from ramiform import gen
from ramiform.runtime.protocol.session import AnswerBatch, FromFrontend, Hello, Malformed, Welcome

GREEDY = {"temperature": 0.0, "max_new_tokens": 6}
QUESTION = "Question: What is the capital of France?\nAnswer:"


@ramiform.function
def ask(s: ramiform.ProgramState, prompt: str, **params: object) -> None:
    s += prompt
    s += gen("answer", max_tokens=6, temperature=0, **params)


def lives(url: str) -> bool:
    answer = httpx.post(f"{url}/generate", json={"text": QUESTION, "sampling_params": GREEDY}, timeout=120)
    return answer.status_code == 200 and "Paris" in answer.json()["text"]


def test_a_prompt_beyond_the_context_names_both_numbers(url: str, backend: ramiform.Runtime) -> None:
    long = "spider " * 4000
    answer = httpx.post(f"{url}/generate", json={"text": long, "sampling_params": GREEDY}, timeout=120)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(backend.info.context_length) in error["message"]
    with pytest.raises(ramiform.RequestError, match=str(backend.info.context_length)):
        ask.run(long)
    assert lives(url)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"repetition_penalty": 1e-50}, "repetition_penalty"),  # 0 to a float32: nothing could be drawn
        ({"regex": "[a-"}, "regex"),
        ({"stop_regex": ["x", "a*"]}, "stop_regex"),
        ({"stop_regex": "(a|b)*a(a|b){30}"}, "stop_regex"),
        ({"json_schema": '{"type": "object", "properties": {"a": {"type": "nothing"}}}'}, "json_schema"),
        ({"json_schema": "{"}, "json_schema"),
        ({"max_new_tokens": "many"}, "max_new_tokens"),
        ({"no_such_parameter": 1}, "no_such_parameter"),
        ({"regex": "a", "json_schema": "{}"}, "regex"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_a_400_that_names_it(url: str, params: dict[str, object], param: str) -> None:
    body = {"text": QUESTION, "sampling_params": GREEDY | params}
    answer = httpx.post(f"{url}/generate", json=body, timeout=120)
    assert answer.status_code == 400, answer.text
    assert param in answer.text
    assert lives(url)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"text": 5}', b"{}", b'{"text": "a", "input_ids": [1]}', b"[" * 100_000, b"\xff"],
)
def test_a_malformed_body_is_a_400(url: str, body: bytes) -> None:
    answer = httpx.post(f"{url}/generate", content=body, headers={"content-type": "application/json"}, timeout=120)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("penalty", [0.01, 10.0])
def test_the_strongest_penalties_leave_the_grammar_its_say(url: str, penalty: float, temperature: float) -> None:
    params = {"regex": "[0-9]+", "repetition_penalty": penalty, "temperature": temperature, "max_new_tokens": 20}
    answer = httpx.post(f"{url}/generate", json={"text": QUESTION, "sampling_params": params}, timeout=120)
    assert answer.status_code == 200, answer.text
    assert re.fullmatch("[0-9]+", answer.json()["text"])
    assert lives(url)


def test_a_token_outside_the_vocabulary_is_named(url: str) -> None:
    answer = httpx.post(f"{url}/generate", json={"input_ids": [1, 10_000_000]}, timeout=120)
    assert answer.status_code == 400
    assert "10000000" in answer.text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_garbage_on_the_socket_is_answered_and_the_runtime_lives(
    runtime: ramiform.Runtime, frames: list[bytes]
) -> None:
    decoder = msgspec.msgpack.Decoder(FromFrontend)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 120_000)
        socket.connect(runtime.address)
        socket.send_multipart(frames)
        assert isinstance(decoder.decode(socket.recv()), Malformed)
        socket.send(msgspec.msgpack.encode(Hello(ramiform.__version__)))
        while (answer := decoder.decode(socket.recv())) == AnswerBatch([]):
            pass  # asks whether we are still there, when somebody else has gone
        assert isinstance(answer, Welcome)


@pytest.mark.exhaustive
def test_thousands_that_come_and_go_do_not_stop_the_runtime(runtime: ramiform.Runtime) -> None:
    decoder = msgspec.msgpack.Decoder(FromFrontend)
    with zmq.Context() as context:
        for _ in range(2200):  # a monitor socket holds 2,000 events: unread, they would block the I/O thread
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.RCVTIMEO, 120_000)
                socket.connect(runtime.address)
                socket.send(b"")
                assert isinstance(decoder.decode(socket.recv()), Malformed)


def test_a_bad_program_harms_no_other(backend: ramiform.Runtime) -> None:
    states = ask.run_batch(
        [{"prompt": QUESTION}, {"prompt": QUESTION, "regex": "[a-"}, {"prompt": ""}, {"prompt": QUESTION}],
        return_exceptions=True,
    )
    assert "Paris" in states[0]["answer"]
    assert "Paris" in states[3]["answer"]
    assert isinstance(states[1].error, ramiform.RequestError)
