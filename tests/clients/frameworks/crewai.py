"""crewai: its model of OpenAI's API, and agents; it always lets the model choose whether to call."""

import os
from typing import Any, Literal

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true"}

from crewai import LLM, Agent
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool
from outcomes import MODEL, URL, report
from pydantic import BaseModel

calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool("switch")
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


def model(name: str = MODEL, **options: Any) -> LLM:
    return LLM(name, provider="openai", base_url=f"{URL}/v1", api_key="none", max_retries=0, **options)


def agent(llm: LLM, **options: Any) -> Agent:
    return Agent(role="Helper", goal="Help.", backstory="You are brief.", llm=llm, max_iter=3, **options)


def streamed() -> Any:
    pieces: list[str] = []
    with crewai_event_bus.scoped_handlers():
        crewai_event_bus.on(LLMStreamChunkEvent)(lambda source, event: pieces.append(event.chunk))
        model(stream=True, max_tokens=32).call("What is the capital of France?")
        crewai_event_bus.flush()
    return pieces


def called() -> Any:
    answer = agent(model(max_tokens=64, temperature=0), tools=[switch]).kickoff("Switch the kitchen's light on.")
    return calls[0], answer.raw


def structured() -> Any:
    return agent(model()).kickoff("What is Paris?", response_format=Place).pydantic.model_dump()


def refused() -> Any:
    try:
        model("no-such-model").call("Hi")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
