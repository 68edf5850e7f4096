"""pydantic-ai: agents with a typed answer and with a tool, from `URL MODEL`; prints what came as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> dict[str, Any]:
    """Switch a room's light."""
    return {"on": on, "room": room}


url, name = sys.argv[1:]
model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


async def main() -> dict[str, Any]:
    structured = await Agent(model, output_type=NativeOutput(Place), retries=0).run("What is Paris?")
    # The one way to end is a call of `switch`, so tool_choice is "required".
    tool = await Agent(model, output_type=ToolOutput(switch), retries=0).run("Light!")
    plain = Agent(model, model_settings={"temperature": 0})
    async with plain.run_stream("Hello!") as stream:
        streamed = await stream.get_output()
    return {
        "structured": structured.output.model_dump(),
        "tool": tool.output,
        "result": f"{tool.output['room']} {tool.output['on']}",
        "text": (await plain.run("Hello!")).output,
        "streamed": streamed,
    }


print(json.dumps(asyncio.run(main())))
