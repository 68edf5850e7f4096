"""`/v1/constrained`, `/v1/score`, `/v1/decisions`, and log-probabilities of the native route."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import httpx
import jsonschema
import pytest

from .prompts import CAPITAL, CHAT, PERSON

CONSTRAINED = "/v1/constrained"


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def check_error(response: httpx.Response, param: str | None) -> str:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    return str(error["message"])


def test_a_value_comes_with_its_type(http: httpx.Client) -> None:
    answer = post(http, CONSTRAINED, prompt="A person: ", json_schema=PERSON)
    jsonschema.validate(answer["value"], PERSON)
    assert json.loads(answer["text"]) == answer["value"]
    answer = post(http, CONSTRAINED, messages=CHAT, choices=["Rome", "Paris", "Oslo"])
    assert (answer["value"], answer["text"]) == (["Rome", "Paris", "Oslo"][answer["index"]], answer["value"])
    answer = post(http, CONSTRAINED, prompt=CAPITAL, regex=" [A-Z][a-z]{1,5}")
    assert re.fullmatch(" [A-Z][a-z]{1,5}", answer["value"])
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_a_value_that_is_not_whole_is_null(http: httpx.Client) -> None:
    answer = post(http, CONSTRAINED, prompt="A person: ", json_schema=PERSON, max_tokens=2)
    assert (answer["value"], answer["finish_reason"]) == (None, "length")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a"}, "regex"),
        ({"prompt": "a", "regex": "a", "choices": ["b"]}, "choices"),
        ({"prompt": "a", "regex": "(a"}, "regex"),
        ({"prompt": "a", "json_schema": {"type": "no"}}, "json_schema"),
        ({"prompt": "a", "choices": []}, "choices"),
        ({"regex": "a"}, "prompt"),
        ({"prompt": "a", "messages": CHAT, "regex": "a"}, "messages"),
        ({"prompt": "a", "regex": "a", "stream": True}, "stream"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_constrained_is_a_400(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    check_error(http.post(CONSTRAINED, json=body), param)


def test_scores_are_those_of_the_echoed_prompt(http: httpx.Client, model: str) -> None:
    continuations = [" Paris", " Rome", " Paris\n"]
    answer = post(http, "/v1/score", prompt=CAPITAL, continuations=continuations)
    alone = http.post("/tokenize", json={"prompt": CAPITAL}).json()["tokens"]
    for text, scored in zip(continuations, answer["data"], strict=True):
        echoed = post(http, "/v1/completions", model=model, prompt=CAPITAL + text, max_tokens=0, echo=True, logprobs=0)[
            "choices"
        ][0]["logprobs"]["token_logprobs"]
        assert scored["token_logprobs"] == pytest.approx(echoed[len(alone) :], abs=1e-3)
        assert scored["logprob"] == pytest.approx(math.fsum(scored["token_logprobs"]))
        assert scored["mean_logprob"] == pytest.approx(scored["logprob"] / len(scored["tokens"]))
    assert answer["data"][0]["logprob"] > answer["data"][1]["logprob"]
    by_ids = post(http, "/v1/score", prompt=alone, continuations=[scored["tokens"] for scored in answer["data"]])
    assert [each["logprob"] for each in by_ids["data"]] == pytest.approx(
        [each["logprob"] for each in answer["data"]], abs=1e-3
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "continuations": []}, "continuations"),
        ({"prompt": "a", "continuations": [""]}, "continuations"),
        ({"prompt": "a", "continuations": [[1]]}, "continuations"),
        ({"prompt": [], "continuations": [[1]]}, "prompt"),
        ({"prompt": [1], "continuations": [[1 << 20]]}, "continuations"),
        ({"prompt": "a"}, "continuations"),
    ],
    ids=str,
)
def test_what_cannot_be_scored_is_a_400(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    check_error(http.post("/v1/score", json=body), param)


QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "good", "instructions": "Is this review positive?"},
    {
        "type": "choice",
        "name": "mood",
        "instructions": "Is this review positive or negative?",
        "choices": [{"value": "positive"}, {"value": "negative"}, {"value": "positive or negative"}],
    },
    {
        "type": "score",
        "instructions": "How good is it?",
        "levels": [{"label": "bad", "description": "not good"}, {"label": "fine"}, {"label": "great"}],
    },
]
REVIEW = "The food was wonderful. I recommend it to everyone."


def test_questions_are_answered_by_probabilities(http: httpx.Client, model: str) -> None:
    answer = post(http, "/v1/decisions", model=model, input=REVIEW, questions=QUESTIONS)
    good, mood, score = answer["answers"]
    assert (good["type"], good["name"]) == ("predicate", "good")
    assert 0 <= good["probability"] <= 1
    assert mood["choice"] == "positive"
    assert [entry["value"] for entry in mood["probabilities"]] == ["positive", "negative", "positive or negative"]
    assert mood["confidence"] == max(entry["probability"] for entry in mood["probabilities"])
    assert [(entry["label"], entry["value"]) for entry in score["probabilities"]] == [
        ("bad", 0),
        ("fine", 1),
        ("great", 2),
    ]
    assert score["score"] == pytest.approx(sum(each["value"] * each["probability"] for each in score["probabilities"]))
    for part in (mood, score):
        assert sum(entry["probability"] for entry in part["probabilities"]) == pytest.approx(1)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    details = usage["input_tokens_details"]
    assert details["cached_tokens"] + details["cache_write_tokens"] == usage["input_tokens"]


def test_an_answer_depends_on_no_neighbour(http: httpx.Client, model: str) -> None:
    together = post(http, "/v1/decisions", model=model, input=REVIEW, questions=QUESTIONS)["answers"]
    turned = post(http, "/v1/decisions", model=model, input=REVIEW, questions=QUESTIONS[::-1])["answers"]
    for question, one, other in zip(QUESTIONS, together, turned[::-1], strict=True):
        [alone] = post(http, "/v1/decisions", model=model, input=REVIEW, questions=[question])["answers"]
        for field in ("probability", "confidence", "score"):
            values = [answer[field] for answer in (alone, one, other) if field in answer]
            assert values == pytest.approx([values[0]] * len(values), abs=1e-3) if values else True


def test_a_long_input_is_computed_once(http: httpx.Client, model: str) -> None:
    http.post("/flush_cache")
    long = " ".join([REVIEW] * 40)
    usage = post(http, "/v1/decisions", model=model, input=long, questions=QUESTIONS * 4)["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= usage["input_tokens"] / 2


def test_a_conversation_may_be_decided_about(http: httpx.Client, model: str) -> None:
    items = [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello! How can I help you?"},
    ]
    answer = post(http, "/v1/decisions", model=model, input=items, questions=QUESTIONS[:1])
    assert 0 <= answer["answers"][0]["probability"] <= 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"questions": []}, "questions"),
        ({"questions": QUESTIONS[:1] * 401}, "questions"),
        ({"questions": [{"type": "oracle", "instructions": "a"}]}, "questions[0]"),
        ({"questions": [{**QUESTIONS[1], "choices": [{"value": "a"}]}]}, "questions[0].choices"),
        ({"questions": [{**QUESTIONS[1], "choices": [{"value": 3}, {"value": "a"}]}]}, "questions[0].choices[0].value"),
        ({"questions": [{**QUESTIONS[0], "hint": "a"}]}, "questions[0].hint"),
        ({"questions": [{**QUESTIONS[0], "instructions": " "}]}, "questions[0].instructions"),
        ({"input": ""}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "input"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_decided_is_a_400(http: httpx.Client, model: str, fields: dict[str, Any], param: str) -> None:
    body = {"model": model, "input": REVIEW, "questions": QUESTIONS} | fields
    check_error(http.post("/v1/decisions", json=body), param)


@pytest.mark.parametrize("start", [-1, 0, 3])
def test_tokens_that_are_asked_for_have_the_log_probabilities_that_the_likeliest_have(
    http: httpx.Client, start: int
) -> None:
    body: dict[str, Any] = {
        "text": CAPITAL,
        "sampling_params": {"max_new_tokens": 4, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 64,
    }
    tops = post(http, "/generate", **body)["meta_info"]
    asked = [token for _, token, _ in tops["output_top_logprobs"][0][:3]]
    meta = post(http, "/generate", **body, token_ids_logprob=asked)["meta_info"]
    num_compared = 0
    for side in ("input", "output"):
        found = meta[f"{side}_token_ids_logprobs"]
        assert len(found) == len(meta[f"{side}_token_logprobs"])
        for entries, top in zip(found, tops[f"{side}_top_logprobs"], strict=True):
            assert (entries is None) == (top is None)
            assert entries is None or [token for _, token, _ in entries] == asked
            known = {token: logprob for logprob, token, _ in top or []}
            for logprob, token, _ in entries or []:
                if token in known:
                    assert logprob == pytest.approx(known[token], abs=1e-4)
                    num_compared += 1
    assert num_compared >= 3
