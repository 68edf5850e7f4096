"""Fields of vLLM, SGLang and llama.cpp: forbidden tokens, request ids, truncation, log-probabilities and functions."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from .prompts import CAPITAL, CHAT
from .test_peer_routes import chunks, post

COMPLETION = {"prompt": CAPITAL, "max_tokens": 12, "temperature": 0}
ALL_ROUTES = ("/v1/completions", "/v1/chat/completions")


def body_of(path: str) -> dict[str, Any]:
    return COMPLETION if path == "/v1/completions" else {"messages": CHAT, "max_tokens": 12, "temperature": 0}


def text_of(answer: dict[str, Any]) -> str:
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def ids_of(http: httpx.Client, text: str, **options: Any) -> list[int]:
    ids: list[int] = post(http, "/tokenize", prompt=text, **options)["tokens"]
    return ids


def test_a_bad_word_is_not_written_and_the_rest_is_as_before(http: httpx.Client) -> None:
    plain = text_of(post(http, "/v1/completions", **COMPLETION))
    word = plain.split()[0]
    avoided = post(http, "/v1/completions", **COMPLETION, bad_words=[word], return_token_ids=True)["choices"][0]
    assert word in plain
    assert ids_of(http, f" {word}", add_special_tokens=False) != avoided["token_ids"][:1]
    other = post(http, "/v1/completions", **COMPLETION, bad_words=["zebra crossing"])
    assert text_of(other) == plain
    native = {"text": CAPITAL, "sampling_params": {"max_new_tokens": 12, "temperature": 0, "bad_words": [word]}}
    assert post(http, "/generate", **native)["text"] == avoided["text"]


@pytest.mark.parametrize("path", ALL_ROUTES)
def test_only_allowed_tokens_are_generated(http: httpx.Client, path: str) -> None:
    allowed = ids_of(http, " Paris Rome Oslo", add_special_tokens=False)
    answer = post(http, path, **body_of(path), allowed_token_ids=allowed, return_token_ids=True)
    assert set(answer["choices"][0]["token_ids"]) <= set(allowed)
    assert answer["usage"]["completion_tokens"] == 12


def test_a_grammar_and_forbidden_tokens_both_hold(http: httpx.Client) -> None:
    body = COMPLETION | {"guided_choice": [" Paris", " Rome"], "bad_words": ["Paris"]}
    assert text_of(post(http, "/v1/completions", **body)) == " Rome"
    zebra = ids_of(http, "zebra", add_special_tokens=False)
    response = http.post("/v1/completions", json=body | {"allowed_token_ids": zebra, "bad_words": []})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "allowed_token_ids")


def test_llama_cpp_s_grammar_is_a_grammar(http: httpx.Client) -> None:
    for path in ALL_ROUTES:
        body = body_of(path)
        assert text_of(post(http, path, **body, grammar='root ::= "yes" | "no"')) in ("yes", "no")
        assert text_of(post(http, path, **body, grammar="")) == text_of(post(http, path, **body))


@pytest.mark.parametrize("path", ALL_ROUTES)
def test_a_prompt_is_truncated_to_its_last_or_first_tokens(http: httpx.Client, path: str) -> None:
    body = body_of(path) | {"return_token_ids": True}
    whole = prompt_ids(post(http, path, **body))
    assert prompt_ids(post(http, path, **body, truncate_prompt_tokens=5)) == whole[-5:]
    assert prompt_ids(post(http, path, **body, truncate_prompt_tokens=5, truncation_side="right")) == whole[:5]
    assert prompt_ids(post(http, path, **body, truncate_prompt_tokens=-1)) == whole
    long = (
        {"prompt": "one " * 4000}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "one " * 4000}]}
    )
    most = http.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = post(http, path, **body | long, truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == most - 12
    for wrong in (0, -2, most + 1):
        response = http.post(path, json=body | {"truncate_prompt_tokens": wrong})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def prompt_ids(answer: dict[str, Any]) -> list[int]:
    return list(answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"])


@pytest.mark.parametrize("path", ALL_ROUTES)
def test_prompt_logprobs_are_those_of_the_native_route(http: httpx.Client, path: str) -> None:
    answer = post(http, path, **body_of(path), prompt_logprobs=3, return_token_ids=True)
    positions = answer["prompt_logprobs"] if path != "/v1/completions" else answer["choices"][0]["prompt_logprobs"]
    ids = prompt_ids(answer)
    native = post(
        http,
        "/generate",
        input_ids=ids,
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=3,
    )["meta_info"]
    assert len(positions) == len(ids)
    assert positions[0] is None
    for token, position, own, top in list(
        zip(ids, positions, native["input_token_logprobs"], native["input_top_logprobs"], strict=True)
    )[1:]:
        assert position[str(token)]["logprob"] == pytest.approx(own[0], abs=2e-3)
        listed = {int(each): entry for each, entry in position.items() if entry["rank"] is not None}
        assert {each for _, each, _ in top} == set(listed)
        assert [listed[each]["rank"] for _, each, _ in top] == [1, 2, 3]
    refused = http.post(path, json=body_of(path) | {"prompt_logprobs": 1, "stream": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")


def test_tokens_asked_for_are_listed_beside_the_likeliest(http: httpx.Client) -> None:
    [asked] = ids_of(http, " Rome", add_special_tokens=False)[:1]
    body = body_of("/v1/chat/completions") | {"logprobs": True, "top_logprobs": 2, "logprob_token_ids": [asked]}
    choice = post(http, "/v1/chat/completions", **body, return_tokens_as_token_ids=True)["choices"][0]
    for entry in choice["logprobs"]["content"]:
        names = [each["token"] for each in entry["top_logprobs"]]
        assert all(name.startswith("token_id:") for name in [entry["token"], *names])
        assert f"token_id:{asked}" in names
        assert len(names) == len(set(names)) in (2, 3)
    completion = post(http, "/v1/completions", **COMPLETION, logprobs=1, logprob_token_ids=[asked])["choices"][0]
    name = post(http, "/detokenize", tokens=[asked])["prompt"]
    assert all(name in top for top in completion["logprobs"]["top_logprobs"])
    refused = http.post("/v1/completions", json=COMPLETION | {"logprob_token_ids": [asked]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprob_token_ids")


@pytest.mark.parametrize("path", ALL_ROUTES)
def test_an_answer_has_the_client_s_id(http: httpx.Client, path: str) -> None:
    assert post(http, path, **body_of(path), rid="my id")["id"] == "my id"
    assert post(http, path, **body_of(path), request_id="my id")["id"].endswith("-my id")
    assert {chunk["id"] for chunk in chunks(http, path, **body_of(path), rid="a")} == {"a"}
    refused = http.post(path, json=body_of(path) | {"rid": "a", "request_id": "b"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")


@pytest.mark.parametrize("path", ALL_ROUTES)
def test_a_request_is_aborted_by_the_client_s_id(http: httpx.Client, path: str) -> None:
    body = body_of(path) | {"max_tokens": 1500, "ignore_eos": True, "n": 2, "stream": True, "rid": f"long {path}"}
    ends = ["length"]
    while "length" in ends:  # they may have ended by themselves before the abort
        reasons = []
        with http.stream("POST", path, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            abort = threading.Thread(
                target=http.post, args=("/abort_request",), kwargs={"json": {"rid": f"long {path}"}}
            )
            abort.start()
            for line in lines:
                if line.startswith("data: {"):
                    reasons += [choice["finish_reason"] for choice in json.loads(line[6:])["choices"]]
            abort.join()
        ends = [reason for reason in reasons if reason]
    assert ends == ["abort", "abort"]


FUNCTIONS = [
    {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]},
    }
]


def test_functions_are_called_and_answered_in_the_older_form(http: httpx.Client) -> None:
    body = {
        "messages": [*CHAT],
        "functions": FUNCTIONS,
        "function_call": {"name": "weather"},
        "max_tokens": 60,
        "temperature": 0,
    }
    choice = post(http, "/v1/chat/completions", **body)["choices"][0]
    call = choice["message"]["function_call"]
    assert (choice["finish_reason"], call["name"], "tool_calls" in choice["message"]) == (
        "function_call",
        "weather",
        False,
    )
    assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")
    streamed = [chunk["choices"][0] for chunk in chunks(http, "/v1/chat/completions", **body)]
    deltas = [each["delta"]["function_call"] for each in streamed if "function_call" in each["delta"]]
    assert deltas[0]["name"] == "weather"
    assert "".join(delta["arguments"] for delta in deltas) == call["arguments"]
    assert streamed[-1]["finish_reason"] == "function_call"
    history = [
        *CHAT,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    post(http, "/v1/chat/completions", **body | {"messages": history, "function_call": "none"})


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"functions": FUNCTIONS, "tools": [{"type": "function", "function": FUNCTIONS[0]}]}, "functions"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "other"}}, "tool_choice"),
        ({"messages": [{"role": "function", "name": "f", "content": "a"}]}, "messages"),
        ({"thinking_token_budget": 3, "max_thinking_tokens": 4}, "max_thinking_tokens"),
        ({"max_thinking_tokens": 4, "separate_reasoning": False}, "max_thinking_tokens"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
    ],
)
def test_fields_that_exclude_one_another_are_refused_by_name(
    http: httpx.Client, more: dict[str, Any], param: str
) -> None:
    response = http.post("/v1/chat/completions", json=body_of("/v1/chat/completions") | more)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
