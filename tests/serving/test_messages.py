"""Anthropic's Messages API: by HTTP as its clients send it, and by the official client in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from ramiform.runtime.frontend.http.anthropic.body import MessagesBody
from ramiform.runtime.frontend.http.anthropic.client_tools import client_tool
from ramiform.runtime.frontend.http.anthropic.messages import late_system_role
from ramiform.runtime.tokenizer.chat_template import ChatTemplate

from .prompts import CHAT, PERSON
from .test_client_libraries import python, run

__all__ = ["python"]

SWITCH = {
    "name": "switch",
    "description": "Switch the light",
    "input_schema": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
        "required": ["on", "room"],
    },
}


def create(http: httpx.Client, model: str, **body: Any) -> dict[str, Any]:
    given = {"model": model, "max_tokens": 24, "temperature": 0, "messages": CHAT} | body
    response = http.post("/v1/messages?beta=true", json=given, headers={"anthropic-version": "2023-06-01"})
    assert response.status_code == 200, response.text
    message: dict[str, Any] = response.json()
    return message


def events(http: httpx.Client, model: str, **body: Any) -> list[dict[str, Any]]:
    given = {"model": model, "max_tokens": 24, "temperature": 0, "messages": CHAT, "stream": True} | body
    with http.stream("POST", "/v1/messages", json=given) as response:
        frames = [frame for frame in "".join(response.iter_text()).split("\n\n") if frame]
    pairs = [frame.split("\n") for frame in frames]
    values = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name for name, _ in pairs] == [f"event: {value['type']}" for value in values]
    return values


def chat(http: httpx.Client, **body: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={"temperature": 0, "max_tokens": 24, "messages": CHAT} | body)
    answer: dict[str, Any] = response.json()["choices"][0]
    return answer


def test_the_text_is_that_of_a_chat_completion(http: httpx.Client, model: str) -> None:
    message = create(http, model)
    assert message["content"] == [{"type": "text", "text": chat(http)["message"]["content"]}]
    assert (message["role"], message["stop_reason"], message["stop_sequence"]) == ("assistant", "end_turn", None)
    cut = create(http, model, max_tokens=3)
    assert cut["stop_reason"] == "max_tokens"
    assert cut["usage"]["output_tokens"] == 3
    stopped = create(http, model, stop_sequences=["France", "zebra"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "France")
    assert stopped["content"][0]["text"] == chat(http, stop="France")["message"]["content"]
    assert create(http, model, max_tokens=100_000)["content"] == message["content"]  # no more than what fits


def test_a_stream_adds_up_to_the_whole(http: httpx.Client, model: str) -> None:
    values = events(http, model)
    whole = create(http, model)
    kinds = [value["type"] for value in values]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(value["delta"]["text"] for value in values if value["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert values[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert values[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_tools_are_called_and_their_results_read(http: httpx.Client, model: str) -> None:
    asked: dict[str, Any] = {"tools": [SWITCH, SWITCH | {"name": "other"}], "max_tokens": 200}
    message = create(http, model, **asked, tool_choice={"type": "tool", "name": "switch"})
    [use] = [block for block in message["content"] if block["type"] == "tool_use"]
    assert message["stop_reason"] == "tool_use"
    assert use["name"] == "switch"
    assert use["id"].startswith("toolu_")
    jsonschema.validate(use["input"], SWITCH["input_schema"])
    values = events(http, model, **asked, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    parts = [value["delta"]["partial_json"] for value in values if value["type"] == "content_block_delta"]
    jsonschema.validate(json.loads("".join(parts)), SWITCH["input_schema"])
    results = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": "done", "cache_control": {"type": "ephemeral"}},
        {
            "type": "tool_result",
            "tool_use_id": "toolu_2",
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
        },
        {"type": "text", "text": "And now?"},
    ]
    calls = [use, {"type": "tool_use", "id": "toolu_2", "name": "other", "input": {}}]
    messages = [
        *CHAT,
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, *calls]},
        {"role": "user", "content": results},
    ]
    answer = create(http, model, messages=messages, tools=asked["tools"], tool_choice={"type": "none"})
    assert answer["stop_reason"] in ("end_turn", "max_tokens")
    past = [
        {"id": one["id"], "function": {"name": one["name"], "arguments": json.dumps(one["input"])}} for one in calls
    ]
    same = [
        *CHAT,
        {"role": "assistant", "reasoning_content": "hm", "tool_calls": past},
        {"role": "tool", "tool_call_id": use["id"], "content": "done"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "user", "content": "And now?"},
    ]
    assert answer["content"][0]["text"] == chat(http, messages=same)["message"]["content"]


def test_a_long_system_prompt_comes_from_the_cache_the_second_time(http: httpx.Client, model: str) -> None:
    """As coding agents send it: many tools, system blocks with breakpoints, betas in headers, metadata."""
    system = [
        {"type": "text", "text": f"Rule {number}: answer briefly.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        for number in range(60)
    ]
    tools = [
        SWITCH | {"name": f"mcp__server__tool_{number}", "cache_control": {"type": "ephemeral"}} for number in range(15)
    ]
    body = {
        "system": system,
        "tools": tools,
        "metadata": {"user_id": "u"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "adaptive"},
        "tool_choice": {"type": "none"},
    }
    first, second = create(http, model, **body)["usage"], create(http, model, **body)["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    total = sum(second[name] for name in names)
    assert second["cache_read_input_tokens"] >= 0.9 * total
    assert sum(first[name] for name in names) == total
    counted = {name: value for name, value in body.items() if name in ("system", "tools", "tool_choice", "thinking")}
    response = http.post("/v1/messages/count_tokens", json={"model": model, "messages": CHAT, **counted})
    assert response.json() == {"input_tokens": total}


def test_a_system_message_within_the_conversation_keeps_its_place(http: httpx.Client, model: str) -> None:
    """As coding agents send them, behind the user's message."""
    late = {"role": "system", "content": [{"type": "text", "text": "Answer in one word."}]}
    for messages in ([*CHAT, late], [*CHAT, {"role": "assistant", "content": "Paris."}, *CHAT, late]):
        same = [
            message if message is not late else {"role": "system", "content": "Answer in one word."}
            for message in messages
        ]
        answer = create(http, model, messages=messages)
        assert answer["content"][0]["text"] == chat(http, messages=same)["message"]["content"]


@pytest.mark.parametrize(
    ("source", "role"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "system"),
        ("{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}", "user"),
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{% endfor %}",
            "user",
        ),
    ],
    ids=["renders it", "drops it", "refuses it"],
)
def test_a_late_system_message_is_the_users_where_the_template_has_none(source: str, role: str) -> None:
    assert late_system_role(ChatTemplate(source, {})) == role
    body = MessagesBody(max_tokens=1, messages=[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}])
    messages = [
        message.model_dump(exclude_none=True)
        for message in body.chat(late_system_role=late_system_role(ChatTemplate(source, {}))).messages
    ]
    assert messages == (
        [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
        if role == "system"
        else [{"role": "user", "content": "a\nb"}]
    )


def test_a_last_message_of_the_assistant_is_continued(http: httpx.Client, model: str) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "The capital of"}]
    text = create(http, model, messages=begun)["content"][0]["text"]
    assert "The capital of" + text == create(http, model)["content"][0]["text"]


def test_an_answer_of_a_schema_is_valid(http: httpx.Client, model: str) -> None:
    schema = {"format": {"type": "json_schema", "schema": PERSON}}
    message = create(http, model, output_config=schema, max_tokens=100)
    jsonschema.validate(json.loads(message["content"][0]["text"]), PERSON)


CLIENT_TOOLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "bash_20250124", "name": "bash"}, {"command": "ls"}),
    ({"type": "bash_20241022", "name": "bash"}, {"restart": True}),
    (
        {"type": "text_editor_20241022", "name": "str_replace_editor"},
        {"command": "undo_edit", "path": "/a"},
    ),
    (
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 9000},
        {"command": "str_replace", "path": "/a", "old_str": "b", "new_str": "c"},
    ),
    ({"type": "memory_20250818", "name": "memory"}, {"command": "rename", "old_path": "/a", "new_path": "/b"}),
    (
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_height_px": 768},
        {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "down", "scroll_amount": 3},
    ),
]


@pytest.mark.parametrize(("tool", "past"), CLIENT_TOOLS, ids=lambda value: str(value.get("type", "")))
def test_tools_that_clients_run_are_called_under_their_schemas(
    http: httpx.Client, model: str, tool: dict[str, Any], past: dict[str, Any]
) -> None:
    """The schema is what Anthropic's documents say of each type."""
    answer = create(http, model, tools=[tool], tool_choice={"type": "any"}, max_tokens=300, temperature=1.0)
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert [use["name"] for use in uses] == [tool["name"]] * len(uses)
    assert uses
    given = json.loads(json.dumps(client_tool(tool["type"], tool["name"], tool, "tools[0]")))[1]
    jsonschema.validate(past, given)
    if answer["stop_reason"] == "tool_use":
        jsonschema.validate(uses[0]["input"], given)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"action": "fly", "command": ["x"]}, given)
    wrong = http.post(
        "/v1/messages", json={"model": model, "max_tokens": 1, "messages": CHAT, "tools": [tool | {"name": "mine"}]}
    )
    assert (wrong.status_code, tool["name"] in wrong.json()["error"]["message"]) == (400, True)


def test_examples_of_a_tools_input_are_shown_to_the_model(http: httpx.Client, model: str) -> None:
    def count(**more: Any) -> int:
        body = {"model": model, "messages": CHAT, "tools": [SWITCH | more]}
        answer = http.post("/v1/messages/count_tokens", json=body)
        return int(answer.json()["input_tokens"])

    assert count(input_examples=[{"on": True}, {"on": False}]) > count() == count(input_examples=[])


DOCUMENT: dict[str, Any] = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Cats purr."},
}


def turns(block: dict[str, Any]) -> dict[str, Any]:
    """Return the messages of a body with that block, where its role may have it."""
    answers = block["type"] in ("thinking", "redacted_thinking")
    first = [{"role": "user", "content": "Hi"}] if answers else []
    return {"messages": [*first, {"role": "assistant" if answers else "user", "content": [block]}]}


def result(content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "a", "content": [content]}


def test_the_model_reads_title_and_context_of_a_document(http: httpx.Client, model: str) -> None:
    def count(block: dict[str, Any]) -> int:
        answer = http.post("/v1/messages/count_tokens", json={"model": model, **turns(block)})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    plain = DOCUMENT | {"citations": {"enabled": False}, "title": None, "cache_control": {"type": "ephemeral"}}
    assert count(plain) == count({"type": "text", "text": "Cats purr."})
    whole = DOCUMENT | {"title": "On cats", "context": "A book."}
    assert count(whole) == count({"type": "text", "text": "On cats\nA book.\nCats purr."})


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "claude"}, 404, "the model 'claude' does not exist"),
        ({"messages": []}, 400, "messages must not be empty"),
        ({"max_tokens": None}, 400, "max_tokens: Field required"),
        ({"zebra": 1}, 400, "unknown parameter zebra"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            400,
            "those that clients run",
        ),
        ({"tools": [SWITCH | {"zebra": 1}]}, 400, "unknown parameter tools[0].zebra"),
        ({"tool_choice": {"type": "tool", "name": "x"}, "tools": [SWITCH]}, 400, "names 'x'"),
        ({"tool_choice": {"type": "any"}}, 400, "tool_choice needs tools"),
        ({"system": [{"type": "image"}]}, 400, "system[0] is of type 'image'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "messages[0].content[0].source is of type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "a"}}]}]},
            400,
            "messages[0].content[0]: this model reads text only",
        ),
        ({"messages": [{"role": "user", "content": []}]}, 400, "messages[0] is empty"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]}, 400, "not Unicode"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]}, 400, "content[0].b"),
        (turns({"type": "thinking", "thinking": "hm", "sign": "x"}), 400, "content[0].sign; did you mean 'signature'?"),
        (turns({"type": "redacted_thinking", "data": "x", "thinking": "hm"}), 400, "content[0].thinking"),
        (turns(DOCUMENT | {"titel": "Cats"}), 400, "content[0].titel; did you mean 'title'?"),
        (turns(DOCUMENT | {"source": DOCUMENT["source"] | {"text": "x"}}), 400, "content[0].source.text"),
        (turns(DOCUMENT | {"citations": {"enabled": True}}), 400, "cites no documents"),
        (turns(result({"type": "text", "text": "x", "zebra": 1})), 400, "content[0].content[0].zebra"),
        (turns(result(DOCUMENT | {"zebra": 1})), 400, "content[0].content[0].zebra"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, 400, "context_management"),
        ({"stop_sequences": [""]}, 400, "stop"),
    ],
)
def test_errors_have_the_apis_shape(
    http: httpx.Client, model: str, body: dict[str, Any], status: int, words: str
) -> None:
    given = json.dumps({"model": model, "max_tokens": 8, "messages": CHAT} | body)
    response = http.post("/v1/messages", content=given, headers={"content-type": "application/json"})
    answer = response.json()
    assert response.status_code == status, answer
    assert answer["type"] == "error"
    assert answer["error"]["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert words in answer["error"]["message"]
    assert response.headers["request-id"] == response.headers["x-request-id"]


@pytest.mark.exhaustive
def test_the_official_client_is_served(python: Path, url: str, model: str) -> None:
    got = json.loads(run("anthropic_messages.py", python, url, model).splitlines()[-1])
    assert got["streamed"] == got["text"]
    assert got["counted"] == got["input"]
    jsonschema.validate(got["tool"], SWITCH["input_schema"])
    assert got["errors"] == ["NotFoundError", "BadRequestError"]
    jsonschema.validate(got["parsed"], PERSON)
