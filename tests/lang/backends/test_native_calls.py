"""Tool calls and structured outputs in the documented forms of OpenAI's chat, its Responses API and Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

import ramiform
from ramiform import Anthropic, OpenAI, ProgramState, RequestError, Scripted, assistant, gen, select, system, user
from ramiform.lang.backends.endpoints.structured_output import output_form
from ramiform.lang.tools.tool_set import ToolSet
from ramiform.lang.types.result_types import of_dtype, of_schema
from ramiform.runtime.protocol.sampling import Constraint

from .conftest import Answer, JsonServer


def weather(place: str) -> str:
    """Return the weather.

    place: a city
    """
    return f"sun in {place}"


def other(place: str) -> str:
    """Do something else."""
    return place


@ramiform.function
def helper(s: ProgramState) -> Any:
    s += system("Be kind.", tools=[weather])
    return s.agent([weather], "Weather in Oslo and Rome?")


def chat(message: dict[str, Any], finish: str = "stop") -> Answer:
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    return Answer({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage})


CALLS = [
    {"id": f"call_{place}", "type": "function", "function": {"name": "weather", "arguments": f'{{"place":"{place}"}}'}}
    for place in ("Oslo", "Rome")
]


def events(*output: dict[str, Any]) -> Answer:
    texts = [part["text"] for item in output for part in item.get("content", ())]
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in texts]
    usage = {"input_tokens": 5, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}
    ended = {"type": "response.completed", "response": {"status": "completed", "output": output, "usage": usage}}
    return Answer(events=[{"type": "response.created"}, *deltas, ended])


def blocks(*content: dict[str, Any], reason: str = "end_turn") -> Answer:
    made: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": {"input_tokens": 5}}}]
    for index, block in enumerate(content):
        empty = {"text": ""} if block["type"] == "text" else {"id": block["id"], "name": block["name"], "input": {}}
        made.append({"type": "content_block_start", "index": index, "content_block": {"type": block["type"], **empty}})
        text = block["text"] if block["type"] == "text" else json.dumps(block["input"])
        key, kind = ("text", "text_delta") if block["type"] == "text" else ("partial_json", "input_json_delta")
        for at in range(0, len(text), 5):
            delta = {"type": kind, key: text[at : at + 5]}
            made.append({"type": "content_block_delta", "index": index, "delta": delta})
    ended = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 3}}
    return Answer(events=[*made, ended, {"type": "message_stop"}])


@pytest.fixture
def connect(server: JsonServer) -> Iterator[Callable[[str], Any]]:
    made: list[Any] = []

    def connect(kind: str) -> Any:
        if kind == "anthropic":
            made.append(Anthropic("m", base_url=server.url, api_key="k"))
        else:
            made.append(OpenAI("m", base_url=server.url, api_key="k", is_chat_model=True, api=kind))  # type: ignore[arg-type]
        return made[-1]

    yield connect
    for backend in made:
        backend.close()


def as_scripted() -> Any:
    texts = [
        '<tool_call>\n{"name": "weather", "arguments": {"place":"Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"place":"Rome"}}\n</tool_call>',
        "Sun in both.",
    ]
    return helper.run(backend=Scripted(texts)).ret_value


def outcome(result: Any) -> Any:
    return result.answer, result.steps, result.stopped_by, [(one.name, one.arguments, one.text) for one in result.calls]


def test_an_agents_turns_are_native_calls_of_chat_completions(server: JsonServer, connect: Any) -> None:
    server.answers = [
        chat({"role": "assistant", "content": None, "tool_calls": CALLS}, "tool_calls"),
        chat({"role": "assistant", "content": "Sun in both."}),
    ]
    state = helper.run(backend=connect("chat"))
    assert outcome(state.ret_value) == outcome(as_scripted())
    first, second = (request.body for request in server.requests)
    [tool] = first["tools"]
    assert tool["function"]["name"] == "weather"
    assert tool["function"]["description"] == "Return the weather."
    assert tool["function"]["strict"] is True
    assert "response_format" not in first
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["messages"][0]["content"] == "Be kind."  # the tools are a field, not words
    assert second["messages"][2:] == [
        {"role": "assistant", "content": None, "tool_calls": CALLS},
        {"role": "tool", "content": "sun in Oslo", "tool_call_id": "call_Oslo"},
        {"role": "tool", "content": "sun in Rome", "tool_call_id": "call_Rome"},
    ]
    assert state.messages()[2]["content"].count("<tool_call>") == 2


def test_streamed_calls_are_put_together(server: JsonServer, connect: Any) -> None:
    @ramiform.tool(pure=True)
    def early(place: str) -> str:
        """Return the weather."""
        return f"sun in {place}"

    @ramiform.function
    def body(s: ProgramState) -> Any:
        return s.agent([early], "Weather in Oslo?")

    def delta(**fields: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}

    def part(arguments: str, **fields: Any) -> dict[str, Any]:
        return {"index": 0, **fields, "function": {"arguments": arguments} | ({"name": "early"} if fields else {})}

    first = [delta(content="Let me see."), delta(tool_calls=[part("", id="c1", type="function")])]
    first += [delta(tool_calls=[part('{"pla')]), delta(tool_calls=[part('ce": "Oslo"}')])]
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    server.answers = [
        Answer(events=[*first, ended, "[DONE]"]),
        Answer(
            events=[delta(content="Sun."), {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]"]
        ),
    ]
    result = body.run(backend=connect("chat")).ret_value
    assert (result.answer, result.calls[0].text) == ("Sun.", "sun in Oslo")
    [call] = server.requests[1].body["messages"][1]["tool_calls"]
    assert call == {"id": "c1", "type": "function", "function": {"name": "early", "arguments": '{"place": "Oslo"}'}}
    assert server.requests[1].body["messages"][1]["content"] == "Let me see."


def test_an_agents_turns_are_items_of_responses(server: JsonServer, connect: Any) -> None:
    calls = [
        {"type": "function_call", "call_id": call["id"], "name": "weather", "arguments": call["function"]["arguments"]}  # type: ignore[index]
        for call in CALLS
    ]
    message = {"type": "message", "content": [{"type": "output_text", "text": "Sun in both."}]}
    server.answers = [events({"type": "reasoning", "summary": []}, *calls), events(message)]
    state = helper.run(backend=connect("responses"))
    assert outcome(state.ret_value) == outcome(as_scripted())
    first, second = (request.body for request in server.requests)
    assert server.requests[0].path == "/responses"
    assert first["store"] is False
    assert first["tools"][0]["name"] == "weather"
    assert second["input"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        *calls,
        {"type": "function_call_output", "call_id": "call_Oslo", "output": "sun in Oslo"},
        {"type": "function_call_output", "call_id": "call_Rome", "output": "sun in Rome"},
    ]


def test_an_agents_turns_are_blocks_of_messages(server: JsonServer, connect: Any) -> None:
    calls = [
        {"type": "tool_use", "id": f"toolu_{place}", "name": "weather", "input": {"place": place}}
        for place in ("Oslo", "Rome")
    ]
    said = {"type": "text", "text": "I look."}
    server.answers = [blocks(said, *calls, reason="tool_use"), blocks({"type": "text", "text": "Sun in both."})]
    state = helper.run(backend=connect("anthropic"))
    assert outcome(state.ret_value) == outcome(as_scripted())
    first, second = (request.body for request in server.requests)
    assert first["tools"][0].keys() == {"name", "description", "input_schema"}
    assert first["tool_choice"] == {"type": "auto"}
    assert second["system"] == "Be kind."
    assert second["messages"][1:] == [
        {"role": "assistant", "content": [said, *calls]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_Oslo", "content": "sun in Oslo"},
                {"type": "tool_result", "tool_use_id": "toolu_Rome", "content": "sun in Rome"},
            ],
        },
    ]


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
def test_a_call_that_must_be_made_is_asked_for_in_each_apis_form(server: JsonServer, connect: Any, kind: str) -> None:
    @ramiform.function
    def body(s: ProgramState) -> Any:
        return s.agent([weather, other], "Go", tool_choice="weather", max_steps=1)

    server.answers = [
        {
            "chat": chat({"content": None, "tool_calls": CALLS[:1]}),
            "responses": events(
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"place":"Oslo"}'}
            ),
            "anthropic": blocks({"type": "tool_use", "id": "c", "name": "weather", "input": {"place": "Oslo"}}),
        }[kind]
    ]
    result = body.run(backend=connect(kind)).ret_value
    assert result.calls[0].text == "sun in Oslo"
    assert (
        server.requests[0].body["tool_choice"]
        == {
            "chat": {"type": "function", "function": {"name": "weather"}},
            "responses": {"type": "function", "name": "weather"},
            "anthropic": {"type": "tool", "name": "weather"},
        }[kind]
    )


def test_after_a_handover_only_the_tools_of_the_other_agent_are_sent(server: JsonServer, connect: Any) -> None:
    desk = ramiform.Agent("desk", [weather], "You answer.", handoffs=[ramiform.Agent("shop", [other], "You sell.")])

    @ramiform.function
    def body(s: ProgramState) -> Any:
        return s.agent(desk, "I want tea.")

    moved = {"id": "c1", "type": "function", "function": {"name": "hand_over_to_shop", "arguments": "{}"}}
    server.answers = [chat({"content": None, "tool_calls": [moved]}), chat({"content": "Here."})]
    result = body.run(backend=connect("chat")).ret_value
    assert (result.answer, result.agent) == ("Here.", "shop")
    names = [[one["function"]["name"] for one in request.body["tools"]] for request in server.requests]
    assert names == [["weather", "hand_over_to_shop"], ["other"]]
    assert server.requests[1].body["messages"][2]["tool_calls"] == [moved]


def test_results_that_are_no_tools_messages_leave_calls_in_the_text(server: JsonServer, connect: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> Any:
        return s.agent([weather], "Weather in Oslo?", result_role="user")

    server.answers = [chat({"content": None, "tool_calls": CALLS[:1]}), chat({"content": "Sun."})]
    assert body.run(backend=connect("chat")).ret_value.answer == "Sun."
    [_, called, result] = server.requests[1].body["messages"]
    assert "tool_calls" not in called
    assert called["content"].startswith("<tool_call>")
    assert result == {"role": "user", "content": "sun in Oslo"}


@pytest.mark.parametrize("kind", ["chat", "anthropic"])
def test_calls_that_a_checkpoint_kept_as_text_are_sent_as_calls(
    server: JsonServer, connect: Any, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "run.jsonl"
    use = {"type": "tool_use", "id": "c", "name": "weather", "input": {"place": "Oslo"}}
    called = blocks(use) if kind == "anthropic" else chat({"content": None, "tool_calls": CALLS[:1]})
    server.answers = [called, Answer({"error": {"message": "no"}}, 400)]
    with pytest.raises(RequestError, match="no"):
        helper.run(backend=connect(kind), checkpoint=path)
    server.answers = [blocks({"type": "text", "text": "Sun."}) if kind == "anthropic" else chat({"content": "Sun."})]
    state = helper.run(backend=connect(kind), checkpoint=path)
    assert state.ret_value.answer == "Sun."
    sent = server.requests[-1].body["messages"]
    if kind == "anthropic":
        assert [sent[1]["content"][0]["input"], sent[2]["content"][0]["content"]] == [{"place": "Oslo"}, "sun in Oslo"]
        assert sent[1]["content"][0]["id"] == sent[2]["content"][0]["tool_use_id"]
    else:
        [asked] = sent[2]["tool_calls"]
        assert json.loads(asked["function"]["arguments"]) == {"place": "Oslo"}
        assert sent[3] == {"role": "tool", "content": "sun in Oslo", "tool_call_id": asked["id"]}


# Structured outputs


class Item(BaseModel):
    name: str
    price: float = 0.0


class Order(BaseModel):
    items: list[Item]
    note: str | None = None
    count: int = Field(default=1, ge=1, le=9)


def test_values_that_are_no_objects_are_members_of_one(server: JsonServer, connect: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("?") + assistant(gen("a", dtype=int)) + user("?") + assistant(gen("b", schema=list[Item]))
        s += user("?") + assistant(gen("c", regex="[a-c]+", stop="c")) + user("?") + assistant(select("d", ["x", "y"]))

    texts = ['{"value": 42}', '{ "value" : [{"name": "a}", "price": 1}] }', '{"value":"abc"}', '{"value":"y"}']
    server.answers = [chat({"content": text}) for text in texts]
    state = body.run(backend=connect("chat"))
    assert (state["a"], state["b"], state["c"], state["d"]) == (42, [Item(name="a}", price=1.0)], "ab", "y")
    assert state.messages()[3]["content"] == '[{"name": "a}", "price": 1}]'
    sent = [request.body["response_format"]["json_schema"] for request in server.requests]
    assert [one["schema"]["properties"]["value"].get("type") for one in sent] == [
        "integer",
        "array",
        "string",
        "string",
    ]
    assert all(one["strict"] and one["schema"]["required"] == ["value"] for one in sent)
    assert "stop" not in server.requests[2].body
    assert state.get_meta_info("c")["finish_reason"] == {"type": "stop", "matched": "c"}
    assert state.get_meta_info("d")["scores"] == []


@pytest.mark.parametrize("kind", ["responses", "anthropic"])
def test_streamed_values_are_given_as_they_come(server: JsonServer, connect: Any, kind: str) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("?") + assistant(gen("x", schema=list[Literal["a", "}b"]]))

    text = '{"value": ["a", "}b", "a"]}'
    if kind == "responses":
        parts = [{"type": "output_text", "text": text[at : at + 4]} for at in range(0, len(text), 4)]
        server.answers = [events({"type": "message", "content": parts})]
    else:
        server.answers = [blocks({"type": "text", "text": text})]
    state = body.run(stream=True, backend=connect(kind))
    assert "".join(state.text_iter("x")) == '["a", "}b", "a"]'
    assert state["x"] == ["a", "}b", "a"]


@pytest.mark.parametrize(
    "options", [{"dialect": "vllm"}, {"is_chat_model": False}, {"num_speculative_tokens": 9}, {"is_azure": True}]
)
def test_the_responses_api_is_openais_own(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="leave dialect") as caught:
        OpenAI("m", api="responses", api_key="k", **options)
    assert caught.value.param == "api"


def test_what_does_not_match_and_refusals_are_errors(server: JsonServer, connect: Any) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += user("?") + assistant(gen("x", regex="[a-c]+"))

    server.answers = [chat({"content": '{"value": "xyz"}'})]
    with pytest.raises(RequestError, match=r"test_native_calls\.py.*a match of the regex"):
        body.run(backend=connect("chat"))
    server.answers = [chat({"content": None, "refusal": "I will not."})]
    with pytest.raises(RequestError, match="refused to answer: I will not"):
        body.run(backend=connect("chat"))


def test_what_openai_enforces_lists_all_members_and_no_others() -> None:
    constraint = of_schema(Order).constraint
    assert constraint is not None
    form = output_form(constraint, strict=True)
    assert form is not None
    assert form.is_strict
    assert form.schema["required"] == ["items", "note", "count"]
    assert form.schema["$defs"]["Item"]["required"] == ["name", "price"]
    assert "default" not in json.dumps(form.schema)
    for kind in (dict[str, int], tuple[int, str]):  # members of any name, places with types: it enforces neither
        source = of_schema(kind).constraint.source  # type: ignore[union-attr]
        loose = output_form(Constraint("json_schema", source, additional_properties="closed"), strict=True)
        assert loose is not None
        assert not loose.is_strict
    tools = output_form(ToolSet([weather, other]).constraint, strict=True)
    assert tools is not None
    assert tools.is_strict
    assert {"const": "weather", "type": "string"} in [
        one["properties"]["name"] for one in tools.schema["properties"]["value"]["anyOf"]
    ]


def test_bounds_of_types_are_left_to_the_type_where_the_api_takes_none() -> None:
    constraint = of_schema(Order).constraint
    assert constraint is not None
    form = output_form(constraint, strict=False, unbounded=True)
    assert form is not None
    assert "minimum" not in json.dumps(form.schema)
    assert form.schema["required"] == ["items"]


@pytest.mark.parametrize(("dtype", "text"), [(int, "7"), (float, "1.5"), (bool, "true"), (str, '"a"')])
def test_the_schema_of_a_dtype_says_what_its_regex_does(dtype: type, text: str) -> None:
    result = of_dtype(dtype)
    assert result.constraint is not None
    form = output_form(result.constraint, strict=True)
    assert form is not None
    read = form.text_of(f'{{"value":{text}}}')
    assert read == text
    assert type(result.parse(read)) is dtype


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_the_official_client_would_send_these_bodies(server: JsonServer, connect: Any, kind: str) -> None:
    """Judge: the types of the parameters in the package `openai`."""

    @ramiform.function
    def body(s: ProgramState) -> None:
        s.agent([weather, other], "Weather in Oslo?", tool_choice="weather", schema=Order)
        s += user("?") + assistant(gen("a", dtype=int, max_tokens=20, temperature=0.5, top_p=0.9))
        s += user("?") + assistant(select("b", ["x", "y"]))

    texts = ["Sun.", '{"items": []}', '{"value": 1}', '{"value": "x"}']
    if kind == "chat":
        first = chat({"content": None, "tool_calls": CALLS[:1]})
        rest = [chat({"content": text}) for text in texts]
    else:
        first = events({"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"place": "Oslo"}'})
        rest = [events({"type": "message", "content": [{"type": "output_text", "text": text}]}) for text in texts]
    server.answers = [first, *rest]
    state = body.run(backend=connect(kind))
    assert (state["a"], state["b"]) == (1, "x")
    assert len(server.requests) == 5
    params = parameters(kind)
    adapter = TypeAdapter(params)
    for request in server.requests:
        assert request.body.keys() <= params.__annotations__.keys()
        whole(adapter.validate_python(request.body))


def parameters(kind: str) -> Any:
    if kind == "chat":
        from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

        return CompletionCreateParamsNonStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    return ResponseCreateParamsStreaming


def whole(value: Any) -> None:
    """Read what is validated as it is read."""
    if isinstance(value, dict):
        for one in value.values():
            whole(one)
    elif not isinstance(value, str) and hasattr(value, "__iter__"):
        for one in value:
            whole(one)
