"""Ollama's API: by HTTP as its clients send it, and by the official client in an environment of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from .prompts import CHAT, TOOLS
from .test_client_libraries import python, run

__all__ = ["python"]

SURE = {  # of bounded length, whatever is drawn
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "kind": {"enum": ["city", "river"]}},
    "required": ["sure", "kind"],
}
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 24}


def ask(http: httpx.Client, path: str = "/api/chat", **body: Any) -> dict[str, Any]:
    given = {"stream": False} | ({"messages": CHAT} if path == "/api/chat" else {}) | body
    response = http.post(path, json={"options": GREEDY} | given)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def lines(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={"options": GREEDY} | body) as response:  # streams unless told otherwise
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def chat(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={"temperature": 0, "max_tokens": 24, "messages": CHAT} | body)
    answer: dict[str, Any] = response.json()["choices"][0]
    return answer


def test_the_text_is_that_of_a_chat_completion(http: httpx.Client, model: str) -> None:
    answer = ask(http, model=f"{model}:latest")
    expected = chat(http, top_k=40, top_p=0.9)
    assert answer["message"] == {"role": "assistant", "content": expected["message"]["content"]}
    assert (answer["done"], answer["done_reason"], answer["model"]) == (True, "stop", f"{model}:latest")
    assert answer["total_duration"] >= answer["prompt_eval_duration"] + answer["eval_duration"] - 1
    cut = ask(http, options={"temperature": 0, "num_predict": 3})
    assert (cut["done_reason"], cut["eval_count"]) == ("length", 3)
    neutral = {"typical_p": 1.0, "tfs_z": 1, "mirostat": 0, "num_gpu": 1, "num_ctx": 1 << 20}
    assert ask(http, options=GREEDY | neutral)["message"] == answer["message"]
    penalised = {"repeat_penalty": 1.5, "presence_penalty": 0.5, "stop": ["zebra"]}
    assert (
        ask(http, options=GREEDY | penalised)["message"]["content"]
        == chat(http, repetition_penalty=1.5, presence_penalty=0.5, stop="zebra")["message"]["content"]
    )
    assert ask(http, options=GREEDY | {"repeat_penalty": 1.5, "repeat_last_n": 0})["message"] == answer["message"]
    seeded = {"seed": 7, "num_predict": 12, "temperature": 1.5, "top_k": 0, "top_p": 1.0}
    assert (
        ask(http, options=seeded)["message"]["content"]
        == chat(http, seed=7, max_tokens=12, temperature=1.5)["message"]["content"]
    )


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_stream_adds_up_to_the_whole(http: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"messages": CHAT} if path == "/api/chat" else {"prompt": "The capital of France is"}
    *parts, last = lines(http, path, **body, top_logprobs=2)
    whole = ask(http, path, **body, logprobs=True, top_logprobs=2)
    texts = [part["message"]["content"] if path == "/api/chat" else part["response"] for part in [*parts, last]]
    assert "".join(texts) == (whole["message"]["content"] if path == "/api/chat" else whole["response"])
    assert not any(part["done"] for part in parts)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, whole["done_reason"], whole["eval_count"])
    values = [value for part in parts for value in part.get("logprobs", [])]
    assert [value["token"] for value in values] == [value["token"] for value in whole["logprobs"]]
    assert all(len(value["top_logprobs"]) == 2 for value in values)


def test_tools_are_called_with_objects_and_formats_hold(http: httpx.Client) -> None:
    asked: dict[str, Any] = {"tools": TOOLS, "options": {"temperature": 0, "num_predict": 200}}
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = ask(http, messages=question, **asked)
    expected = chat(http, messages=question, tools=TOOLS, max_tokens=200)["message"]
    assert called["message"]["content"] == (expected["content"] or "")
    calls = [call["function"] for call in called["message"].get("tool_calls", [])]
    functions = [call["function"] for call in expected.get("tool_calls") or []]
    assert calls, "the shipped model calls this tool"
    assert [(call["name"], call["arguments"]) for call in calls] == [
        (function["name"], json.loads(function["arguments"])) for function in functions
    ]
    streamed = lines(http, "/api/chat", messages=question, **asked)
    parts = [call["function"] for line in streamed for call in line["message"].get("tool_calls", [])]
    assert parts == calls
    history = [
        *question,
        {"role": "assistant", "content": "", "tool_calls": called["message"]["tool_calls"]},
        {"role": "tool", "tool_name": calls[0]["name"], "content": "sunny"},
    ]
    assert ask(http, messages=history, tools=TOOLS)["done"]
    typed = ask(http, format=SURE, options={"num_predict": 60})
    jsonschema.validate(json.loads(typed["message"]["content"]), SURE)
    some_object = ask(http, format="json", options={"temperature": 0, "num_predict": 40})
    assert some_object["message"]["content"].startswith("{")


def test_generate_continues_a_context_and_raw_prompts(http: httpx.Client) -> None:
    prompt = "Question: What is the capital of France?\nAnswer:"
    raw = ask(http, "/api/generate", prompt=prompt, raw=True)
    completed = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 24, "temperature": 0}).json()
    assert raw["response"] == completed["choices"][0]["text"]
    assert "context" not in raw
    first = ask(http, "/api/generate", prompt="Hello!")
    assert len(first["context"]) == first["prompt_eval_count"] + first["eval_count"]
    assert first["response"] == chat(http, messages=[{"role": "user", "content": "Hello!"}])["message"]["content"]
    second = ask(http, "/api/generate", prompt="Hello!", context=first["context"])
    assert second["prompt_eval_count"] > len(first["context"])
    system = ask(http, "/api/generate", prompt="Hello!", system="Be brief.")
    spoken = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]
    assert system["response"] == chat(http, messages=spoken)["message"]["content"]


def test_clients_find_the_model_before_they_ask(http: httpx.Client, model: str) -> None:
    assert http.head("/").status_code == 200
    assert http.get("/api/version").json()["version"]
    [entry] = http.get("/api/tags").json()["models"]
    assert (entry["name"], entry["model"]) == (model, model)
    assert entry["size"] > 0
    shown = http.post("/api/show", json={"model": model}).json()
    assert {"completion", "tools"} <= set(shown["capabilities"])
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert "messages" in shown["template"]
    [running] = http.get("/api/ps").json()["models"]
    assert running["digest"] == entry["digest"]
    assert ask(http, messages=[])["done_reason"] == "load"
    assert ask(http, "/api/generate", keep_alive=0)["done_reason"] == "unload"
    pulled = http.post("/api/pull", json={"model": model})
    assert [json.loads(line) for line in pulled.text.splitlines()] == [{"status": "success"}]


def test_embeddings_are_those_of_the_openai_route(http: httpx.Client) -> None:
    texts = ["A cat sat on the mat.", "Stocks fell."]
    vectors = http.post("/api/embed", json={"input": texts}).json()["embeddings"]
    expected = http.post("/v1/embeddings", json={"input": texts}).json()["data"]
    for vector, each in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(each["embedding"], abs=1e-5)
    old = http.post("/api/embeddings", json={"prompt": texts[0]}).json()["embedding"]
    length = math.sqrt(sum(value * value for value in old))
    assert [value / length for value in old] == pytest.approx(vectors[0], abs=1e-5)
    assert http.post("/api/embed", json={"input": "word " * 10_000}).status_code == 200
    assert http.post("/api/embed", json={"input": "word " * 10_000, "truncate": False}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", {"model": "other"}, 404, "'other' does not exist"),
        ("/api/chat", {"options": {"top_q": 1}}, 400, "options.top_q"),
        ("/api/chat", {"options": {"mirostat": 2}}, 400, "options.mirostat"),
        ("/api/chat", {"options": {"typical_p": 0}}, 400, "typical_p must be in (0, 1]"),
        ("/api/chat", {"options": {"num_ctx": 3}}, 400, "options.num_ctx"),
        ("/api/chat", {"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, 400, "options.repeat_last_n"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]}, 400, "reads text only"),
        ("/api/chat", {"think": True}, 400, "does not support thinking"),
        ("/api/chat", {"format": {"type": "nonsense"}}, 400, "nonsense"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, 400, "suffix"),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "b"}, 400, "raw prompt has no system"),
        ("/api/generate", {"prompt": "a", "context": [1 << 30]}, 400, ""),
        ("/api/pull", {"model": "other"}, 404, "'other' does not exist"),
        ("/api/create", {"model": "a"}, 501, "ramiform serve"),
        ("/api/nothing", {}, 404, "Not Found"),
    ],
)
def test_errors_have_ollamas_shape(
    http: httpx.Client, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    given = ({"messages": CHAT} if path == "/api/chat" else {}) | body
    response = http.post(path, json=given)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    assert words in response.json()["error"]


@pytest.mark.exhaustive
def test_the_official_client_is_served(python: Path, url: str, model: str) -> None:
    got = json.loads(run("ollama_chat.py", python, url, model).splitlines()[-1])
    assert got["streamed"] == got["asynchronous"] == got["text"] != ""
    assert got["done"][:2] == [True, "stop"]
    assert got["done"][2] == got["done"][3]
    jsonschema.validate(got["typed"], {"required": ["sure", "kind"]})
    assert got["answered"]
    assert got["context"][1] > got["context"][0]
    assert got["embedded"] == [got["old"]] * 2
    assert got["models"] == got["running"] == [model]
    assert got["pulled"] == "success"
    assert [error[0] for error in got["errors"]] == [404, 400]
