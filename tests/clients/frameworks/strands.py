"""strands-agents: an agent on chat completions."""

from __future__ import annotations

from typing import Any, Literal

from outcomes import MODEL, URL, report
from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel

calls: list[Any] = []


def model(name: str = MODEL, **params: Any) -> OpenAIModel:
    client = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    return OpenAIModel(client_args=client, model_id=name, params=params)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    force.update(tool_choice="none")
    return "Done. The receipt is 7261."


force: dict[str, Any] = {
    "max_tokens": 64,
    "temperature": 0,
    "tool_choice": {"type": "function", "function": {"name": "switch"}},
}


async def streamed() -> Any:
    agent = Agent(model(max_tokens=32), callback_handler=None)
    return [event["data"] async for event in agent.stream_async("What is the capital of France?") if "data" in event]


async def called() -> Any:
    lights = model()
    lights.config["params"] = force  # forced until the tool has run
    result = await Agent(lights, tools=[switch], callback_handler=None).invoke_async("Switch the kitchen's light on.")
    return calls[0], str(result)


async def structured() -> Any:
    agent = Agent(model(), callback_handler=None)
    return (await agent.invoke_async("What is Paris?", structured_output_model=Place)).structured_output.model_dump()


async def refused() -> Any:
    try:
        await Agent(model("no-such-model"), callback_handler=None).invoke_async("Hi")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
