"""openai-agents: an agent on the Responses API. The SDK itself forces a tool once only."""

from __future__ import annotations

from typing import Any, Literal

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import APIStatusError, AsyncOpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
model = OpenAIResponsesModel(MODEL, client)
calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@function_tool
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


async def streamed() -> Any:
    agent = Agent("plain", model=model, model_settings=ModelSettings(max_tokens=32))
    events = Runner.run_streamed(agent, "What is the capital of France?").stream_events()
    return [
        event.data.delta
        async for event in events
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]


async def called() -> Any:
    agent = Agent(
        "lights", model=model, tools=[switch], model_settings=ModelSettings(tool_choice="switch", max_tokens=64)
    )
    result = await Runner.run(agent, "Switch the kitchen's light on.")
    return calls[0], result.final_output


async def structured() -> Any:
    result = await Runner.run(Agent("places", model=model, output_type=Place), "What is Paris?")
    return result.final_output.model_dump()


async def refused() -> Any:
    try:
        await Runner.run(Agent("lost", model=OpenAIResponsesModel("no-such-model", client)), "Hi")
    except APIStatusError as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
