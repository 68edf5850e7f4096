"""Tools through the official client: forced, allowed, forbidden; whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from .prompts import CHAT, HELLO, PERSON, SWITCH, TOOLS, WEATHER, tool

SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in [*TOOLS, *SWITCH]}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}


def check_calls(calls: Any) -> list[tuple[str, dict[str, Any]]]:
    """The names and arguments; ids differ, arguments are valid."""
    assert len({call.id for call in calls}) == len(calls)
    found = []
    for call in calls:
        assert call.type == "function"
        assert call.id.startswith("call_")
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])
        found.append((call.function.name, arguments))
    return found


def test_a_call_that_the_model_writes_is_read(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=WEATHER, tools=TOOLS, temperature=0)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert check_calls(choice.message.tool_calls) == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}], ids=str
)
def test_a_schema_that_leaves_everything_open_leaves_the_model_as_sure(client: OpenAI, model: str, choice: Any) -> None:
    """Constrained where it would write the same: a seam inside a token would lead it astray."""
    open_tools: list[Any] = [
        {"type": "function", "function": {**each["function"], "parameters": {"type": "object"}}} for each in TOOLS
    ]
    answer = client.chat.completions.create(
        model=model, messages=WEATHER, tools=open_tools, tool_choice=choice, temperature=0, max_tokens=60
    )
    [call] = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})


def test_the_answer_to_a_call_is_used(client: OpenAI, model: str) -> None:
    call = client.chat.completions.create(model=model, messages=WEATHER, tools=TOOLS, temperature=0)
    message = call.choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": '{"weather": "sunny", "temperature": 21}',
    }
    answer = client.chat.completions.create(
        model=model, messages=[*WEATHER, message, result], tools=TOOLS, temperature=0
    )
    assert "sunny" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}], ids=str)
@pytest.mark.parametrize("response_format", [None, FORMAT], ids=["alone", "with a format"])
@pytest.mark.parametrize("seed", range(3))
def test_a_forced_call_is_a_valid_call_whatever_the_model_thinks(
    client: OpenAI, model: str, choice: Any, response_format: Any, seed: int
) -> None:
    more = {} if response_format is None else {"response_format": response_format}
    asked: dict[str, Any] = {
        "model": model,
        "messages": CHAT,
        "tools": TOOLS,
        "tool_choice": choice,
        "temperature": 1.0,
        "seed": seed,
        "stop": ["e", '"'],  # would end the answer, but not a call
        **more,
    }
    answer = client.chat.completions.create(**asked)
    message = answer.choices[0].message
    assert message.content is None
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = check_calls(message.tool_calls)
    if isinstance(choice, dict):
        assert [name for name, _ in calls] == ["get_time"]
    # The stream is the same, in pieces.
    streamed: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        [part] = chunk.choices
        assert not part.delta.content
        for delta in part.delta.tool_calls or []:
            if delta.id is not None:
                assert delta.index not in streamed
                streamed[delta.index] = [delta.function.name, ""]
            streamed[delta.index][1] += delta.function.arguments
    assert [(name, json.loads(text)) for name, text in streamed.values()] == calls


def test_one_call_where_several_are_forbidden(client: OpenAI, model: str) -> None:
    for mode in ("auto", "required"):
        answer = client.chat.completions.create(
            model=model, messages=WEATHER, tools=TOOLS, tool_choice=mode, parallel_tool_calls=False, temperature=0
        )
        assert len(check_calls(answer.choices[0].message.tool_calls)) == 1


def test_strict_tools_are_held_to_their_schema_when_the_model_calls(client: OpenAI, model: str) -> None:
    strict: list[Any] = [{"type": "function", "function": {**each["function"], "strict": True}} for each in TOOLS]
    called = client.chat.completions.create(model=model, messages=WEATHER, tools=strict, temperature=0)
    assert check_calls(called.choices[0].message.tool_calls) == [("get_weather", {"city": "Paris"})]
    assert called.choices[0].finish_reason == "tool_calls"
    said = client.chat.completions.create(model=model, messages=HELLO, tools=strict, temperature=0)
    assert said.choices[0].message.tool_calls is None
    assert said.choices[0].message.content
    assert said.choices[0].finish_reason == "stop"


def test_tools_and_a_format_make_a_call_or_a_valid_answer(client: OpenAI, model: str) -> None:
    asked: dict[str, Any] = {"model": model, "tools": TOOLS, "response_format": FORMAT, "temperature": 0}
    called = client.chat.completions.create(messages=WEATHER, **asked)
    assert check_calls(called.choices[0].message.tool_calls) == [("get_weather", {"city": "Paris"})]
    said = client.chat.completions.create(messages=HELLO, **asked)
    jsonschema.validate(json.loads(said.choices[0].message.content), PERSON)


def test_no_call_when_none_is_allowed(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=WEATHER, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None


def test_arguments_may_be_of_any_schema(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=HELLO, tools=SWITCH, tool_choice="required", temperature=1.5, seed=4, n=4
    )
    for choice in answer.choices:
        assert check_calls(choice.message.tool_calls)
    bare: Any = [{"type": "function", "function": {"name": "ping"}}]
    answer = client.chat.completions.create(model=model, messages=HELLO, tools=bare, tool_choice="required")
    assert answer.choices[0].message.tool_calls[0].function.arguments == "{}"


def test_a_pydantic_tool_is_parsed(client: OpenAI, model: str) -> None:
    from openai import pydantic_function_tool

    class Light(BaseModel):
        on: bool

    answer = client.chat.completions.parse(
        model=model, messages=HELLO, tools=[pydantic_function_tool(Light)], tool_choice="required"
    )
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Light)


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        (TOOLS, {"type": "function", "function": {"name": "nobody"}}, "tool_choice"),
        ([*TOOLS, TOOLS[0]], "auto", "tools"),
        ([tool("no such name!", "", {})], "auto", "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "a", "parameters": {"type": "nothing"}}}], "required", "tools"),
        (TOOLS, "perhaps", "tool_choice"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_called_is_a_400(client: OpenAI, model: str, tools: Any, choice: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=HELLO, tools=tools, tool_choice=choice)
    assert caught.value.param == param
