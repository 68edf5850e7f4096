"""inspect-ai: its model API, which answers whole."""

from __future__ import annotations

import json
from typing import Any, Literal

from inspect_ai.model import ChatMessageUser, GenerateConfig, ResponseSchema, execute_tools, get_model
from inspect_ai.tool import ToolFunction, tool
from inspect_ai.util import json_schema
from outcomes import MODEL, URL, report
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool
def switch() -> Any:
    async def execute(on: bool, room: Literal["kitchen", "hall"]) -> str:
        """Switch a room's light.

        Args:
            on: Whether the light is to be on
            room: Which room
        """
        return "Done. The receipt is 7261."

    return execute


def model(name: str = MODEL, **options: Any) -> Any:
    config = GenerateConfig(max_retries=0, max_tokens=100, **options)
    return get_model(f"openai-api/ramiform/{name}", base_url=f"{URL}/v1", api_key="none", config=config)


async def called() -> Any:
    messages: Any = [ChatMessageUser(content="Switch the kitchen's light on.")]
    answer = await model().generate(messages, tools=[switch()], tool_choice=ToolFunction("switch"))
    messages.append(answer.message)
    messages += (await execute_tools(messages, [switch()])).messages
    last = await model().generate(messages, tools=[switch()], tool_choice="none")
    return answer.message.tool_calls[0].arguments, last.completion


async def structured() -> Any:
    schema = ResponseSchema(name="place", json_schema=json_schema(Place))
    return json.loads((await model(response_schema=schema).generate("What is Paris?")).completion)


async def refused() -> Any:
    try:
        await model("no-such-model").generate("Hi")
    except Exception as error:
        return str(error)


report(called=called, structured=structured, refused=refused)
