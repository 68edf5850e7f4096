"""Hostile bodies are refused in OpenAI's error shape, with the parameter, and harm no other client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

# What each route needs at least, and is answered quickly.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/v1/embeddings": {"input": "hi"},
    "/v1/decisions": {"input": "hi", "questions": [{"type": "predicate", "instructions": "Is it?"}]},
}
DEEP = 100_000
# For any parameter at all: most are wrong for it, none may break anything.
VALUES: dict[str, Any] = {
    "empty list": [],
    "empty object": {},
    "text": "x",
    "negative": -1,
    "fraction": 1.5,
    "true": True,
    "list of lists": [[]],
    "list of null": [None],
    "object in an object": {"a": {}},
    "huge": 1e308,
    "huge integer": 10**30,
    "half a character": "\ud800",
    "NUL": "\0",
    "mixed list": [1, "a"],
    "long text": "x" * 10_000,
}
UNREADABLE: dict[str, bytes] = {
    "nothing": b"",
    "half an object": b'{"model": "a"',
    "null": b"null",
    "a list": b"[]",
    "a number": b"5",
    "no UTF-8": b'{"model": "\xff"}',
    "NUL bytes": b"\0\0\0\0\0",
    "junk after it": b"{} {}",
    "endless lists": b"[" * DEEP,
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a form": b"model=a&prompt=b",
}
# Numbers as JSON writes them, and as only Python's reader knows them.
NUMBERS = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 4000]
NUMERIC = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "top_n_sigma",
    "seed",
    "n",
    "max_tokens",
    "priority",
    "frequency_penalty",
]

USER = {"role": "user", "content": "hi"}
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}


def schema(value: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}


# Chat: name of the case -> fields, the parameter that the error names, a word that its message has.
CHAT: dict[str, tuple[dict[str, Any], str, str]] = {
    "no messages": ({"messages": []}, "messages", "empty"),
    "messages are text": ({"messages": "hi"}, "messages", "list"),
    "messages are one": ({"messages": USER}, "messages", "list"),
    "a message is null": ({"messages": [None]}, "messages[0]", "messages[0]"),
    "a message without role": ({"messages": [{"content": "a"}]}, "messages[0].role", "messages[0].role"),
    "an unknown role": (
        {"messages": [USER, {"role": "robot", "content": "a"}]},
        "messages[1].role",
        "messages[1].role",
    ),
    "no content": ({"messages": [{"role": "user"}]}, "messages", "messages[0]"),
    "content is a number": (
        {"messages": [{"role": "user", "content": 5}]},
        "messages[0].content",
        "messages[0].content",
    ),
    "half a character": ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "not Unicode"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        "messages[0].content[0]",
        "reads text only",
    ),
    "sound": (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "messages",
        "input_audio",
    ),
    "a part without text": (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages",
        "without text",
    ),
    "an answer to no call": ({"messages": [{"role": "tool", "content": "a"}]}, "messages", "tool_call_id"),
    "too many messages": ({"messages": [USER] * 5000}, "messages", "context"),
    "too many choices": ({"n": 10**9}, "n", "n"),
    "no choices": ({"n": 0}, "n", "n"),
    "too many tokens": ({"max_tokens": 10**12}, "max_tokens", "context"),
    "no tokens": ({"max_tokens": 0}, "max_tokens", "max_tokens"),
    "two limits": ({"max_completion_tokens": 5}, "max_completion_tokens", "max_tokens"),
    "a bias too strong": ({"logit_bias": {"5": 101}}, "logit_bias", "100"),
    "a bias of no token": ({"logit_bias": {"-1": 1}}, "logit_bias", "'-1'"),
    "a bias out of the vocabulary": ({"logit_bias": {"99999999": 1}}, "logit_bias", "99999999"),
    "a bias in other digits": ({"logit_bias": {"٣": 1}}, "logit_bias", "٣"),
    "a stop token out of the vocabulary": ({"stop_token_ids": [10**9]}, "stop_token_ids", "1000000000"),
    "an empty stop string": ({"stop": ["a", ""]}, "stop", "non-empty"),
    "a thousand stop strings": ({"stop": ["a" * 5000] * 1000}, "stop", "at most"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    "too many top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    "a tool that is nothing": ({"tools": [{}]}, "tools[0].type", "tools[0].type"),
    "a tool of another kind": ({"tools": [{"type": "web_search"}]}, "tools[0].type", "function"),
    "a tool without a name": (
        {"tools": [{"type": "function", "function": {}}]},
        "tools[0].function.name",
        "Field required",
    ),
    "a tool with a bad name": (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
        "pattern",
    ),
    "two tools of one name": ({"tools": [{"type": "function", "function": FUNCTION}] * 2}, "tools", "different"),
    "a forced tool with a bad schema": (
        {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
            "tool_choice": "required",
        },
        "tools",
        "'x'",
    ),
    "an unknown tool choice": ({"tool_choice": "x" * 100_000}, "tool_choice", "auto"),
    "a choice of no tool": ({"tool_choice": "required"}, "tool_choice", "tools"),
    "a schema that is a list": ({"response_format": schema([])}, "response_format.json_schema.schema", "dictionary"),
    "a schema that is itself": ({"response_format": schema({"$ref": "#"})}, "response_format", "itself"),
    "a schema from elsewhere": (
        {"response_format": schema({"$ref": "http://127.0.0.1:9/x"})},
        "response_format",
        "127.0.0.1",
    ),
    "a schema of nothing": ({"response_format": schema({"enum": []})}, "response_format", ""),
    "a pattern too large": ({"regex": "(a{1000}){1000}"}, "regex", "complex"),
    "a pattern of explosions": ({"regex": "(.*a){20}.*b.{25}"}, "regex", "complex"),
    "a pattern too deep": ({"regex": "(" * 5000}, "regex", "deeper"),
    "a pattern too long": ({"regex": "a" * 10**6}, "regex", "longer"),
    "a grammar of nothing": ({"ebnf": "root ::= root"}, "ebnf", "no text"),
    "a schema too deep": ({"guided_json": "[" * DEEP}, "guided_json", "deep"),
    "other messages by the template": ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
    "an own template": ({"chat_template": "{{ 'a' * 10**9 }}"}, "chat_template", "--trust-request-chat-template"),
    "a parameter with a long name": ({"x" * 10**6: 1}, "x", "unknown"),
    "a model with a long name": ({"model": "x" * 10**6}, "model", "the model"),
}


@pytest.fixture(autouse=True)
def unharmed(http: httpx.Client) -> Iterator[None]:
    yield
    assert http.get("/health").status_code == 200


def post(http: httpx.Client, path: str, raw: bytes) -> httpx.Response:
    return http.post(path, content=raw, headers={"content-type": "application/json"})


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error, whose shape is right and whose length a person can read."""
    assert 400 <= response.status_code < 500, response.text[:500]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(response.content) < 16_384
    return error  # type: ignore[no-any-return]


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("case", UNREADABLE)
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, path: str, case: str) -> None:
    response = post(http, path, UNREADABLE[case])
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", BODIES)
def test_a_wrong_value_anywhere_is_accepted_or_refused_by_name(http: httpx.Client, model: str, path: str) -> None:
    described = http.get("/openapi.json").json()
    body = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = described["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]
    assert len(fields) >= 5
    for field in fields:
        for case, value in VALUES.items():
            response = post(http, path, json.dumps({"model": model} | BODIES[path] | {field: value}).encode())
            if response.status_code != 200:
                error = error_of(response)
                assert error["param"] is not None, (field, case, error)


@pytest.mark.slow
@pytest.mark.parametrize("field", NUMERIC)
@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:9])
def test_a_number_that_is_none_is_refused_by_name(http: httpx.Client, model: str, field: str, number: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = {"model": model} | {key: value for key, value in BODIES[path].items() if key != field}
        response = post(http, path, f'{json.dumps(body)[:-1]}, "{field}": {number}}}'.encode())
        assert error_of(response)["param"] == field


def test_a_number_that_cannot_be_read_is_refused(http: httpx.Client) -> None:
    for path in BODIES:
        error = error_of(post(http, path, b'{"n": ' + b"1" * 100_000 + b"}"))
        assert "digits" in error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CHAT)
def test_a_wrong_chat_is_refused_by_name(http: httpx.Client, model: str, case: str, stream: bool) -> None:
    fields, param, word = CHAT[case]
    body = {"model": model} | BODIES["/v1/chat/completions"] | {"stream": stream} | fields
    error = error_of(post(http, "/v1/chat/completions", json.dumps(body).encode()))
    assert error["param"].startswith(param)
    assert word in error["message"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_a_wrong_method_says_which_are_right(http: httpx.Client, path: str, method: str) -> None:
    response = http.request(method, path)
    assert response.status_code == 405
    assert "POST" in response.headers["allow"]
    assert method in error_of(response)["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/",
        "/v1/nothing",
        "/redoc",
        "/docs/",
        "/docs/nothing.js",
        "/v1/models/none",
        "/v1/models/%00%ff",
        "/v1/responses/none",
        "/v1/chat/completions/",
    ],
)
def test_what_there_is_not_is_not_found(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 404
    assert error_of(response)["type"] == "not_found_error"


def test_a_long_address_is_answered_shortly(http: httpx.Client) -> None:
    assert error_of(http.get("/v1/models/" + "m" * 30_000))["code"] == "model_not_found"
