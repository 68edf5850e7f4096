"""The Engine gives what the HTTP routes of the same runtime give; its errors name the prompt."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import ramiform

from .prompts import CAPITAL, CHAT, GET_WEATHER, PERSON

GREEDY: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}


@pytest.fixture(scope="module")
def engine() -> Iterator[ramiform.Engine]:
    with ramiform.Engine(port=0) as made:
        yield made


@pytest.fixture(scope="module")
def routes(engine: ramiform.Engine) -> Iterator[httpx.Client]:
    assert engine.runtime.url is not None
    with httpx.Client(base_url=engine.runtime.url, timeout=120) as made:
        yield made


def same(result: Any, expected: Any) -> None:
    """Compare answers but for ids, times and cached tokens."""
    assert (result["text"], result["output_ids"]) == (expected["text"], expected["output_ids"])
    for name in ("finish_reason", "prompt_tokens", "completion_tokens"):
        assert result["meta_info"][name] == expected["meta_info"][name]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, {"sampling_seed": 7, "max_new_tokens": 8}, GREEDY | {"regex": "[a-z]{3}"}, GREEDY | {"stop": "France"}],
)
def test_one_prompt_and_many_give_what_the_route_gives(
    engine: ramiform.Engine, routes: httpx.Client, sampling: dict[str, Any]
) -> None:
    texts = [CAPITAL, "Once upon a time", "1, 2, 3,"]
    expected = [routes.post("/generate", json={"text": text, "sampling_params": sampling}).json() for text in texts]
    same(engine.generate(CAPITAL, sampling), expected[0])
    for result, each in zip(engine.generate(texts, sampling), expected, strict=True):
        same(result, each)
    ids = [routes.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in texts]
    for result, each in zip(engine.generate(input_ids=ids, sampling_params=[sampling] * 3), expected, strict=True):
        same(result, each)
    same(engine.generate(ids[0], sampling), expected[0])
    same(asyncio.run(engine.agenerate(CAPITAL, sampling)), expected[0])


@pytest.mark.slow
def test_logprobs_and_several_outputs_are_those_of_the_route(engine: ramiform.Engine, routes: httpx.Client) -> None:
    asked: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    expected = routes.post("/generate", json={"text": CAPITAL, "sampling_params": GREEDY} | asked).json()
    [result] = engine.generate([CAPITAL], GREEDY, **asked)
    for name in ("input_token_logprobs", "output_token_logprobs"):
        ours, theirs = result["meta_info"][name], expected["meta_info"][name]
        assert [entry[1] for entry in ours] == [entry[1] for entry in theirs]
        assert [entry[0] for entry in ours[1:]] == pytest.approx([entry[0] for entry in theirs[1:]], abs=1e-3)
    seeded = {"n": 3, "sampling_seed": 3, "max_new_tokens": 6}
    several = routes.post("/generate", json={"text": CAPITAL, "sampling_params": seeded}).json()
    [outputs] = engine.generate([CAPITAL], seeded)
    assert [output["text"] for output in outputs] == [each["text"] for each in several]


@pytest.mark.slow
def test_chats_are_those_of_the_route(engine: ramiform.Engine, routes: httpx.Client) -> None:
    fields: dict[str, Any] = {"max_tokens": 100, "temperature": 0}
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    tools = {"tools": [GET_WEATHER], "tool_choice": "required"}
    for more in ({}, {"response_format": schema}, tools, {"logprobs": True, "top_logprobs": 1}):
        asked = fields | more
        [expected] = routes.post("/v1/chat/completions", json={"messages": CHAT} | asked).json()["choices"]
        [one], [[other]] = (
            engine.chat(CHAT, **asked)["choices"],
            [answer["choices"] for answer in engine.chat([CHAT], **asked)],
        )
        for choice in (one, other):
            assert choice["message"]["content"] == expected["message"]["content"]
            assert choice["finish_reason"] == expected["finish_reason"]
            calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
            assert calls == [call["function"] for call in expected["message"].get("tool_calls", [])]


def test_streams_add_up_and_may_be_left(engine: ramiform.Engine) -> None:
    whole = engine.generate(CAPITAL, GREEDY)["text"]
    assert [*engine.generate(CAPITAL, GREEDY, stream=True)][-1]["text"] == whole
    left = engine.generate(CAPITAL, GREEDY | {"max_new_tokens": 500, "ignore_eos": True}, stream=True)
    next(left)
    left.close()  # aborts the request
    chunks = engine.chat(CHAT, max_tokens=24, temperature=0, stream=True)
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == engine.chat(CHAT, max_tokens=24, temperature=0)["choices"][0]["message"]["content"]

    async def read() -> list[str]:
        values = await engine.agenerate(CAPITAL, GREEDY, stream=True)
        return [value["text"] async for value in values]

    assert asyncio.run(read())[-1] == whole


@pytest.mark.exhaustive
def test_more_prompts_than_fit_at_once_come_back_in_order(engine: ramiform.Engine) -> None:
    prompts = (f"{number}:" for number in range(1500))
    results = engine.generate(prompts, {"max_new_tokens": 1, "temperature": 0})
    assert len(results) == 1500
    first = engine.generate(["0:", "1499:"], {"max_new_tokens": 1, "temperature": 0})
    assert [results[0]["text"], results[-1]["text"]] == [each["text"] for each in first]
    assert engine.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("call", "param", "words"),
    [
        ({"prompt": ["a", "b " * 5000]}, "text", "prompt 1: "),
        ({"prompt": "a", "sampling_params": {"temprature": 1}}, "temprature", "temprature"),
        ({"prompt": "a", "sampling_params": {"top_p": 2}}, "top_p", "top_p"),
        ({"prompt": ["a"], "sampling_params": [{}, {}]}, "sampling_params", "one for each prompt"),
        ({"prompt": "a", "lora_path": "b"}, "lora_path", "no LoRA adapter 'b'"),
        ({"prompt": "a", "input_ids": [1]}, "prompt", "either"),
        ({"prompt": ["a"], "stream": True}, "stream", "one prompt"),
        ({}, "prompt", "either"),
    ],
)
def test_errors_name_the_prompt_and_the_parameter(
    engine: ramiform.Engine, call: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(ramiform.RequestError, match=words) as caught:
        engine.generate(**call)
    assert caught.value.param is not None
    assert caught.value.param.endswith(param)


def test_errors_may_stand_in_the_place_of_results(engine: ramiform.Engine) -> None:
    good, bad = engine.generate(["a", "b " * 5000], GREEDY, return_exceptions=True)
    assert good["text"]
    assert isinstance(bad, ramiform.RequestError)


def test_a_running_loop_does_not_hinder_the_plain_calls(engine: ramiform.Engine) -> None:
    async def cell() -> str:
        text: str = engine.generate(CAPITAL, GREEDY)["text"]
        return text

    assert asyncio.run(cell()) == engine.generate(CAPITAL, GREEDY)["text"]


@pytest.mark.exhaustive
def test_a_dead_runtime_fails_calls_that_wait() -> None:
    with ramiform.Engine() as engine:
        stream = engine.generate(CAPITAL, {"max_new_tokens": 1500, "ignore_eos": True, "n": 64}, stream=True)
        next(stream)
        os.kill(engine.runtime.pid, signal.SIGKILL)
        with pytest.raises(ramiform.RuntimeFailed):
            for _ in stream:
                pass
        with pytest.raises(ramiform.RuntimeFailed):
            engine.generate(CAPITAL, GREEDY)
    with pytest.raises(ramiform.RuntimeFailed, match="ended"):
        engine.generate(CAPITAL, GREEDY)


def test_vectors_are_those_of_the_route(engine: ramiform.Engine, routes: httpx.Client) -> None:
    """To the rounding of other batches."""

    def vector(answer: dict[str, Any], index: int = 0) -> Any:
        return pytest.approx(answer["data"][index]["embedding"], abs=1e-3)

    texts = [CAPITAL, "Once upon a time"]
    for fields in ({}, {"pooling": "mean", "normalize": False}):
        expected = routes.post("/v1/embeddings", json={"input": texts} | fields).json()
        many = engine.embed(texts, **fields)
        for index, each in enumerate(many):
            assert each["data"][0]["embedding"] == vector(expected, index)
        assert sum(each["usage"]["prompt_tokens"] for each in many) == expected["usage"]["prompt_tokens"]
    one = engine.embed(CAPITAL)
    ids = routes.post("/tokenize", json={"prompt": CAPITAL}).json()["tokens"]
    assert engine.embed(ids)["data"][0]["embedding"] == vector(one)
    assert asyncio.run(engine.aembed(CAPITAL))["data"][0]["embedding"] == vector(one)
    assert isinstance(engine.embed(CAPITAL, encoding_format="base64")["data"][0]["embedding"], str)
    with pytest.raises(ramiform.RequestError, match="prompt 1: ") as raised:
        engine.embed([CAPITAL, ""])
    assert raised.value.param == "input"
    with pytest.raises(ramiform.RequestError) as raised:
        engine.embed(CAPITAL, dimensions=3)
    assert raised.value.param == "dimensions"


@pytest.mark.slow
def test_scores_are_those_of_the_route(engine: ramiform.Engine, routes: httpx.Client) -> None:
    """To the rounding of other batches."""
    given = {"prompt": CAPITAL, "continuations": [" Paris", " Rome"]}
    expected = routes.post("/v1/score", json=given).json()["data"]
    result = engine.score(CAPITAL, [" Paris", " Rome"])["data"]
    assert [each["tokens"] for each in result] == [each["tokens"] for each in expected]
    assert [each["logprob"] for each in result] == pytest.approx([each["logprob"] for each in expected], abs=1e-3)
    labelled = {"query": "Yes or no? ", "items": ["A", "B"], "label_token_ids": [5, 6], "apply_softmax": True}
    expected = routes.post("/v1/score", json=labelled).json()["scores"]
    for scores in (engine.score(**labelled)["scores"], asyncio.run(engine.ascore(**labelled))["scores"]):
        for found, wanted in zip(scores, expected, strict=True):
            assert found == pytest.approx(wanted, abs=1e-3)
    with pytest.raises(ramiform.RequestError) as raised:
        engine.score(CAPITAL)
    assert raised.value.param == "continuations"
