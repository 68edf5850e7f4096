"""`/v1/completions` through the official client."""

from __future__ import annotations

import itertools
import re
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from .prompts import CAPITAL


@pytest.mark.slow
def test_a_prompt_is_continued(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=CAPITAL, temperature=0)
    [choice] = answer.choices
    assert choice.text == " Paris\n"
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (answer.object, answer.model) == ("text_completion", model)
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_sixteen_tokens_are_the_default(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="Ada", temperature=0, extra_body={"ignore_eos": True})
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")


def test_prompts_come_as_texts_and_as_token_ids_one_or_many(client: OpenAI, http: httpx.Client, model: str) -> None:
    ids = http.post("/tokenize", json={"prompt": CAPITAL}).json()["tokens"]
    for prompt, num in (([CAPITAL, CAPITAL], 2), (ids, 1), ([ids, ids, ids], 3)):
        answer = client.completions.create(model=model, prompt=prompt, temperature=0)
        assert [(choice.index, choice.text) for choice in answer.choices] == [(i, " Paris\n") for i in range(num)]
        assert answer.usage.prompt_tokens == num * len(ids)


@pytest.mark.parametrize("stream_options", [None, {"include_usage": True}, {"continuous_usage_stats": True}])
def test_a_stream_is_the_whole_in_pieces(client: OpenAI, model: str, stream_options: Any) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": [CAPITAL, "Ada has"], "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**asked)
    extra = {} if stream_options is None else {"stream_options": stream_options}
    chunks = list(client.completions.create(**asked, stream=True, extra_body=extra))
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
        for column in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            streamed = [getattr(part.logprobs, column) for part in parts]
            expected = getattr(choice.logprobs, column)
            joined = list(itertools.chain(*streamed))
            assert joined == (pytest.approx(expected, abs=1e-3) if column == "token_logprobs" else joined)
            assert len(joined) == len(expected)
    usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
    if stream_options is None:
        assert not usages
    else:
        assert (usages[-1].prompt_tokens, usages[-1].completion_tokens) == (
            whole.usage.prompt_tokens,
            whole.usage.completion_tokens,
        )
    if stream_options == {"include_usage": True}:
        assert [chunk.choices for chunk in chunks].count([]) == 1
        assert chunks[-1].choices == []
    if stream_options == {"continuous_usage_stats": True}:
        assert len(usages) == len(chunks)


@pytest.mark.parametrize("text", ["Spain is 🦊 a country.", "naïve"])
def test_echo_gives_the_log_probabilities_of_the_prompt_and_generates_nothing(
    client: OpenAI, http: httpx.Client, model: str, text: str
) -> None:
    answer = client.completions.create(model=model, prompt=text, max_tokens=0, echo=True, logprobs=1)
    [choice] = answer.choices
    assert (choice.text, answer.usage.completion_tokens) == (text, 0)
    columns = choice.logprobs
    native = http.post(
        "/generate",
        json={
            "text": text,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 1,
        },
    ).json()["meta_info"]
    values = [value for value, _, _ in native["input_token_logprobs"]]
    assert values[0] is None
    assert columns.token_logprobs == [None, *(pytest.approx(value, abs=1e-3) for value in values[1:])]
    assert columns.top_logprobs[0] is None
    for value, best, top in zip(values[1:], native["input_top_logprobs"][1:], columns.top_logprobs[1:], strict=True):
        assert max(top.values()) == pytest.approx(best[0][0], abs=1e-3)
        assert min(top.values()) == pytest.approx(value, abs=1e-3)
    # Whole characters stand where their offset says.
    for token, offset in zip(columns.tokens[1:], columns.text_offset[1:], strict=True):
        assert token.startswith("bytes:") or text[offset : offset + len(token)] == token


def test_the_best_of_several_is_the_one_of_the_highest_mean(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": "Tell", "max_tokens": 8, "temperature": 1.5, "seed": 3}
    every = client.completions.create(**asked, n=6, logprobs=0, extra_body={"ignore_eos": True})
    means = {choice.text: sum(choice.logprobs.token_logprobs) / 8 for choice in every.choices}
    assert len(means) > 1
    best = client.completions.create(**asked, n=2, best_of=6, extra_body={"ignore_eos": True})
    assert [choice.text for choice in best.choices] == sorted(means, key=means.__getitem__, reverse=True)[:2]
    assert best.choices[0].logprobs is None
    assert best.usage.completion_tokens == every.usage.completion_tokens == 48


def test_samples_are_reproducible_alone_and_in_company(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "prompt": "Ada", "max_tokens": 12, "temperature": 1.2, "seed": 7}
    first = client.completions.create(**asked, n=4)
    again = client.completions.create(**asked, n=4)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) > 1
    assert client.completions.create(**asked).choices[0].text == texts[0]


@pytest.mark.parametrize("stream", [False, True])
def test_what_stops_an_answer_is_not_in_it_unless_asked_for(http: httpx.Client, model: str, stream: bool) -> None:
    def ask(**fields: Any) -> dict[str, Any]:
        body = {"model": model, "prompt": "1 2 3 4 5 6", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
        response = http.post("/v1/completions", json=body | fields | {"stream": stream})
        assert response.status_code == 200, response.text
        if not stream:
            return response.json()["choices"][0]
        chunks = [parse(line) for line in response.text.split("\n\n") if line and "[DONE]" not in line]
        return {**chunks[-1], "text": "".join(chunk["text"] for chunk in chunks)}

    def parse(line: str) -> dict[str, Any]:
        import json

        choice: dict[str, Any] = json.loads(line.removeprefix("data: "))["choices"][0]
        return choice

    free = ask()["text"]
    stop = free[6:9]
    at = free.index(stop)
    stopped = ask(stop=[stop, "\x00"])
    assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == (free[:at], "stop", stop)
    by_pattern = ask(stop_regex=["\x00+", re.escape(stop)])
    assert (by_pattern["text"], by_pattern["finish_reason"], by_pattern["stop_reason"]) == (free[:at], "stop", stop)
    kept = ask(stop=stop, include_stop_str_in_output=True)["text"]
    assert kept == free[: at + len(stop)]
    assert ask(stop=stop, min_tokens=30)["text"] == free


def test_a_bias_decides(client: OpenAI, http: httpx.Client, model: str) -> None:
    [token] = http.post("/tokenize", json={"prompt": "Oslo", "add_special_tokens": False}).json()["tokens"][:1]
    answer = client.completions.create(
        model=model, prompt=CAPITAL, max_tokens=1, temperature=0, logit_bias={str(token): 100}, logprobs=0
    )
    assert answer.choices[0].logprobs.tokens == [answer.choices[0].text]
    assert "Oslo".startswith(answer.choices[0].text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1 << 20}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1 << 40}, "n"),
        ({"logprobs": 99}, "logprobs"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"prompt": ""}, None),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, None),
        ({"prompt": [1 << 40]}, "prompt[0]"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"regex": "a", "guided_choice": ["b"]}, "regex"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 1 << 80}, "seed"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_a_400_that_names_it(
    http: httpx.Client, model: str, fields: dict[str, Any], param: str | None, stream: bool
) -> None:
    body = {"model": model, "prompt": "a", "stream": stream} | fields
    response = http.post("/v1/completions", json=body)
    if fields == {"prompt": ""}:  # not empty: it begins with the model's own first token
        assert response.status_code == 200
        return
    if fields.keys() == {"stream_options"} and stream:
        assert response.status_code == 200
        return
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert param is None or error["param"] == param


def test_beyond_the_context_both_numbers_are_named(client: OpenAI, model: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model=model, prompt=[1] * 2000, max_tokens=100)
    assert caught.value.code == "context_length_exceeded"
    for number in ("2000", "100", "2048"):
        assert number in caught.value.message
