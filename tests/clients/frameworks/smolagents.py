"""smolagents: a model of OpenAI's API, and an agent whose every step is a forced call."""

from __future__ import annotations

import json
from typing import Any, Literal

from outcomes import MODEL, URL, report
from pydantic import BaseModel
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

model = OpenAIServerModel(MODEL, api_base=f"{URL}/v1", api_key="none", client_kwargs={"max_retries": 0}, max_tokens=200)
calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool
def switch(on: bool, room: str) -> str:
    """Switch a room's light.

    Args:
        on: Whether the light is to be on
        room: Which room (choices: ["kitchen", "hall"])
    """
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


def user(text: str) -> Any:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


def streamed() -> Any:
    return [part.content or "" for part in model.generate_stream(user("What is the capital of France?"), max_tokens=32)]


def called() -> Any:
    agent = ToolCallingAgent([switch], model, max_steps=3, verbosity_level=0)
    answer = agent.run("Switch the kitchen's light on. Then give the receipt as your final answer.")
    return calls[0], str(answer)


def structured() -> Any:
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema()}}
    return json.loads(model.generate(user("What is Paris?"), response_format=schema).content)


def refused() -> Any:
    try:
        OpenAIServerModel("no-such-model", api_base=f"{URL}/v1", api_key="none").generate(user("Hi"))
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
