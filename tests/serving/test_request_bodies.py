"""Rules for every body: an optional model, fields of other servers, one error for the context."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramiform.runtime.frontend.api.peer_fields import PEER_FIELDS

CHAT = [{"role": "user", "content": "hi"}]
QUESTION = {"type": "predicate", "instructions": "Is it a greeting?"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 1},
    "/v1/completions": {"prompt": "hi", "max_tokens": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/responses/compact": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/decisions": {"input": "hi", "questions": [QUESTION]},
    "/v1/constrained": {"prompt": "hi", "regex": "a"},
    "/v1/score": {"prompt": "hi", "continuations": [" there"]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
LONG = "word " * 3000


@pytest.mark.parametrize("path", BODIES)
def test_a_body_of_another_type_is_refused_by_its_name(http: httpx.Client, path: str) -> None:
    """A web page may send these types to any server without asking it, so reading its would pass by CORS."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {} if kind is None else {"content-type": kind}
        assert http.post(path, content=json.dumps(BODIES[path]), headers=headers).status_code == 200
        headers["origin"] = "https://example.org"
        answer = http.post(path, content=json.dumps(BODIES[path]), headers=headers)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "unsupported_media_type"
        assert (kind or "none") in error["message"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32-be"])
@pytest.mark.parametrize("num_spaces", [0, 400_000], ids=["short", "read by a thread"])
def test_json_in_any_of_its_encodings_is_read(http: httpx.Client, encoding: str, num_spaces: int) -> None:
    body = {"prompt": "häß 漢", "max_tokens": 0, "echo": True}
    content = (json.dumps(body, ensure_ascii=False) + " " * num_spaces).encode(encoding)
    answer = http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.json()["choices"][0]["text"] == body["prompt"]


@pytest.mark.parametrize("path", BODIES)
def test_a_body_without_a_model_means_the_served_one(http: httpx.Client, model: str, path: str) -> None:
    for named in ({}, {"model": None}, {"model": ""}, {"model": model}):
        answer = http.post(path, json=BODIES[path] | named)
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", model) == model
    answer = http.post(path, json=BODIES[path] | {"model": "nobody"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


# What makes the route's body too long, the parameter that is named, and the tokens that are asked for.
TOO_LONG: list[tuple[str, dict[str, Any], str, int | None]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages", None),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5}, "messages", 5),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 3000}, "max_tokens", 3000),
    ("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 3000}, "max_completion_tokens", 3000),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "stream": True}, "messages", None),
    ("/v1/completions", {"prompt": LONG}, "prompt", None),
    ("/v1/completions", {"prompt": [5] * 2048}, "prompt", 1),
    ("/v1/completions", {"prompt": [5] * 2000, "max_tokens": 100}, "max_tokens", 100),
    ("/v1/responses", {"input": LONG}, "input", None),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 3000}, "max_output_tokens", 3000),
    ("/v1/responses/input_tokens", {"input": LONG}, "input", None),
    ("/v1/responses/compact", {"input": LONG}, "input", None),
    ("/v1/embeddings", {"input": LONG}, "input", None),
    ("/v1/decisions", {"input": LONG, "questions": [QUESTION]}, "input", None),
    ("/v1/constrained", {"prompt": LONG, "regex": "a"}, "prompt", None),
    ("/v1/constrained", {"messages": [{"role": "user", "content": LONG}], "regex": "a"}, "messages", None),
    ("/v1/constrained", {"prompt": "hi", "regex": "a", "max_tokens": 3000}, "max_tokens", 3000),
    ("/v1/score", {"prompt": LONG, "continuations": [" there"]}, "prompt", None),
    ("/generate", {"text": LONG}, "text", None),
    ("/generate", {"text": LONG, "stream": True}, "text", None),
    ("/generate", {"input_ids": [5] * 3000}, "input_ids", None),
]


@pytest.mark.parametrize(("path", "body", "param", "asked"), TOO_LONG)
def test_what_is_beyond_the_context_is_told_in_the_words_that_clients_look_for(
    http: httpx.Client, path: str, body: dict[str, Any], param: str, asked: int | None
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert error["type"] == "invalid_request_error"
    noun = "messages" if "messages" in body else "prompt"
    start = "This model's maximum context length is 2048 tokens. However, "
    if asked is None:
        pattern = rf"{start}your {noun} resulted in (\d+) tokens. Please reduce the length of the {noun}\."
        found = re.fullmatch(pattern, error["message"])
        assert found, error["message"]
        assert int(found[1]) > 2048
    else:
        pattern = rf"{start}you requested (\d+) tokens \((\d+) in the {noun}, {asked} in the completion\)\. "
        found = re.match(pattern, error["message"])
        assert found, error["message"]
        assert int(found[1]) == int(found[2]) + asked
        assert error["message"].endswith(f"Please reduce the length of the {noun} or completion.")


def own_fields(http: httpx.Client, path: str) -> set[str]:
    """The fields that the route itself has."""
    described = http.get("/openapi.json").json()
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return set(described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"])


def neutral_fields(own: set[str]) -> dict[str, Any]:
    """The fields of other servers that are not the route's own, at a neutral value."""
    tuning = {"mirostat_tau": 5.0, "mirostat_eta": 0.1, "truncation_side": "left"}
    fields = {name: field.neutral[-1] for name, field in PEER_FIELDS.items() if field.neutral}
    fields |= {name: tuning.get(name, 1) for name, field in PEER_FIELDS.items() if field.tunes}
    return {name: value for name, value in fields.items() if name not in own}


@pytest.mark.parametrize("path", BODIES)
def test_fields_of_other_servers_that_ask_for_nothing_are_accepted(http: httpx.Client, path: str) -> None:
    without = http.post(path, json=BODIES[path])
    answer = http.post(path, json=BODIES[path] | neutral_fields(own_fields(http, path)))
    assert answer.status_code == without.status_code == 200, answer.text
    nulls = dict.fromkeys(PEER_FIELDS.keys() - BODIES[path].keys())
    assert http.post(path, json=BODIES[path] | nulls).status_code == 200


def test_so_are_those_of_the_native_route_and_its_sampling_params(http: httpx.Client) -> None:
    own = own_fields(http, "/generate")
    sampling = {"max_new_tokens": 1} | neutral_fields(own)
    answer = http.post("/generate", json={"text": "hi"} | neutral_fields(own) | {"sampling_params": sampling})
    assert answer.status_code == 200, answer.text


def not_neutral(name: str) -> Any:
    return 7.5 if PEER_FIELDS[name].neutral not in ((True,), (False,)) else not PEER_FIELDS[name].neutral[0]


REFUSED = [name for name, field in PEER_FIELDS.items() if field.tunes is None]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_other_values_of_them_are_refused_by_name(http: httpx.Client, path: str) -> None:
    for name in set(REFUSED) - own_fields(http, path):
        answer = http.post(path, json=BODIES[path] | {name: not_neutral(name)})
        assert answer.status_code == 400, name
        error = answer.json()["error"]
        assert error["param"] == name
        assert f"{name}, a parameter of {PEER_FIELDS[name].whose}, is not supported" in error["message"]
        assert PEER_FIELDS[name].why in error["message"]


@pytest.mark.parametrize("sampling_params", [{"beam_width": 2}, {"use_beam_search": True}, {"mirostat": 2}])
def test_the_native_sampling_params_refuse_them_too(http: httpx.Client, sampling_params: dict[str, Any]) -> None:
    for given in (sampling_params, [sampling_params]):
        answer = http.post("/generate", json={"text": ["a"], "sampling_params": given})
        assert answer.status_code == 400
        [name] = sampling_params
        assert name in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"].endswith(name)


def test_one_is_not_true_and_a_tools_member_is_not_a_field(http: httpx.Client) -> None:
    body = BODIES["/v1/chat/completions"]
    assert http.post("/v1/chat/completions", json=body | {"best_of": True}).status_code == 400
    assert http.post("/v1/chat/completions", json=body | {"cache_prompt": 1}).status_code == 400
    assert http.post("/v1/chat/completions", json=body | {"tfs_z": 1, "length_penalty": 1}).status_code == 200
    tool = {"type": "function", "suffix": "a", "function": {"name": "f"}}
    error = http.post("/v1/chat/completions", json=body | {"tools": [tool]}).json()["error"]
    assert error["message"] == "unknown parameter tools[0].suffix"


def test_the_page_lists_exactly_these_fields() -> None:
    page = (Path(__file__).parents[2] / "docs/use/http.md").read_text("utf-8")
    rows = re.findall(r"^\| (OpenAI|vLLM|SGLang|llama\.cpp) \| (.*) \| (`.*`) \|$", page, re.MULTILINE)
    listed = [(name, whose, values) for whose, values, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert sorted(listed) == sorted((name, field.whose, field.accepted) for name, field in PEER_FIELDS.items())
    table = page.partition("| reason | fields |")[2].partition("\n\n")[0]
    reasons = re.findall(r"^\| (.+) \| (`.*`) \|$", table, re.MULTILINE)
    given = [(name, why) for why, names in reasons for name in re.findall(r"`(\w+)`", names)]
    assert sorted(given) == sorted((name, field.why) for name, field in PEER_FIELDS.items())
