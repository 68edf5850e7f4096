"""Objects are closed and integers are digits on every route with schemas, under random sampling on the real model."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from .prompts import CHAT

# What users write: nothing in it says that there are no other members.
TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 90}, "leg": {"$ref": "#/$defs/leg"}},
    "required": ["days", "leg"],
    "$defs": {
        "leg": {"type": "object", "properties": {"by": {"enum": ["bus", "train"]}, "stops": {"type": "integer"}}}
    },
}
CLOSED = json.loads(json.dumps(TRIP)) | {"additionalProperties": False}
CLOSED["$defs"]["leg"]["additionalProperties"] = False
# A member must come that is not listed: the closed reading leaves no value, JSON Schema's does.
ANOTHER: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "null"}},
    "not": {"required": ["a"]},
    "minProperties": 1,
    "propertyNames": {"enum": ["a", "b"]},
}
RANDOM = {"temperature": 1.5, "max_tokens": 400}
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "schema": TRIP}}
TOOL = {"name": "go", "parameters": TRIP}
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": TRIP}}
NATIVE = {"temperature": 1.5, "max_new_tokens": 400}


def chat(fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": CHAT, **RANDOM, **fields}


def tools(choice: Any, **function: Any) -> tuple[str, dict[str, Any]]:
    return chat({"tools": [{"type": "function", "function": TOOL | function}], "tool_choice": choice})


ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": chat({"response_format": FORMAT}),
    "structural tag": chat({"response_format": TAG}),
    "structured_outputs": chat({"structured_outputs": {"json": TRIP}}),
    "guided_json": chat({"guided_json": json.dumps(TRIP)}),
    "json_schema": chat({"json_schema": TRIP}),
    "completions": ("/v1/completions", {"prompt": "Trip: ", "response_format": FORMAT, **RANDOM}),
    "constrained": ("/v1/constrained", {"prompt": "Trip: ", "json_schema": TRIP, **RANDOM}),
    "generate": ("/generate", {"text": "Trip: ", "sampling_params": {"json_schema": TRIP, **NATIVE}}),
    "generate a tag": ("/generate", {"text": "Trip: ", "sampling_params": {"structural_tag": TAG, **NATIVE}}),
    "a required call": tools("required"),
    "a named call": tools({"type": "function", "function": {"name": "go"}}),
    "a strict call": tools("required", strict=True),
    "responses": (
        "/v1/responses",
        {
            "input": "Trip?",
            "temperature": 1.5,
            "text": {"format": {"type": "json_schema", "name": "t", "schema": TRIP}},
        },
    ),
    "a call in responses": (
        "/v1/responses",
        {"input": "Trip?", "temperature": 1.5, "tools": [{"type": "function", **TOOL}], "tool_choice": "required"},
    ),
}


def posted(http: httpx.Client, model: str, route: str, body: dict[str, Any]) -> httpx.Response:
    return http.post(route, json=body if route == "/generate" else {"model": model, **body})


def texts_of(answer: Any) -> list[str]:
    """The JSON texts in an answer of any route."""
    if "output" in answer:
        parts = answer["output"]
        return [p["arguments"] if p["type"] == "function_call" else p["content"][0]["text"] for p in parts]
    if "choices" not in answer:
        return [answer["text"]]
    [choice] = answer["choices"]
    message = choice.get("message", choice)
    calls = message.get("tool_calls") or []
    return [call["function"]["arguments"] for call in calls] or [message.get("content") or choice["text"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUTES)
def test_an_object_has_the_members_that_its_schema_lists(http: httpx.Client, model: str, name: str) -> None:
    route, body = ROUTES[name]
    for seed in range(3):
        seeded = body | {"seed": seed} if route != "/generate" else body
        for text in texts_of(posted(http, model, route, seeded).raise_for_status().json()):
            value = json.loads(text)
            jsonschema.validate(value, CLOSED)
            assert list(value) == ["days", "leg"]
            assert re.search(r"\d\.|\de", text) is None, text


@pytest.mark.parametrize("name", ["json_schema", "completions", "constrained", "generate", "responses", "a named call"])
def test_a_request_asks_for_json_schemas_own_reading(http: httpx.Client, model: str, name: str) -> None:
    route, body = ROUTES[name]
    asked = json.loads(json.dumps(body).replace(json.dumps(TRIP), json.dumps(ANOTHER)))
    refused = posted(http, model, route, asked)
    assert refused.status_code == 400
    assert "additional_properties" in refused.json()["error"]["message"]
    fields = asked["sampling_params"] if route == "/generate" else asked
    fields["additional_properties"] = "schema"
    for text in texts_of(posted(http, model, route, asked).raise_for_status().json()):
        assert text.startswith('{"b"')


PAIR: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2, "requierd": ["a"]}


@pytest.mark.parametrize("name", ["response_format", "structured_outputs", "completions", "generate"])
def test_a_request_says_how_json_is_written_and_is_told_of_a_misspelled_keyword(
    http: httpx.Client, model: str, name: str
) -> None:
    route, body = ROUTES[name]
    asked = json.loads(json.dumps(body).replace(json.dumps(TRIP), json.dumps(PAIR)))
    fields = asked["sampling_params"] if route == "/generate" else asked
    if name == "structured_outputs":
        fields["structured_outputs"]["disable_any_whitespace"] = True
    else:
        fields["json_whitespace"] = "spaced" if name == "generate" else "compact"
    fields["number_digits"] = 2
    answer = posted(http, model, route, asked)
    for text in texts_of(answer.raise_for_status().json()):
        assert re.fullmatch(rf"\[[-+.eE\d]+{', ' if name == 'generate' else ','}[-+.eE\d]+\]", text)
        assert re.search(r"(?<![eE\d])(?<![eE][-+])\d{3}|\.\d{3}", text) is None
    assert "/requierd is no keyword" in answer.headers["x-schema-warning"]
    assert "did you mean required?" in answer.headers["x-schema-warning"]


def test_a_name_with_a_line_break_ends_no_header(http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"é\r\nx-own: 1": {"requierd": [], "type": "null"}}}
    sampling = {"max_new_tokens": 1, "json_schema": json.dumps(schema)}
    answer = http.post("/generate", json={"text": "a", "sampling_params": sampling})
    assert answer.status_code == 200, answer.text
    assert r"\xe9\r\nx-own: 1/requierd is no keyword" in answer.headers["x-schema-warning"]
    assert "x-own" not in answer.headers


@pytest.mark.parametrize(
    ("route", "body"),
    [
        chat({"additional_properties": "open", "json_schema": TRIP}),
        chat({"additional_properties": "schema"}),
        chat({"additional_properties": "schema", "regex": "a+"}),
        chat({"number_digits": 5, "regex": "a+"}),
        chat({"json_whitespace": "compact"}),
        ("/v1/constrained", {"prompt": "a", "choices": ["a"], "additional_properties": "closed"}),
        ("/generate", {"text": "a", "sampling_params": {"regex": "a+", "additional_properties": "closed"}}),
    ],
)
def test_where_there_is_no_schema_to_read_the_field_is_refused(
    http: httpx.Client, model: str, route: str, body: dict[str, Any]
) -> None:
    answer = posted(http, model, route, body)
    assert answer.status_code == 400
    assert any(name in answer.text for name in ("additional_properties", "number_digits", "json_whitespace"))
