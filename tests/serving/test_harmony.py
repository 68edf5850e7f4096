"""Answers in harmony from the model that ships, which was not trained for it: what is constrained is valid anyway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

import ramiform

from .prompts import CHAT, PERSON, TOOLS, WEATHER

pytestmark = pytest.mark.slow
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}


@pytest.fixture(scope="module")
def engine() -> Iterator[ramiform.Engine]:
    with ramiform.Engine(tool_call_parser="harmony") as made:
        yield made


def check_call(message: dict[str, Any]) -> None:
    [call] = message["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_forced_and_strict_calls_are_valid_and_contents_have_their_format(engine: ramiform.Engine, seed: int) -> None:
    more: dict[str, Any] = {"temperature": 1.0, "seed": seed, "thinking_token_budget": 16, "max_tokens": 400}
    forced = engine.chat(WEATHER, tools=TOOLS, tool_choice="required", **more)["choices"][0]
    assert forced["finish_reason"] == "tool_calls"
    check_call(forced["message"])
    strict = [{"type": "function", "function": {**each["function"], "strict": True}} for each in TOOLS]
    chosen = engine.chat(WEATHER, tools=strict, **more)["choices"][0]
    if chosen["finish_reason"] == "tool_calls":
        check_call(chosen["message"])
    formed = engine.chat(CHAT, response_format=FORMAT, **more)["choices"][0]
    jsonschema.validate(json.loads(formed["message"]["content"]), PERSON)
