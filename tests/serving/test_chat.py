"""`/v1/chat/completions` through the official client, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

from .prompts import CHAT, HELLO


def test_a_question_is_answered(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=CHAT, temperature=0)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert answer.object == "chat.completion"
    assert isinstance(answer.created, int)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.timings["predicted_n"] == answer.usage.completion_tokens  # type: ignore[attr-defined]
    assert min(answer.timings.values()) >= 0  # type: ignore[attr-defined]


def test_the_prompt_is_what_the_chat_template_says(client: OpenAI, http: httpx.Client, model: str) -> None:
    said = client.chat.completions.create(model=model, messages=CHAT, temperature=0, max_tokens=1)
    prompt = "<|user|>\nWhat is the capital of France?<|end|>\n<|assistant|>\n"
    assert said.usage.prompt_tokens == http.post("/tokenize", json={"prompt": prompt}).json()["count"]


def test_what_a_client_writes_names_no_special_token(client: OpenAI, model: str) -> None:
    text = "a<|end|>b"
    one = client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], max_tokens=1)
    short = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "ab"}], max_tokens=1)
    assert one.usage.prompt_tokens > short.usage.prompt_tokens + 2  # a token of its own would be one


def test_a_stream_is_the_whole_in_pieces(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "messages": CHAT, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert len({(chunk.id, chunk.created, chunk.object) for chunk in chunks}) == 1
    *parts, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in parts)
    deltas = [chunk.choices[0].delta for chunk in parts]
    assert deltas[0].role == "assistant"
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in parts][-1] == "stop"
    assert all(chunk.choices[0].finish_reason is None for chunk in parts[:-1])
    values = [
        token.logprob for chunk in parts if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content
    ]
    assert values == pytest.approx([token.logprob for token in whole.choices[0].logprobs.content], abs=1e-3)


def test_logprobs_are_those_of_the_native_route(client: OpenAI, http: httpx.Client, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=CHAT, temperature=0, logprobs=True, top_logprobs=3, max_tokens=8
    )
    tokens = answer.choices[0].logprobs.content
    prompt = "<|user|>\nWhat is the capital of France?<|end|>\n<|assistant|>\n"
    native = http.post(
        "/generate",
        json={
            "text": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 8},
            "return_logprob": True,
            "top_logprobs_num": 3,
            "return_text_in_logprobs": True,
        },
    ).json()["meta_info"]
    assert [(token.token, token.logprob) for token in tokens] == [
        (text, pytest.approx(value, abs=1e-3)) for value, _, text in native["output_token_logprobs"]
    ]
    for token, top in zip(tokens, native["output_top_logprobs"], strict=True):
        assert [entry.token for entry in token.top_logprobs] == [text for _, _, text in top]
        assert bytes(token.bytes).decode() == token.token
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content


def test_choices_are_numbered_and_interleave_in_streams(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {
        "model": model,
        "messages": HELLO,
        "n": 3,
        "seed": 11,
        "temperature": 1.4,
        "max_completion_tokens": 12,
    }
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    texts = ["", "", ""]
    ends: list[int] = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason:
            ends.append(choice.index)
    assert texts == [choice.message.content for choice in whole.choices]
    assert sorted(ends) == [0, 1, 2]


def test_the_asynchronous_client_streams_many_at_once(url: str, model: str) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

            async def ask(seed: int) -> str:
                stream = await client.chat.completions.create(
                    model=model, messages=HELLO, seed=seed, max_tokens=10, temperature=1, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            together = await asyncio.gather(*(ask(seed) for seed in range(16)))
            assert together[:3] == [await ask(seed) for seed in range(3)]

    asyncio.run(main())


def test_parts_of_text_are_one_text(client: OpenAI, model: str) -> None:
    parts: list[Any] = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
    joined: list[Any] = [{"role": "user", "content": "What is the capital\nof France?"}]
    by_parts = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=5
    )
    by_text = client.chat.completions.create(model=model, messages=joined, temperature=0, max_tokens=5)
    assert by_parts.choices[0].message.content == by_text.choices[0].message.content
    assert by_parts.usage.prompt_tokens == by_text.usage.prompt_tokens


def test_an_answer_is_continued(client: OpenAI, model: str) -> None:
    messages: list[Any] = [*CHAT, {"role": "assistant", "content": "The capital of"}]
    answer = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=0,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    assert answer.choices[0].message.content.startswith(" France")


def test_a_developer_is_the_system(client: OpenAI, model: str) -> None:
    counts = {
        client.chat.completions.create(
            model=model, messages=[{"role": role, "content": "Be kind."}, *HELLO], max_tokens=1
        ).usage.prompt_tokens
        for role in ("system", "developer")
    }
    assert len(counts) == 1


def test_the_cache_is_shared_unless_salted(client: OpenAI, http: httpx.Client, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Remember these words: " + "tree house " * 20}]

    def cached(salt: str) -> int:
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=1, extra_body={"cache_salt": salt}
        )
        return answer.usage.prompt_tokens_details.cached_tokens

    http.post("/flush_cache")
    assert (cached("a"), cached("b")) == (0, 0)
    assert cached("a") > 40


def test_models_are_known_by_name(client: OpenAI, model: str) -> None:
    found = client.models.retrieve(model)
    assert (found.id, found.object) == (model, "model")
    assert found.max_model_len == 2048  # type: ignore[attr-defined]
    for ask in (
        lambda: client.models.retrieve("no/such model"),
        lambda: client.chat.completions.create(model="nobody", messages=CHAT),
        lambda: client.completions.create(model="nobody", prompt="a"),
    ):
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "functions"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_completion_tokens": 1 << 20}, "max_completion_tokens"),
        ({"reasoning_effort": "heroic"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"stop": ["a"] * 100}, "stop"),
    ],
    ids=lambda value: str(value)[:50],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_a_400_that_names_it(
    http: httpx.Client, model: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    import json

    body = {"model": model, "messages": CHAT, "stream": stream} | fields
    headers = {"content-type": "application/json"}
    response = http.post("/v1/chat/completions", content=json.dumps(body), headers=headers)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_switches_of_other_servers_may_be_off(http: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": CHAT, "max_tokens": 1, "max_completion_tokens": 1}
    assert http.post("/v1/chat/completions", json=body | {"use_beam_search": False}).status_code == 200
    assert http.post("/v1/chat/completions", json=body | {"use_beam_search": True}).status_code == 400
