"""`/v1/responses` through the official client."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import BaseModel, TypeAdapter

from .prompts import PERSON, TOOLS

QUESTION = "What is the capital of France?"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
FLAT: list[Any] = [{"type": "function", **each["function"]} for each in TOOLS]


def test_a_question_is_answered(client: OpenAI, model: str) -> None:
    answer = client.responses.create(model=model, input=QUESTION, temperature=0, metadata={"a": "b"})
    assert "Paris" in answer.output_text
    assert (answer.status, answer.object, answer.error, answer.metadata) == ("completed", "response", None, {"a": "b"})
    [message] = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.phase == "final_answer"
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0)
    assert answer.output_text == chat.choices[0].message.content
    assert usage.input_tokens == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens


def test_events_come_in_order_and_add_up(client: OpenAI, model: str) -> None:
    events = list(client.responses.create(model=model, input=QUESTION, temperature=0, stream=True))
    kinds = [event.type for event in events]
    num_deltas = kinds.count("response.output_text.delta")
    assert num_deltas > 1
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * num_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert text == final.output_text
    assert final.id == events[0].response.id
    whole = client.responses.create(model=model, input=QUESTION, temperature=0)
    assert whole.output_text == text


def test_the_clients_own_accumulator_agrees(client: OpenAI, model: str) -> None:
    with client.responses.stream(model=model, input=QUESTION, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert "Paris" in final.output_text


def test_a_call_is_an_item_and_its_output_is_answered(client: OpenAI, model: str) -> None:
    question: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.responses.create(model=model, input=question, tools=FLAT, temperature=0)
    [call] = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"weather": "sunny", "temperature": 21}',
    }
    by_items = client.responses.create(model=model, input=[*question, call, result], tools=FLAT, temperature=0)
    by_id = client.responses.create(
        model=model, input=[result], previous_response_id=first.id, tools=FLAT, temperature=0
    )
    assert "sunny" in by_items.output_text
    assert by_id.output_text == by_items.output_text
    assert by_id.usage.input_tokens == by_items.usage.input_tokens


def test_functions_of_a_namespace_are_called_by_both_names(client: OpenAI, model: str) -> None:
    """As coding agents send them; the model reads and writes `NAMESPACE.NAME`."""
    spaced: Any = [{"type": "namespace", "name": "travel", "description": "Travel.", "tools": FLAT[:1]}]
    flat: Any = [FLAT[0] | {"name": "travel.get_weather", "description": f"Travel.\n{FLAT[0]['description']}"}]
    question: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    ask: Any = {"model": model, "temperature": 0, "parallel_tool_calls": False}
    events = list(client.responses.create(input=question, tools=spaced, tool_choice="required", stream=True, **ask))
    [added] = [event.item for event in events if event.type == "response.output_item.added"]
    [call] = events[-1].response.output
    assert (added.namespace, added.name) == (call.namespace, call.name) == ("travel", "get_weather")
    [same] = client.responses.create(input=question, tools=flat, tool_choice="required", **ask).output
    assert (same.name, same.arguments) == ("travel.get_weather", call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    goes_on = client.responses.create(input=[*question, call, result], tools=spaced, **ask)
    same_again = client.responses.create(input=[*question, same, result], tools=flat, **ask)
    assert (goes_on.output_text, goes_on.usage.input_tokens) == (same_again.output_text, same_again.usage.input_tokens)
    assert goes_on.tools[0].type == "namespace"


def test_a_forced_call_streams_its_arguments(client: OpenAI, model: str) -> None:
    events = list(
        client.responses.create(
            model=model, input=QUESTION, tools=FLAT[:1], tool_choice="required", parallel_tool_calls=False, stream=True
        )
    )
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments
    jsonschema.validate(json.loads(done.arguments), FLAT[0]["parameters"])
    [item] = events[-1].response.output
    assert (item.type, item.arguments, item.status) == ("function_call", done.arguments, "completed")


def test_a_schema_is_obeyed_and_parsed(client: OpenAI, model: str) -> None:
    wanted: Any = {"format": {"type": "json_schema", "name": "p", "schema": PERSON, "strict": True}}
    answer = client.responses.create(model=model, input=QUESTION, text=wanted)
    jsonschema.validate(json.loads(answer.output_text), PERSON)

    class Place(BaseModel):
        kind: Literal["city", "river"]

    parsed = client.responses.parse(model=model, input=QUESTION, text_format=Place)
    assert isinstance(parsed.output_parsed, Place)


def test_a_conversation_goes_on_by_id(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="My name is Ada.", temperature=0, instructions="Be kind.")
    second = client.responses.create(
        model=model, input="What is my name?", previous_response_id=first.id, temperature=0
    )
    assert "Ada" in second.output_text
    assert second.previous_response_id == first.id
    by_hand: list[Any] = [
        {"role": "user", "content": "My name is Ada."},
        *first.output,
        {"role": "user", "content": "What is my name?"},
    ]
    assert client.responses.create(model=model, input=by_hand, temperature=0).output_text == second.output_text
    third = client.responses.create(model=model, input="Thanks!", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens


def test_responses_are_stored_and_forgotten(client: OpenAI, model: str) -> None:
    made = client.responses.create(model=model, input="Hello!")
    assert client.responses.retrieve(made.id).output_text == made.output_text
    [item] = client.responses.input_items.list(made.id).data
    assert item.role == "user"
    with pytest.raises(BadRequestError):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    unstored = client.responses.create(model=model, input="Hello!", store=False)
    for gone in (made.id, unstored.id):
        with pytest.raises(NotFoundError):
            client.responses.retrieve(gone)
        with pytest.raises(BadRequestError) as caught:
            client.responses.create(model=model, input="a", previous_response_id=gone)
        assert caught.value.code == "previous_response_not_found"


def test_a_response_is_made_in_the_background_and_may_be_cancelled(client: OpenAI, model: str) -> None:
    made = client.responses.create(model=model, input=QUESTION, temperature=0, background=True)
    deadline = time.monotonic() + 120
    while (made := client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
    assert "Paris" in made.output_text
    endless = {"ignore_eos": True, "min_tokens": 1500}
    # So many that they run for longer than this process may stand still.
    long = [
        client.responses.create(model=model, input=QUESTION, background=True, extra_body=endless) for _ in range(12)
    ]
    assert [client.responses.cancel(one.id).status for one in long] == ["cancelled"] * 12


def read_events(http: httpx.Client, method: str, path: str, **options: Any) -> list[dict[str, Any]]:
    """The events of a stream, each as the client's class for it reads it."""
    with http.stream(method, path, **options) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    *texts, last = lines
    assert last == "[DONE]"
    events = [json.loads(text) for text in texts]
    for event in events:
        assert EVENTS.validate_python(event).type == event["type"]
    return events


def test_a_stream_in_the_background_is_read_again_from_any_event(http: httpx.Client, model: str) -> None:
    body = {"model": model, "input": QUESTION, "temperature": 0, "background": True, "stream": True}
    events = read_events(http, "POST", "/v1/responses", json=body)
    assert [event["type"] for event in events[:4]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    path = f"/v1/responses/{events[0]['response']['id']}"
    assert http.get(path).json() == events[-1]["response"]
    assert read_events(http, "GET", path, params={"stream": "true"}) == events
    for number in (0, len(events) - 2, len(events) - 1, len(events) + 9):
        rest = read_events(http, "GET", path, params={"stream": "true", "starting_after": number})
        assert rest == events[number + 1 :]
    for params, param in (({"starting_after": 1}, "starting_after"), ({"stream": "true", "starting_after": -1}, "")):
        refused = http.get(path, params=params)
        assert refused.status_code == 400
        assert param in refused.json()["error"]["param"]
    whole = http.post("/v1/responses", json=body | {"background": False, "stream": False}).json()
    assert http.get(f"/v1/responses/{whole['id']}", params={"stream": "true"}).json()["error"]["param"] == "stream"
    assert whole["output"][0]["content"] == events[-1]["response"]["output"][0]["content"]


def test_a_stream_in_the_background_outlives_its_reader(client: OpenAI, model: str) -> None:
    endless = {"ignore_eos": True, "min_tokens": 1500}
    stream = client.responses.create(model=model, input=QUESTION, background=True, stream=True, extra_body=endless)
    first = [next(stream) for _ in range(6)]
    stream.close()
    name = first[0].response.id
    seen = first[-1].sequence_number
    follower = client.responses.retrieve(name, stream=True, starting_after=seen)
    assert [next(follower).sequence_number for _ in range(3)] == [seen + 1, seen + 2, seen + 3]
    assert client.responses.retrieve(name).status == "in_progress"
    assert client.responses.cancel(name).status == "cancelled"
    rest = [event.type for event in follower]  # ends
    assert "response.completed" not in rest


def test_the_input_is_listed_in_pages(client: OpenAI, http: httpx.Client, model: str) -> None:
    texts = [f"Word {number}." for number in range(5)]
    said: list[Any] = [{"role": "user", "content": text} for text in texts]
    made = client.responses.create(model=model, input=said, max_output_tokens=1)
    path = f"/v1/responses/{made.id}/input_items"
    listed = ResponseItemList.model_validate(http.get(path).json())
    assert [item.content[0].text for item in listed.data] == texts[::-1]  # type: ignore[union-attr]
    pages = client.responses.input_items.list(made.id, order="asc", limit=2)
    assert [item.content[0].text for item in pages] == texts  # type: ignore[union-attr]
    assert (pages.has_more, pages.last_id) == (True, pages.data[-1].id)
    assert http.get(path, params={"after": "msg_none"}).json()["error"]["param"] == "after"


def test_fields_without_effect_here_are_shown_again(client: OpenAI, model: str) -> None:
    answer = client.responses.create(
        model=model,
        input=QUESTION,
        max_output_tokens=1,
        max_tool_calls=3,
        prompt_cache_retention="24h",
        include=["web_search_call.action.sources", "reasoning.encrypted_content"],
    )
    assert (answer.max_tool_calls, answer.prompt_cache_retention) == (3, "24h")


def test_an_answer_cut_short_is_incomplete(client: OpenAI, model: str) -> None:
    answer = client.responses.create(model=model, input=QUESTION, max_output_tokens=2)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 2
    events = list(client.responses.create(model=model, input=QUESTION, max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete"


def test_log_probabilities_are_included_when_asked_for(client: OpenAI, model: str) -> None:
    answer = client.responses.create(
        model=model, input=QUESTION, temperature=0, include=["message.output_text.logprobs"], top_logprobs=2
    )
    [part] = answer.output[0].content
    assert "".join(token.token for token in part.logprobs) == part.text
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)


DIGITS = {"type": "grammar", "syntax": "regex", "definition": r"[0-9]{2}-\"[a-c]{1,4}\"\n"}
SUMS = {"type": "grammar", "syntax": "lark", "definition": 'start: N ("+" N)~1..3\nN: /[1-9]/\n%ignore " "'}


@pytest.mark.parametrize(
    ("format_", "pattern"),
    [
        (None, r"[\s\S]*"),
        ({"type": "text"}, r"[\s\S]*"),
        (DIGITS, DIGITS["definition"]),
        (SUMS, r" *[1-9]( *\+ *[1-9]){1,3} *"),
    ],
    ids=["default", "text", "regex", "lark"],
)
def test_the_input_of_a_custom_tool_is_of_its_grammar(
    http: httpx.Client, model: str, format_: dict[str, str] | None, pattern: str
) -> None:
    tools = [{"type": "custom", "name": "run", "description": "Runs it.", "format": format_}, FLAT[0]]
    body = {"model": model, "input": QUESTION, "tools": tools, "temperature": 1.5, "seed": 3, "max_output_tokens": 300}
    body |= {"tool_choice": {"type": "custom", "name": "run"}, "stream": True}
    events = read_events(http, "POST", "/v1/responses", json=body)
    [call] = events[-1]["response"]["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "run")
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == call["input"]
    if events[-1]["type"] == "response.completed":
        assert re.fullmatch(pattern, call["input"])
    else:
        assert format_ in (None, {"type": "text"})  # which may go on for ever
    kinds = [event["type"] for event in events]
    begin, end = kinds.index("response.output_item.added"), kinds.index("response.output_item.done")
    assert kinds[begin + 1 : end] == [
        *["response.custom_tool_call_input.delta"] * len(deltas),
        "response.custom_tool_call_input.done",
    ]
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
    more: dict[str, Any] = {"stream": False, "tool_choice": "auto", "max_output_tokens": 1}
    by_id = http.post(
        "/v1/responses", json=body | more | {"input": [result], "previous_response_id": events[-1]["response"]["id"]}
    )
    by_hand = http.post(
        "/v1/responses", json=body | more | {"input": [{"role": "user", "content": QUESTION}, call, result]}
    )
    assert by_id.status_code == by_hand.status_code == 200, by_id.text
    assert by_id.json()["usage"]["input_tokens"] == by_hand.json()["usage"]["input_tokens"]


def test_a_custom_tool_is_called_unforced_under_its_grammar(client: OpenAI, model: str) -> None:
    """Beside a function, as coding agents offer them."""
    tool: Any = {"type": "custom", "name": "get_weather", "format": {**SUMS, "definition": 'start: "Paris" | "Rome"'}}
    answer = client.responses.create(
        model=model, input="What is the weather in Paris?", tools=[tool, FLAT[1]], temperature=0
    )
    calls = [item for item in answer.output if item.type == "custom_tool_call"]
    assert [call.input in ("Paris", "Rome") for call in calls] == [True]
    forced = client.responses.create(model=model, input=QUESTION, tools=[tool, FLAT[1]], tool_choice="required")
    for item in forced.output:
        assert item.type == "function_call" or (item.type == "custom_tool_call" and item.input in ("Paris", "Rome"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"tools": [{"type": "custom", "name": "a", "format": {**SUMS, "definition": "start: x"}}]}, "tools"),
        ({"tools": [{"type": "custom", "name": "a", "format": {**DIGITS, "definition": "("}}]}, "tools"),
        (
            {"tools": [{"type": "custom", "name": "a", "format": {**DIGITS, "syntax": "gbnf"}}]},
            "tools[0].format.syntax",
        ),
        ({"input": []}, "input"),
        ({"input": [{"type": "telepathy"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "no"}}}}, "text.format"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "b"}]}]},
            "tools[0].tools[0].type",
        ),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [FLAT[0]] * 2}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "always"}, "truncation"),
        ({"prompt": {"id": "pmpt_1", "variables": {"city": "Paris"}}}, "prompt"),
        ({"include": ["message.everything"]}, "include[0]"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "x", "previous_response_id": "y"}, "conversation"),
        ({"prompt_cache_retention": "1w"}, "prompt_cache_retention"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 1 << 20}, "max_output_tokens"),
        ({"n": 2}, "n"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_is_a_400_that_names_it(
    http: httpx.Client, model: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    response = http.post("/v1/responses", json={"model": model, "input": "a", "stream": stream} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_the_oldest_turns_of_a_long_conversation_are_dropped(http: httpx.Client, model: str) -> None:
    most = http.get("/v1/models").json()["data"][0]["max_model_len"]
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_output_tokens": 4}
    long = "word " * (most // 4)
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    system = {"role": "developer", "content": "Be brief."}
    turns = [
        [{"role": "user", "content": f"My number is {turn}. {long}"}, {"role": "assistant", "content": "Fine."}]
        for turn in range(6)
    ]
    turns[4] += [call, {"type": "function_call_output", "call_id": "c", "output": "one"}]
    last = {"role": "user", "content": "Which?"}
    whole = {"input": [*turns[0], system, *(item for turn in turns[1:] for item in turn), last]}
    refused = http.post("/v1/responses", json=body | whole)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    answer = http.post("/v1/responses", json=body | whole | {"truncation": "auto"}).json()
    assert answer["truncation"] == "auto"

    def from_turn(number: int) -> httpx.Response:
        kept = [system, *(item for turn in turns[number:] for item in turn), last]
        return http.post("/v1/responses", json=body | {"input": kept})

    first = next(number for number in range(6) if from_turn(number).status_code == 200)
    assert 0 < first < 5
    alone = from_turn(first).json()
    assert answer["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    assert answer["output"][0]["content"] == alone["output"][0]["content"]
    free = http.post(
        "/v1/responses/input_tokens", json={**body, **whole, "truncation": "auto", "max_output_tokens": None}
    )
    assert free.json()["input_tokens"] <= most - most // 8
    short = http.post("/v1/responses", json=body | {"input": QUESTION, "truncation": "auto"}).json()
    assert short["status"] == "incomplete"
    for alone_too_long in (
        "word " * most,
        [{"role": "user", "content": "a"}, {"role": "user", "content": "word " * most}],
    ):
        refused = http.post("/v1/responses", json=body | {"input": alone_too_long, "truncation": "auto"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_input_tokens_are_counted(client: OpenAI, model: str) -> None:
    counted = client.responses.input_tokens.count(model=model, input=QUESTION)
    answer = client.responses.create(model=model, input=QUESTION, max_output_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens


def test_a_conversation_is_compacted_and_goes_on(client: OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="My name is Ada.", temperature=0)
    compacted = client.responses.compact(model=model, input="I like chess.", previous_response_id=first.id)
    *said, summary = compacted.output
    assert [item.content[0].text for item in said] == ["My name is Ada.", "I like chess."]
    assert summary.type == "compaction"
    items: list[Any] = [item.model_dump(exclude_none=True, warnings=False) for item in compacted.output]
    answer = client.responses.create(model=model, input=[*items, {"role": "user", "content": "What is my name?"}])
    assert answer.usage.input_tokens > first.usage.input_tokens
    assert answer.status in ("completed", "incomplete")
    for wrong in ([{"type": "compaction", "encrypted_content": "?"}], []):
        with pytest.raises(BadRequestError):
            client.responses.compact(model=model, input=wrong)  # type: ignore[arg-type]
    for field, value in (("regex", "a"), ("n", 2), ("stream", True)):
        with pytest.raises(BadRequestError) as caught:
            client.responses.compact(model=model, input="I like chess.", extra_body={field: value})
        assert caught.value.param == field


@pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")  # the client's affair
def test_a_socket_makes_responses_one_after_another(client: OpenAI, model: str) -> None:
    def answer(connection: Any, **fields: Any) -> list[Any]:
        connection.response.create(model=model, temperature=0, **fields)
        events = []
        for event in connection:
            events.append(event)
            if event.type in ("response.completed", "response.incomplete", "error"):
                return events
        raise AssertionError("the connection ended")

    with client.responses.connect(websocket_connection_options={"open_timeout": 120}) as connection:
        first = answer(connection, input="My name is Ada.", store=False)
        kinds = [event.type for event in first]
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert [event.sequence_number for event in first] == list(range(len(first)))
        name = first[-1].response.id
        # Not stored, but known to the connection.
        second = answer(connection, input="What is my name?", previous_response_id=name, store=False)
        assert "Ada" in second[-1].response.output[0].content[0].text
        with pytest.raises(NotFoundError):
            client.responses.retrieve(name)
        # A continuation that fails is not to be continued again; the connection lives.
        for _ in range(2):
            [error] = answer(connection, input="a", previous_response_id=name, top_logprobs=99)
            assert (error.status, error.error.param) == (400, "top_logprobs")
        [gone] = answer(connection, input="a", previous_response_id=name)
        assert gone.error.code == "previous_response_not_found"
        assert answer(connection, input=QUESTION)[-1].type == "response.completed"


def test_a_socket_with_too_many_unread_messages_is_closed_and_says_why(url: str, model: str) -> None:
    from websockets.exceptions import ConnectionClosedError
    from websockets.sync.client import connect

    fields = {"type": "response.create", "model": model, "input": "Hello!", "max_output_tokens": 64}
    with connect(url.replace("http", "ws", 1) + "/v1/responses", open_timeout=120) as socket:

        def ask_on() -> None:
            for _ in range(300):
                socket.send(json.dumps(fields))
            while True:
                socket.recv(timeout=120)

        with pytest.raises(ConnectionClosedError) as closed:
            ask_on()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, "16 messages wait" in closed.value.rcvd.reason) == (1008, True)


def test_what_is_no_request_on_a_socket_is_an_error_event(url: str, model: str) -> None:
    from websockets.sync.client import connect

    with connect(url.replace("http", "ws", 1) + "/v1/responses", open_timeout=120) as socket:
        for message in ("", "{", "[]", '{"type": "response.cancel"}', "[" * 100_000, '{"type": "response.create"}'):
            socket.send(message)
            event = json.loads(socket.recv(timeout=120))
            assert (event["type"], event["status"]) == ("error", 400)
            assert event["error"]["message"]
        socket.send(json.dumps({"type": "response.create", "model": model, "input": "Hello!"}))
        assert json.loads(socket.recv(timeout=120))["type"] == "response.created"
