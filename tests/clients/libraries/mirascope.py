"""mirascope: its models, which force no tool: the model may answer without a call."""

from __future__ import annotations

import json
from typing import Any, Literal

from mirascope import llm
from outcomes import MODEL, URL, report
from pydantic import BaseModel

llm.register_provider("openai", scope="openai/", base_url=f"{URL}/v1", api_key="none")


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@llm.tool
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    return "Done. The receipt is 7261."


def streamed() -> Any:
    return list(llm.Model(f"openai/{MODEL}", max_tokens=32).stream("What is the capital of France?").text_stream())


def called() -> Any:
    response = llm.Model(f"openai/{MODEL}", max_tokens=64, temperature=0).call(
        "Switch the kitchen's light on.", tools=[switch]
    )
    return json.loads(response.tool_calls[0].args), response.resume(response.execute_tools()).text()


def structured() -> Any:
    return llm.Model(f"openai/{MODEL}").call("What is Paris?", format=Place).parse().model_dump()


def refused() -> Any:
    try:
        llm.Model("openai/no-such-model").call("Hi")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
