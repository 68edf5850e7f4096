"""Calls without markers, first chunks and the tools of prompts, by every dialect that has chat."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from ramiform.runtime.protocol.core import Generate
from ramiform.tests.frontend.chat.test_completion import CHAT, FORMAT, TOKENIZER, both, serving, tool
from ramiform.tests.frontend.harness import House

CALL = '{"name": "a", "arguments": {"x": 5}}'
CALLED = [["a", '{"x": 5}']]


def says(text: str) -> Any:
    """A model whose schemas compile, and which writes `text` freely."""
    return lambda prompt, request: "{}" if request.sampling.constraint is not None else text


@pytest.mark.slow
@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "json"])
@pytest.mark.parametrize(
    "text", [CALL, f"```json\n{CALL}\n```", f"I look it up.\n{CALL}"], ids=["bare", "fence", "said"]
)
def test_an_answer_that_is_the_json_of_a_call_is_one(text: str, parser: str) -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        tools = {"tools": [tool("a"), tool("b")]}
        whole, _ = await both(client, tools)
        said = "I look it up." if text.startswith("I") else ""
        assert (whole["content"], whole["tool_calls"], whole["finish_reason"]) == (said, CALLED, "tool_calls")
        if parser != "json":  # whose own form this is
            strict, _ = await both(client, tools | {"tool_calls": "strict"})
            assert (strict["content"], strict["tool_calls"], strict["finish_reason"]) == (text, [], "stop")
        shown = [{"role": "user", "content": "Show me an example of a call as JSON."}]
        asked, _ = await both(client, tools | {"messages": shown, "tool_calls": "lenient"})
        assert (asked["tool_calls"] == []) is (parser != "json" or text.startswith("I"))

    serving(says(text), check, tool_call_parser=parser)


@pytest.mark.slow
def test_a_strict_server_reads_bare_calls_of_requests_that_ask_for_it() -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        tools = {"tools": [tool("a")]}
        assert (await both(client, tools))[0]["content"] == CALL
        assert (await both(client, tools | {"tool_calls": "lenient"}))[0]["tool_calls"] == CALLED

    serving(says(CALL), check, tool_calls="strict")


@pytest.mark.slow
def test_json_of_a_response_format_is_no_call() -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"tools": [tool("a")], "response_format": FORMAT})
        assert (whole["content"], whole["tool_calls"]) == ("42", [])

    serving(lambda prompt, request: "42" if request.sampling.constraint is not None else CALL, check)


@pytest.mark.slow
def test_every_dialect_reads_bare_calls_and_turns_it_off() -> None:
    function = tool("a")["function"]
    flat = {"type": "function", **function}
    anthropic = {"name": "a", "input_schema": function["parameters"]}
    messages = CHAT["messages"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages, "tools": [tool("a")]},
        "/v1/responses": {"input": "Hello", "tools": [flat]},
        "/v1/messages": {"messages": messages, "max_tokens": 50, "tools": [anthropic]},
        "/api/chat": {"messages": messages, "stream": False, "tools": [tool("a")]},
    }

    async def check(built: House, client: httpx.AsyncClient) -> None:
        for path, body in bodies.items():
            lenient, strict = [
                (await client.post(path, json=body | more)).text for more in ({}, {"tool_calls": "strict"})
            ]
            assert json.dumps(CALL) not in lenient, path
            assert json.dumps(CALL)[1:-1] in strict, path

    serving(says(CALL), check)


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_the_first_chunk_has_the_role_whatever_the_length(max_tokens: int) -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        tools = {"tools": [tool("get_weather"), tool("get_web")], "tool_choice": "required", "max_tokens": max_tokens}
        answer = (await client.post("/v1/chat/completions", json=CHAT | tools | {"stream": True})).text
        first = json.loads(answer.partition("\n\n")[0].removeprefix("data: "))
        assert first["choices"][0]["delta"]["role"] == "assistant"
        flat = [{"type": "function", **tool(name)["function"]} for name in ("get_weather", "get_web")]
        body = {"input": "Hi", "tools": flat, "tool_choice": "required", "max_output_tokens": max_tokens}
        events = (await client.post("/v1/responses", json=body | {"stream": True})).text
        assert events.startswith("event: response.created")

    serving(lambda prompt, request: 'get_weather"', check)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["", "null", " ", "{}"])
def test_calls_without_arguments_render_as_an_empty_object(arguments: str) -> None:
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}{% endfor %}{{ m.content }}{% endfor %}"
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]

    async def check(built: House, client: httpx.AsyncClient) -> None:
        body = {"messages": messages, "chat_template": template}
        response = await client.post("/v1/chat/completions", json=CHAT | body)
        assert response.status_code == 200, response.text
        assert TOKENIZER.decode(built.core.requests[-1].tokens) == "ufr"

    serving(lambda prompt, _: "ok", check, trust_request_chat_template=True)


CUT = '{"x": 123'


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "own template"])
def test_a_forced_call_that_was_cut_off_can_be_sent_back(path: str) -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        forced = {"tools": [tool("a")], "tool_choice": "required", "max_tokens": 18}
        message = (await client.post("/v1/chat/completions", json=CHAT | forced)).json()["choices"][0]["message"]
        [call] = message["tool_calls"]
        assert call["function"]["arguments"] == CUT
        messages = [*CHAT["messages"], message, {"role": "tool", "tool_call_id": call["id"], "content": "Cut off."}]
        if path == "/v1/responses":
            said = {"type": "function_call", "call_id": call["id"], **call["function"]}
            result = {"type": "function_call_output", "call_id": call["id"], "output": "Cut off."}
            response = await client.post(path, json={"input": [*CHAT["messages"], said, result]})
        else:
            template = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
            own = {} if path.startswith("/") else {"chat_template": template + "{{ m.content or '' }}{% endfor %}"}
            response = await client.post("/v1/chat/completions", json=CHAT | {"messages": messages} | own)
        assert response.status_code == 200, response.text
        prompt = TOKENIZER.decode(built.core.requests[-1].tokens)
        assert CUT in prompt
        assert prompt.index(CUT) < prompt.index("Cut off.")

    serving(lambda prompt, _: '{"x": 1234567890}', check, trust_request_chat_template=True)


@pytest.mark.slow
def test_the_prompt_has_the_tools_as_they_were_sent() -> None:
    schema = {"required": ["x"], "type": "object", "properties": {"x": {"type": "integer", "title": "X"}, "a": {}}}
    function = {"parameters": schema, "name": "f", "strict": False, "description": "é <b>"}
    bare = {"name": "g"}
    sent = [{"function": function, "type": "function"}, {"type": "function", "function": bare | {"description": None}}]
    functions = [{"type": "function", "function": each} for each in (function, bare)]
    flat = [{"strict": False, "type": "function", "name": "f", "parameters": schema}]
    anthropic = [{"input_schema": schema, "name": "f", "cache_control": {"type": "ephemeral"}, "description": "d"}]
    messages = CHAT["messages"]
    cases: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
        ("/v1/chat/completions", {"messages": messages, "tools": sent}, sent),
        ("/v1/chat/completions", {"messages": messages, "functions": [function, bare]}, functions),
        ("/api/chat", {"messages": messages, "stream": False, "tools": sent}, sent),
        (
            "/v1/responses",
            {"input": "Hello", "tools": flat},
            [{"type": "function", "function": {"strict": False, "name": "f", "parameters": schema}}],
        ),
        (
            "/v1/messages",
            {"messages": messages, "max_tokens": 5, "tools": anthropic},
            [{"type": "function", "function": {"parameters": schema, "name": "f", "description": "d"}}],
        ),
    ]
    library = PreTrainedTokenizerFast(tokenizer_object=Library(models.BPE()), **_names())

    async def check(built: House, client: httpx.AsyncClient) -> None:
        assert TOKENIZER.chat is not None
        for path, body, tools in cases:
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            [request, *_] = [one for one in built.core.requests if one.sampling.constraint is None][-1:]
            judged = library.apply_chat_template(
                messages,
                tools=tools,
                chat_template=TOKENIZER.chat.source,
                add_generation_prompt=True,
                tokenize=False,
            )
            assert TOKENIZER.decode(request.tokens, skip_special_tokens=False) == judged, path

    def say(prompt: str, request: Generate) -> str:
        return "{}" if request.sampling.constraint is not None else "ok"

    serving(say, check)


def _names() -> dict[str, str]:
    assert TOKENIZER.chat is not None
    return {name: text for name, text in TOKENIZER.chat.variables.items() if isinstance(text, str)}
