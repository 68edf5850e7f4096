"""Prompts that the shipped model answers reliably."""

from __future__ import annotations

from typing import Any

CAPITAL = "Question: What is the capital of France?\nAnswer:"
CHAT: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]


def tool(name: str, description: str, properties: dict[str, str], **more: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            key: {"type": kind} | ({"maxLength": 12} if kind == "string" else {}) for key, kind in properties.items()
        },
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema, **more},
    }


GET_WEATHER = tool("get_weather", "Get the weather of a city", {"city": "string"})
GET_TIME = tool("get_time", "Get the time in a city", {"city": "string"})
TOOLS: list[Any] = [GET_WEATHER, GET_TIME]
SWITCH: list[Any] = [tool("switch", "Switch the light", {"on": "boolean"})]

PERSON = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "kind": {"enum": ["city", "river"]}},
    "required": ["sure", "kind"],
    "additionalProperties": False,
}
