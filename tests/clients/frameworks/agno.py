"""agno: an agent on chat completions."""

from __future__ import annotations

from typing import Any, Literal

from agno.agent import Agent
from agno.models.openai.like import OpenAILike
from outcomes import MODEL, URL, report
from pydantic import BaseModel

calls: list[Any] = []


def model(name: str = MODEL, **options: Any) -> OpenAILike:
    return OpenAILike(id=name, base_url=f"{URL}/v1", api_key="none", max_retries=0, **options)


lights = model(max_tokens=64, request_params={"tool_choice": {"type": "function", "function": {"name": "switch"}}})


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    lights.request_params = {"tool_choice": "none"}
    return "Done. The receipt is 7261."


def streamed() -> Any:
    events = Agent(model=model(max_tokens=32), telemetry=False).run("What is the capital of France?", stream=True)
    return [event.content or "" for event in events if event.event == "RunContent"]


def called() -> Any:
    answer = Agent(model=lights, tools=[switch], telemetry=False).run("Switch the kitchen's light on.").content
    return calls[0], answer


def structured() -> Any:
    agent = Agent(model=model(supports_native_structured_outputs=True), output_schema=Place, telemetry=False)
    return agent.run("What is Paris?").content.model_dump()


def refused() -> Any:
    run = Agent(model=model("no-such-model"), telemetry=False).run("Hi")
    return str(run.content)


report(streamed=streamed, called=called, structured=structured, refused=refused)
