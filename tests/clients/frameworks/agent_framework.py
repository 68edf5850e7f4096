"""Microsoft's agent-framework: an agent on the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatClient
from outcomes import MODEL, URL, report
from pydantic import BaseModel

calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool(approval_mode="never_require")
def switch(on: bool, room: Annotated[Literal["kitchen", "hall"], "Which room"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


def client(model: str = MODEL) -> OpenAIChatClient:
    return OpenAIChatClient(model=model, base_url=f"{URL}/v1", api_key="none")


async def streamed() -> Any:
    parts = Agent(client()).run("What is the capital of France?", stream=True, options={"max_tokens": 32})
    return [part.text async for part in parts]


async def called() -> Any:
    force: Any = {"max_tokens": 64, "tool_choice": {"mode": "required", "required_function_name": "switch"}}
    answer = await Agent(client(), tools=[switch]).run("Switch the kitchen's light on.", options=force)
    return calls[0], answer.text


async def structured() -> Any:
    return (await Agent(client()).run("What is Paris?", options={"response_format": Place})).value.model_dump()


async def refused() -> Any:
    try:
        await Agent(client("no-such-model")).run("Hi")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
