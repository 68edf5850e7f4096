"""pydantic-ai: an agent on chat completions."""

from __future__ import annotations

from typing import Any, Literal

from outcomes import MODEL, URL, report
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
model = OpenAIChatModel(MODEL, provider=provider)
calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


async def streamed() -> Any:
    async with Agent(model, model_settings={"max_tokens": 32}).run_stream("What is the capital of France?") as stream:
        return [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]


def force(context: RunContext[None]) -> Any:
    """Force the first step only: an agent that is forced in each never ends."""
    return {"tool_choice": ["switch"] if context.run_step == 1 else "none", "max_tokens": 64}


async def called() -> Any:
    agent = Agent(model, tools=[switch], model_settings=force)
    result = await agent.run("Switch the kitchen's light on.")
    return calls[0], result.output


async def structured() -> Any:
    return (await Agent(model, output_type=NativeOutput(Place)).run("What is Paris?")).output.model_dump()


async def refused() -> Any:
    try:
        await Agent(OpenAIChatModel("no-such-model", provider=provider)).run("Hi")
    except ModelHTTPError as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
