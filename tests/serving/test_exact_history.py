"""Chat turns repeat the ids that were generated, in every dialect, on the model that ships.

The answers consist of one-letter tokens, which the tokenizer would not choose for their text: without the memory, the
prefix cache has nothing for them.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI

from ramiform.tests.frontend.harness import shipped_tokenizer

LETTERS = [
    token for token, data in enumerate(shipped_tokenizer().token_bytes) if data in (b"t", b"h", b"e", b"n", b" ")
]
DRIFT: dict[str, Any] = {"allowed_token_ids": LETTERS, "cache_salt": "exact history"}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}


def complete(client: OpenAI, model: str, messages: list[Any], **extra: Any) -> tuple[str, Any]:
    """Return an answer's text and the usage."""
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=48,
        temperature=0.7,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=DRIFT | extra,
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    return text, usage


def turns(client: OpenAI, model: str, first: str, **extra: Any) -> list[tuple[int, int, int, int]]:
    """Play turns. Returns tokens of the prompt before, of the answer before, cached and remembered tokens of each."""
    messages: list[Any] = [{"role": "user", "content": first}]
    text, usage = complete(client, model, messages, **extra)
    found = []
    for _ in range(3):
        before = usage
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
        text, usage = complete(client, model, messages, **extra)
        details = usage.prompt_tokens_details
        found.append(
            (
                before.prompt_tokens,
                before.completion_tokens,
                details.cached_tokens,
                details.model_extra["remembered_tokens"],
            )
        )
    return found


def test_the_generated_part_of_a_turn_is_cached_whatever_the_tokenizer_makes_of_it(client: OpenAI, model: str) -> None:
    said = 0
    for prompt, answer, cached, remembered in turns(client, model, "Tell me about cats."):
        said += answer
        assert cached >= prompt + 0.95 * answer
        assert remembered == said


@pytest.mark.parametrize("extra", [{"exact_history": False, "seed": 7}, {"seed": 7}])
def test_without_it_the_tokenizer_decides(client: OpenAI, model: str, extra: dict[str, Any]) -> None:
    """Draw by a seed, so that the answers are ones whose letters the tokenizer joins."""
    played = turns(client, model, f"Tell me about {extra}.", **extra)
    assert [remembered for *_, remembered in played] == [0, 0, 0]
    assert any(cached < prompt + 0.5 * answer for prompt, answer, cached, _ in played)


def test_a_request_with_a_seed_may_ask_for_it(client: OpenAI, model: str) -> None:
    for prompt, answer, cached, _ in turns(client, model, "Tell me about seeds.", seed=7, exact_history=True):
        assert cached >= prompt + 0.95 * answer


def test_all_of_several_answers_are_remembered(client: OpenAI, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Name a bird."}]
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=40, n=3, extra_body=DRIFT)
    for choice in answer.choices:
        later = [*messages, {"role": "assistant", "content": choice.message.content}, {"role": "user", "content": "?"}]
        _, usage = complete(client, model, later)
        assert usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens + 38  # type: ignore[union-attr]


def test_tool_calls_are_repeated_as_the_template_renders_them(client: OpenAI, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": "Find the cats."}]
    options: dict[str, Any] = {"model": model, "tools": [TOOL], "max_tokens": 60, "temperature": 0}
    options["extra_body"] = {"cache_salt": "tools"}
    answer = client.chat.completions.create(messages=messages, tool_choice="required", **options)
    [call] = answer.choices[0].message.tool_calls or []
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "in the garden"},
    ]
    usage = client.chat.completions.create(messages=messages, **options).usage
    before = answer.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert before is not None
    assert json.loads(call.function.arguments).keys() == {"what"}  # type: ignore[union-attr]
    assert usage.prompt_tokens_details.cached_tokens >= before.prompt_tokens + 0.9 * before.completion_tokens  # type: ignore[operator]


def test_responses_that_continue_one_another_repeat_their_ids(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="Tell me about dogs.", max_output_tokens=48, extra_body=DRIFT)
    second = client.responses.create(
        model=model, input="Go on.", previous_response_id=first.id, max_output_tokens=8, extra_body=DRIFT
    )
    assert first.usage is not None
    assert second.usage is not None
    details = second.usage.input_tokens_details
    assert details.cached_tokens >= first.usage.input_tokens + 0.95 * first.usage.output_tokens
    assert (details.model_extra or {})["remembered_tokens"] == first.usage.output_tokens


def test_messages_and_ollama_repeat_their_ids(http: httpx.Client, model: str) -> None:
    """Ask by routes whose bodies list no tokens: what the model says by itself must be remembered too."""
    user = {"role": "user", "content": "Tell me about fish and mice, please."}
    body: dict[str, Any] = {"model": model, "max_tokens": 40, "temperature": 0, "messages": [user]}
    first = http.post("/v1/messages", json=body).json()
    messages = [user, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "Go on."}]
    usage = http.post("/v1/messages", json=body | {"messages": messages}).json()["usage"]
    assert usage["remembered_input_tokens"] >= first["usage"]["output_tokens"] - 1  # without its end
    asked = {"model": model, "messages": [user], "stream": False, "options": {"num_predict": 40, "temperature": 0}}
    said = http.post("/api/chat", json=asked).json()
    asked["messages"] = [user, said["message"], {"role": "user", "content": "Go on."}]
    assert http.post("/api/chat", json=asked).json()["prompt_remembered_count"] >= said["eval_count"] - 1
