"""Routes and fields of vLLM and SGLang: health, load, label scores, token ids, echo and cache keys."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

import ramiform

from .prompts import CAPITAL, CHAT


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def chunks(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    with http.stream("POST", path, json=body | {"stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_health_and_load_answer_in_the_forms_of_peers(http: httpx.Client) -> None:
    assert http.get("/ping").status_code == http.post("/ping").status_code == 200
    assert http.get("/load").json()["server_load"] >= 0
    [load] = http.get("/get_load").json()
    assert load["num_reqs"] >= load["num_waiting_reqs"] >= 0
    assert load["num_tokens"] >= 0
    assert http.post("/reset_prefix_cache").status_code == 200


@pytest.mark.parametrize("item_first", [False, True])
def test_labels_have_the_probabilities_of_their_tokens(http: httpx.Client, item_first: bool) -> None:
    labels = [
        post(http, "/tokenize", prompt=text, add_special_tokens=False)["tokens"][0] for text in (" Paris", " Rome")
    ]
    query, items = "Question: What is the capital", [" of France?\nAnswer:", " of Italy?\nAnswer:"]
    asked: dict[str, Any] = {"query": query, "items": items, "label_token_ids": labels, "item_first": item_first}
    scores = post(http, "/v1/score", **asked)["scores"]
    for item, values in zip(items, scores, strict=True):
        text = f"{item}{query}" if item_first else f"{query}{item}"
        native = post(
            http,
            "/generate",
            text=text,
            sampling_params={"max_new_tokens": 1, "temperature": 0},
            return_logprob=True,
            token_ids_logprob=labels,
        )
        entries = native["meta_info"]["output_token_ids_logprobs"][0]
        assert values == pytest.approx([math.exp(entry[0]) for entry in entries], rel=1e-3)
    softened = post(http, "/v1/score", **asked, apply_softmax=True)["scores"]
    for plain, among in zip(scores, softened, strict=True):
        assert among == pytest.approx([value / sum(plain) for value in plain], rel=1e-3)
    ids = [post(http, "/tokenize", prompt=text)["tokens"] for text in (query, "x")]
    of_ids = post(http, "/v1/score", query=ids[0], items=[ids[1]], label_token_ids=labels)
    assert of_ids["usage"]["prompt_tokens"] == len(ids[0]) + len(ids[1])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": "a", "items": ["b"]}, "label_token_ids"),
        ({"query": "a", "items": ["b"], "label_token_ids": [1 << 30]}, "label_token_ids"),
        ({"query": "a", "items": [[1]], "label_token_ids": [1]}, "items"),
        ({"query": "a", "items": ["b"], "label_token_ids": [1], "prompt": "c"}, "prompt"),
        ({"query": "a", "items": [], "label_token_ids": [1]}, "items"),
        ({"prompt": "a"}, "continuations"),
        ({}, "prompt"),
    ],
)
def test_scores_of_neither_form_are_refused_by_name(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/score", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_token_ids_are_those_of_the_native_route(http: httpx.Client) -> None:
    prompt = post(http, "/tokenize", prompt=CAPITAL)["tokens"]
    native = post(http, "/generate", text=CAPITAL, sampling_params={"max_new_tokens": 12, "temperature": 0})
    asked: dict[str, Any] = {"prompt": CAPITAL, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    [choice] = post(http, "/v1/completions", **asked)["choices"]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (prompt, native["output_ids"])
    streamed = [chunk["choices"][0] for chunk in chunks(http, "/v1/completions", **asked)]
    assert streamed[0]["prompt_token_ids"] == prompt
    assert [token for part in streamed for token in part["token_ids"]] == native["output_ids"]
    assert streamed[-1]["matched_stop"] == choice["matched_stop"]


@pytest.mark.parametrize("n", [1, 2])
def test_a_chat_returns_its_token_ids(http: httpx.Client, n: int) -> None:
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 24, "temperature": 0, "return_token_ids": True, "n": n}
    answer = post(http, "/v1/chat/completions", **asked)
    assert answer["prompt_token_ids"] == post(http, "/tokenize", messages=CHAT)["tokens"]
    for choice in answer["choices"]:
        assert choice["matched_stop"] == choice["token_ids"][-1]  # the model's end of turn
        text = post(http, "/detokenize", tokens=choice["token_ids"], skip_special_tokens=True)["text"]
        assert text == choice["message"]["content"]
    streamed = chunks(http, "/v1/chat/completions", **asked)
    assert streamed[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in streamed[1:])
    ended = [chunk["choices"][0] for chunk in streamed if chunk["choices"][0]["finish_reason"]]
    assert [each["token_ids"] for each in ended] == [choice["token_ids"] for choice in answer["choices"]]


def test_echo_puts_the_continued_message_before_the_answer(http: httpx.Client) -> None:
    messages = [*CHAT, {"role": "assistant", "content": "The capital"}]
    asked: dict[str, Any] = {
        "messages": messages,
        "max_tokens": 12,
        "temperature": 0,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }
    plain = post(http, "/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    echoed = post(http, "/v1/chat/completions", **asked, echo=True)["choices"][0]["message"]["content"]
    assert echoed == f"The capital{plain}"
    parts = chunks(http, "/v1/chat/completions", **asked, echo=True)
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == echoed
    assert post(http, "/v1/chat/completions", messages=CHAT, max_tokens=2, echo=True)["choices"]


def test_extra_keys_separate_the_cache(http: httpx.Client) -> None:
    prompt = "A prompt of a few dozen tokens that no other test asks for, so that nothing of it is cached. " * 4

    def num_cached(**keys: str) -> int:
        answer = post(http, "/v1/completions", prompt=prompt, max_tokens=1, temperature=0, **keys)
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    assert num_cached(extra_key="a") == 0
    assert num_cached(extra_key="a") > 0
    assert num_cached(cache_salt="a") > 0  # one key alone is the namespace
    assert num_cached(cache_salt="a", extra_key="a") == 0
    assert num_cached(cache_salt="a", extra_key="a") > 0


def test_routes_have_the_names_of_peers_too(http: httpx.Client, model: str) -> None:
    assert http.get("/v1/health").status_code == 200
    assert http.get("/models").json() == http.get("/v1/models").json()
    asked = {"messages": CHAT, "max_tokens": 4, "temperature": 0}
    expected = post(http, "/v1/chat/completions", **asked)["choices"]
    for path in ("/chat/completions", "/invocations"):
        assert post(http, path, **asked)["choices"][0]["message"] == expected[0]["message"]


def test_a_chat_is_rendered_as_its_prompt(http: httpx.Client) -> None:
    rendered = post(http, "/apply-template", messages=CHAT)["prompt"]
    tokens = post(http, "/tokenize", messages=CHAT)["tokens"]
    # As a message's text, the rendered prompt has no special tokens; so compare the other way.
    assert post(http, "/detokenize", tokens=tokens, skip_special_tokens=False)["text"].endswith(rendered)
    assert post(http, "/apply-template", messages=CHAT, add_generation_prompt=False)["prompt"] in rendered
    refused = http.post("/apply-template", json={"messages": CHAT, "chat_template": "x"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")


@pytest.mark.exhaustive
def test_texts_are_parsed_as_chat_parses_them(http: httpx.Client) -> None:
    tools = [
        {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}}
    ]
    hermes = 'Well. <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    call = {"tool_index": 0, "name": "add", "parameters": '{"a": 1}'}
    assert post(http, "/parse_function_call", text=hermes, tools=tools) == {"normal_text": "Well.", "calls": [call]}
    for parser, text in (
        ("qwen25", hermes),
        ("glm45", "Well.<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        ("gpt-oss", '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'),
    ):
        parsed = post(http, "/parse_function_call", text=text, tools=tools, tool_call_parser=parser)
        assert parsed["calls"] == [call], parser
    refused = http.post("/parse_function_call", json={"text": "", "tools": tools, "tool_call_parser": "no_such"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_call_parser")
    for parser, text in (
        ("deepseek-r1", "Hm.</think>Paris."),
        ("qwen3", "<think>Hm.</think>\n\nParis."),
        ("gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris."),
    ):
        parted = post(http, "/separate_reasoning", text=text, reasoning_parser=parser)
        assert parted == {"reasoning_text": "Hm.", "text": "Paris."}, parser
    refused = http.post("/separate_reasoning", json={"text": "a"})  # the model that ships does not reason
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "reasoning_parser")


@pytest.mark.exhaustive
def test_a_model_answers_by_all_of_its_names() -> None:
    with ramiform.Runtime(port=0, served_model_name="first, second") as runtime:
        assert runtime.info.name == "first"
        assert runtime.url is not None
        with httpx.Client(base_url=runtime.url, timeout=120) as http:
            assert [entry["id"] for entry in http.get("/v1/models").json()["data"]] == ["first", "second"]
            assert http.get("/v1/models/second").json()["id"] == "second"
            assert [entry["name"] for entry in http.get("/api/tags").json()["models"]] == ["first", "second"]
            for name in ("first", "second"):
                answer = post(http, "/v1/completions", model=name, prompt="1, 2,", max_tokens=1)
                assert answer["model"] == "first"
            assert http.post("/v1/completions", json={"model": "third", "prompt": "a"}).status_code == 404
