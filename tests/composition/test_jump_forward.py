"""Jump-forward and grammar engines on the real runtime. Judges: the runtime without jumps, and `jsonschema`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

import ramify

PROMPT = "Question: What is the capital of France?\nAnswer:"
# Nothing is left open, or nothing after one choice: then the text cannot depend on which ids it is made of.
FORCED: list[dict[str, Any]] = [
    {"regex": " The capital of France is Paris, which lies on the Seine\\."},
    {"regex": "(Yes, that is what they say|No, they say something else)\\."},
    {"json_schema": json.dumps({"const": {"name": "Ada", "pets": ["spider", "fox 🦊"], "age": None}})},
    {"regex": " The capital of France is Paris, which lies on the Seine\\.", "stop": ["pital of"]},
    {"regex": " The capital of France is Paris, which lies on the Seine\\.", "frequency_penalty": 0.5, "n": 2},
]
SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string", "maxLength": 4}, "number_of_legs": {"enum": [2, 4, 8]}},
    "required": ["first_name", "number_of_legs"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def plain() -> Iterator[ramify.Runtime]:
    with ramify.Runtime(port=0, dtype="float32", num_pages=256, jump_forward=False, log_level="error") as started:
        yield started


def ask(runtime: ramify.Runtime, params: dict[str, Any], **fields: Any) -> httpx.Response:
    sampling = {"temperature": 0.0, "max_new_tokens": 60, **params}
    body = {"text": PROMPT, "sampling_params": sampling, **fields}
    return httpx.post(f"{runtime.url}/generate", json=body, timeout=60)


def texts(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    answer = response.json()
    return [part["text"] for part in (answer if isinstance(answer, list) else [answer])]


@pytest.mark.parametrize("index", range(len(FORCED)))
def test_forced_text_is_the_same_with_and_without_jumps(
    runtime: ramify.Runtime, plain: ramify.Runtime, index: int
) -> None:
    assert texts(ask(runtime, FORCED[index])) == texts(ask(plain, FORCED[index]))


def test_forced_tokens_have_the_log_probabilities_of_a_prompt(runtime: ramify.Runtime) -> None:
    answer = ask(runtime, FORCED[0], return_logprob=True).json()
    found = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    ids = httpx.post(f"{runtime.url}/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    whole = {
        "input_ids": ids + answer["output_ids"],
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": len(ids),
    }
    scored = httpx.post(f"{runtime.url}/generate", json=whole, timeout=60).json()["meta_info"]["input_token_logprobs"]
    assert found == pytest.approx([entry[0] for entry in scored], abs=1e-3)
    stats = httpx.get(f"{runtime.url}/get_server_info").json()
    assert stats["num_forced_tokens"] > 0


def test_40_mixed_requests_at_once_and_the_wrong_ones_are_told_where(runtime: ramify.Runtime) -> None:
    good: list[dict[str, Any]] = [{}, {"json_schema": json.dumps(SCHEMA)}, *FORCED]
    wrong = {"json_schema": json.dumps({"properties": {"a": {"type": "strin"}}})}
    mix = [wrong if index % 5 == 4 else good[index % len(good)] for index in range(40)]
    alone = [None if params is wrong else texts(ask(runtime, params)) for params in mix]
    with ThreadPoolExecutor(40) as threads:
        together = list(threads.map(lambda params: ask(runtime, params), mix))
    for params, response, expected in zip(mix, together, alone, strict=True):
        if expected is None:
            assert response.status_code == 400
            assert "/properties/a" in response.text
        else:
            assert texts(response) == expected, params


def test_another_engine_of_grammars_end_to_end() -> None:
    with ramify.Runtime(
        port=0, dtype="float32", num_pages=64, grammar_backend="llguidance", log_level="error"
    ) as started:
        answer = ask(started, {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 120})
        [text] = texts(answer)
        assert answer.json()["meta_info"]["finish_reason"]["type"] == "stop"
        jsonschema.validate(json.loads(text), SCHEMA)
