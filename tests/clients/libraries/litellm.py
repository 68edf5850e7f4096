"""litellm: the provider `openai`, which sends to any server of OpenAI's API."""

from __future__ import annotations

import json
import os
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches prices when imported

import litellm
from outcomes import MODEL, URL, report
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


SWITCH = {
    "type": "function",
    "function": {
        "name": "switch",
        "description": "Switch a room's light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
            "required": ["on", "room"],
        },
    },
}


def ask(messages: Any, model: str = MODEL, **options: Any) -> Any:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return litellm.completion(
        model=f"openai/{model}", api_base=f"{URL}/v1", api_key="none", messages=messages, num_retries=0, **options
    )


def streamed() -> Any:
    chunks = ask("What is the capital of France?", stream=True, max_tokens=32)
    return [chunk.choices[0].delta.content or "" for chunk in chunks]


def called() -> Any:
    messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
    answer = ask(messages, tools=[SWITCH], tool_choice="required", parallel_tool_calls=False).choices[0].message
    [call] = answer.tool_calls
    messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "Done. The receipt is 7261."}]
    last = ask(messages, tools=[SWITCH], tool_choice="none", max_tokens=64)
    return json.loads(call.function.arguments), last.choices[0].message.content


def structured() -> Any:
    return json.loads(ask("What is Paris?", response_format=Place).choices[0].message.content)


def refused() -> Any:
    try:
        ask("Hi", "no-such-model")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
