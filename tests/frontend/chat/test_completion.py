"""A chat's answer over a scripted core: reasoning, text and calls, free and constrained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ramiform.runtime.frontend.chat.tools.formats import FORMATS
from ramiform.runtime.frontend.chat.tools.parser import ToolCallParser
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tests.frontend.harness import House, house, run, shipped_tokenizer

TOKENIZER = shipped_tokenizer()
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}


def tool(name: str, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


def scripted(say: Callable[[str, Generate], str]) -> Callable[[Generate], list[int]]:
    """A model that answers a prompt's text, and writes what stands around a call's arguments."""

    def script(request: Generate) -> list[int]:
        prompt = TOKENIZER.decode(request.tokens, skip_special_tokens=False)
        text = say(prompt, request)
        constraint = request.sampling.constraint
        if constraint is not None and constraint.kind == "structural_tag":
            before, _, after = json.loads(constraint.source)["format"]["elements"]
            text = before["value"] + text + after["value"]
        return TOKENIZER.encode(text, parse_special=False, continues=True)

    return script


def joined(text: str) -> dict[str, Any]:
    """What the chunks of a stream of one choice add up to."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    reasons = []
    for line in text.split("\n\n"):
        if not line or line == "data: [DONE]":
            continue
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                if "id" in call:
                    message["tool_calls"].append([call["function"]["name"], ""])
                message["tool_calls"][call["index"]][1] += call["function"]["arguments"]
            if choice["finish_reason"]:
                reasons.append(choice["finish_reason"])
    [message["finish_reason"]] = reasons
    return message


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer as a whole, in `joined`'s shape, and its usage; the stream must say the same."""
    response = await client.post("/v1/chat/completions", json=CHAT | body)
    assert response.status_code == 200, response.text
    answer = response.json()
    [choice] = answer["choices"]
    message = choice["message"]
    whole = {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "tool_calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])],
        "finish_reason": choice["finish_reason"],
    }
    assert message.get("reasoning") == message.get("reasoning_content")
    streamed = joined((await client.post("/v1/chat/completions", json=CHAT | body | {"stream": True})).text)
    assert streamed == whole
    return whole, answer["usage"]


def serving(
    say: Callable[[str, Generate], str], check: Callable[[House, httpx.AsyncClient], Any], **settings: Any
) -> None:
    async def main() -> None:
        async with (
            house(scripted(say), http=True, **settings) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            await check(built, client)

    run(main())


@pytest.mark.slow
def test_thinking_is_told_from_the_answer() -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {})
        assert (whole["content"], whole["reasoning"]) == ("Paris.", "Let me see.")
        details = usage["completion_tokens_details"]
        assert 0 < details["reasoning_tokens"] < usage["completion_tokens"]
        unsplit, _ = await both(client, {"separate_reasoning": False})
        assert unsplit["content"] == "<think>\nLet me see.\n</think>\n\nParis."

    serving(lambda prompt, _: "<think>\nLet me see.\n</think>\n\nParis.", check, reasoning_parser="think")


@pytest.mark.slow
def test_the_core_is_told_what_the_conversation_waits_for() -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        return "Hello." if constraint is None else 'look"' if constraint.kind == "choices" else '{"x": 1}'

    async def check(built: House, client: httpx.AsyncClient) -> None:
        await both(client, {})
        tools = {"tools": [tool("look"), tool("other")], "tool_choice": "required", "parallel_tool_calls": False}
        whole, _ = await both(client, tools)
        assert whole["tool_calls"] == [["look", '{"x": 1}']]
        await built.core.until(lambda: len(built.core.turns) == 4)
        assert [turn.waits_for for turn in built.core.turns] == ["user", "user", "look", "look"]
        assert {turn.rid for turn in built.core.turns} < {request.rid for request in built.core.requests}

    serving(say, check)


@pytest.mark.slow
def test_a_grammar_begins_after_the_thinking() -> None:
    def say(prompt: str, request: Generate) -> str:
        if request.sampling.constraint is not None:
            assert prompt.endswith("<think>\nLet me see.\n</think>\n\n")
            return "42"
        assert prompt.endswith("<think>\n")
        return "Let me see.\n</think>\n\nforty-two"

    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {"response_format": FORMAT})
        assert (whole["content"], whole["reasoning"], whole["finish_reason"]) == ("42", "Let me see.", "stop")
        assert usage["completion_tokens_details"]["reasoning_tokens"] > 0
        assert {request.sampling.constraint is None for request in built.core.requests} == {True, False}

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
def test_a_grammar_begins_after_the_thinking_in_other_markers() -> None:
    def say(prompt: str, request: Generate) -> str:
        if request.sampling.constraint is not None:
            assert prompt.endswith("[THINK]\nLet me see.\n[/THINK]\n\n")
            return "42"
        assert prompt.endswith("[THINK]\n")
        return "Let me see.\n[/THINK]\n\nforty-two"

    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"response_format": FORMAT})
        assert (whole["content"], whole["reasoning"], whole["finish_reason"]) == ("42", "Let me see.", "stop")

    serving(say, check, reasoning_parser="magistral")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [{"stop": " me"}, {"stop_regex": " m[aeiou]"}])
def test_a_stop_of_the_clients_ends_the_answer_in_its_thinking_too(stop: dict[str, str]) -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"response_format": FORMAT, **stop})
        assert (whole["content"], whole["reasoning"], whole["finish_reason"]) == ("", "Let", "stop")
        assert all(request.sampling.constraint is None for request in built.core.requests)

    serving(lambda prompt, _: "Let me see.\n</think>\n\n42", check, reasoning_parser="think")


@pytest.mark.slow
def test_thinking_that_never_ends_is_cut_at_the_limit() -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {"response_format": FORMAT, "max_tokens": 8})
        assert (whole["content"], whole["finish_reason"]) == ("", "length")
        assert usage["completion_tokens"] == 8

    serving(lambda prompt, _: "and so on " * 50, check, reasoning_parser="think")


@pytest.mark.slow
def test_several_forced_calls_in_one_answer() -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        if constraint is None:  # whether there is another call
            return "\n<tool_call>" if prompt.count("</tool_call>") == 1 else " that is all"
        if constraint.kind == "choices":
            return 'b"' if "</tool_call>" in prompt else 'a"'
        return '{"x": 2}' if "</tool_call>" in prompt else '{"x": 1}'

    async def check(built: House, client: httpx.AsyncClient) -> None:
        body = {"tools": [tool("a"), tool("b")], "tool_choice": "required"}
        whole, _ = await both(client, body)
        assert whole["tool_calls"] == [["a", '{"x": 1}'], ["b", '{"x": 2}']]
        assert (whole["content"], whole["finish_reason"]) == ("", "tool_calls")
        one, _ = await both(client, body | {"parallel_tool_calls": False})
        assert one["tool_calls"] == [["a", '{"x": 1}']]

    serving(say, check)


FORMAT_NAMES = sorted(FORMATS)
SEVERAL = [name for name in FORMAT_NAMES if FORMATS[name].has_marker]


@pytest.mark.exhaustive
@pytest.mark.parametrize("parser", SEVERAL)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_text_of_several_calls_is_what_the_format_reads(parser: str, choice: str) -> None:
    """The model opens two calls; what was written for it, read as if it were the model's own, is those calls."""
    tool_format = FORMATS[parser]

    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        num_calls = len(re.findall(r'\{"x": \d', prompt))
        if constraint is None:
            if not num_calls:
                return tool_format.trigger
            return str(tool_format.next_trigger) if num_calls == 1 else tool_format.end_of_calls or ""
        if constraint.kind == "choices":
            return json.loads(constraint.source)[num_calls]
        return f'{{"x": {num_calls + 1}}}'

    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"tools": [tool("a"), tool("b")], "tool_choice": choice})
        assert whole["tool_calls"] == [["a", '{"x": 1}'], ["b", '{"x": 2}']]
        assert (whole["content"], whole["finish_reason"]) == ("", "tool_calls")
        last = TOKENIZER.decode(built.core.requests[-1].tokens, skip_special_tokens=False)
        start = last.rindex(tool_format.opening, 0, last.index('{"x": 1}'))
        reader = ToolCallParser(tool_format, ["a", "b"])
        read = reader.feed(last[start:] + (tool_format.end_of_calls or "")).calls + reader.finish().calls
        assert [(call.name, call.arguments) for call in read] == [("a", '{"x": 1}'), ("b", '{"x": 2}')]

    serving(say, check, tool_call_parser=parser)


@pytest.mark.exhaustive
@pytest.mark.parametrize("parser", FORMAT_NAMES)
def test_a_forced_call_is_made_in_every_format(parser: str) -> None:
    def say(prompt: str, request: Generate) -> str:
        constraint = request.sampling.constraint
        if constraint is None:
            return "."
        if constraint.kind == "choices":
            return json.loads(constraint.source)[1]
        return '{"x": 7}'

    async def check(built: House, client: httpx.AsyncClient) -> None:
        for tools in ([tool("b")], [tool("a"), tool("b")]):
            whole, _ = await both(client, {"tools": tools, "tool_choice": "required"})
            assert whole["tool_calls"] == [["b", '{"x": 7}']]

    serving(say, check, tool_call_parser=parser)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_a_call_is_held_to_its_schema_once_the_model_opens_it(strict: bool) -> None:
    def say(prompt: str, request: Generate) -> str:
        if request.sampling.constraint is not None:
            return '{"x": 5}'
        if "</tool_call>" in prompt:
            return "\nThat was it."
        return 'I look. \n<tool_call>\n{"name": "a", "arguments": nonsense'

    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"tools": [tool("a", strict=strict)]})
        assert whole["tool_calls"] == [["a", '{"x": 5}']]
        assert whole["content"] == "I look.\nThat was it."
        assert whole["finish_reason"] == "tool_calls"

    serving(say, check)


@pytest.mark.slow
def test_a_call_whose_schema_cannot_be_compiled_is_read_as_it_is_written_unless_it_is_strict() -> None:
    def script(request: Generate) -> list[int] | RequestError:
        if request.sampling.constraint is not None:
            return RequestError("no such keyword", code="invalid_grammar")
        text = 'Look: <tool_call>\n{"name": "a", "arguments": {"x": "free"}}\n</tool_call>'
        return TOKENIZER.encode(text, parse_special=False, continues=True)

    async def main() -> None:
        async with (
            house(script, http=True) as built,
            httpx.AsyncClient(base_url=built.url, timeout=120) as client,
        ):
            whole, _ = await both(client, {"tools": [tool("a"), tool("b")]})
            assert (whole["content"], whole["tool_calls"]) == ("Look:", [["a", '{"x": "free"}']])
            assert sum(r.sampling.constraint is not None for r in built.core.requests) <= 2  # asked once, remembered
            for more in ({"tools": [tool("a", strict=True)]}, {"tools": [tool("a")], "tool_choice": "required"}):
                refused = await client.post("/v1/chat/completions", json=CHAT | more)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")

    run(main())


@pytest.mark.slow
def test_what_is_said_before_a_call_is_no_final_answer() -> None:
    def say(prompt: str, request: Generate) -> str:
        if request.sampling.constraint is not None:
            return '{"x": 5}'
        return "" if "</tool_call>" in prompt else "I look.\n<tool_call>"

    async def check(built: House, client: httpx.AsyncClient) -> None:
        flat = {"type": "function", "name": "a", "parameters": tool("a")["function"]["parameters"]}
        response = await client.post("/v1/responses", json={"model": "fake", "input": "a", "tools": [flat]})
        message, call = response.json()["output"]
        assert (message["phase"], message["content"][0]["text"]) == ("commentary", "I look.")
        assert (call["name"], call["arguments"], "phase" in call) == ("a", '{"x": 5}', False)

    serving(say, check)


@pytest.mark.slow
def test_what_a_step_has_generated_is_the_next_ones_prefix() -> None:
    def say(prompt: str, request: Generate) -> str:
        return "42" if request.sampling.constraint is not None else "Hm</think> no"

    async def check(built: House, client: httpx.AsyncClient) -> None:
        await client.post("/v1/chat/completions", json=CHAT | {"response_format": FORMAT, "seed": 5})
        thinking, answering = built.core.requests
        assert answering.tokens[: len(thinking.tokens)] == thinking.tokens
        assert thinking.sampling.seed == 5 != answering.sampling.seed

    serving(say, check, reasoning_parser="think")


@pytest.mark.exhaustive
def test_a_model_that_need_not_think_is_not_made_to_for_the_sake_of_tools() -> None:
    def say(prompt: str, request: Generate) -> str:
        if request.sampling.constraint is not None:  # whether the schema compiles
            return "{}"
        assert not prompt.endswith("<think>\n")
        return '<tool_call>\n{"name": "a", "arguments": {"x": 3}}\n</tool_call>'

    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, _ = await both(client, {"tools": [tool("a")]})
        assert (whole["content"], whole["reasoning"]) == ("", "")
        assert whole["tool_calls"] == [["a", '{"x": 3}']]

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
def test_thinking_and_a_forced_call_go_together() -> None:
    def say(prompt: str, request: Generate) -> str:
        return '{"x": 1}' if request.sampling.constraint is not None else "I must call.</think>"

    async def check(built: House, client: httpx.AsyncClient) -> None:
        body = {"tools": [tool("a")], "tool_choice": "required", "parallel_tool_calls": False}
        whole, _ = await both(client, body)
        assert whole["reasoning"] == "I must call."
        assert whole["tool_calls"] == [["a", '{"x": 1}']]

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
@pytest.mark.parametrize(
    "field",
    [
        {"thinking_token_budget": 5},
        {"max_thinking_tokens": 5},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"reasoning": {"max_tokens": 5}},
    ],
    ids=lambda field: next(iter(field)),
)
@pytest.mark.parametrize("constrained", [False, True])
def test_thinking_beyond_its_budget_is_closed_and_the_answer_follows(field: dict[str, Any], constrained: bool) -> None:
    def say(prompt: str, request: Generate) -> str:
        if prompt.endswith("</think>\n\n"):
            return "42"
        assert prompt.endswith("<think>\n")
        return "and so on " * 50

    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, field | ({"response_format": FORMAT} if constrained else {}))
        assert (whole["content"], whole["finish_reason"]) == ("42", "stop")
        thinking, answering = built.core.requests[:2]
        assert thinking.sampling.max_new_tokens == 5
        num_opening = len(TOKENIZER.encode("<think>\n", parse_special=True, continues=True))
        assert usage["completion_tokens_details"]["reasoning_tokens"] == 5 + num_opening
        assert "and so on".startswith(whole["reasoning"][:9])
        assert answering.tokens[: len(thinking.tokens)] == thinking.tokens

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
def test_a_budget_of_anthropic_s_api_closes_the_thinking_too() -> None:
    def say(prompt: str, request: Generate) -> str:
        return "42" if prompt.endswith("</think>\n\n") else "and so on " * 50

    async def check(built: House, client: httpx.AsyncClient) -> None:
        thinking = {"type": "enabled", "budget_tokens": 5}
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "thinking": thinking}
        answer = (await client.post("/v1/messages", json=body)).json()
        assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
        assert (answer["content"][1]["text"], built.core.requests[0].sampling.max_new_tokens) == ("42", 5)

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
def test_a_budget_of_nothing_closes_the_thinking_at_once_and_a_large_one_changes_nothing() -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        without, _ = await both(client, {"thinking_token_budget": 0})
        assert (without["content"], without["reasoning"]) == ("42", "")
        whole, _ = await both(client, {"thinking_token_budget": 500})
        assert (whole["content"], whole["reasoning"], whole["finish_reason"]) == ("42", "Let me see.", "stop")
        cut, usage = await both(client, {"thinking_token_budget": 500, "max_tokens": 8})
        assert (cut["content"], cut["finish_reason"], usage["completion_tokens"]) == ("", "length", 8)

    def say(prompt: str, _: Generate) -> str:
        return "42" if prompt.endswith("</think>\n\n") else "Let me see.\n</think>"

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
def test_a_budget_does_not_make_a_model_think_whose_thinking_is_off() -> None:
    def say(prompt: str, _: Generate) -> str:
        assert not prompt.endswith("<think>\n")
        return "42"

    async def check(built: House, client: httpx.AsyncClient) -> None:
        for switch in ({"thinking": {"type": "disabled", "budget_tokens": 5}}, {"reasoning_effort": "none"}):
            whole, _ = await both(client, {"max_thinking_tokens": 5} | switch)
            assert (whole["content"], whole["reasoning"]) == ("42", "")

    serving(say, check, reasoning_parser="think")


@pytest.mark.slow
def test_excluded_reasoning_is_left_out_of_the_answer() -> None:
    async def check(built: House, client: httpx.AsyncClient) -> None:
        whole, usage = await both(client, {"reasoning": {"exclude": True}})
        assert (whole["content"], whole["reasoning"]) == ("42", "")
        assert usage["completion_tokens_details"]["reasoning_tokens"] > 0

    serving(lambda prompt, _: "<think>Let me see.</think>42", check, reasoning_parser="think")
