"""deepagents: an agent with planning and files of its own, over langchain-openai."""

from __future__ import annotations

from typing import Any, Literal

from deepagents import create_deep_agent
from langchain.agents.middleware import wrap_model_call
from langchain.agents.structured_output import ProviderStrategy
from langchain_openai import ChatOpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel

calls: list[Any] = []


def model(name: str = MODEL) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=name, max_retries=0, max_tokens=100)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


@wrap_model_call
def force(request: Any, handler: Any) -> Any:
    return handler(request.override(tool_choice="none" if calls else "switch"))


def asked(text: str) -> Any:
    return {"messages": [{"role": "user", "content": text}]}


def streamed() -> Any:
    parts = create_deep_agent(model()).stream(asked("What is the capital of France?"), stream_mode="messages")
    return [chunk.text for chunk, _ in parts]


def called() -> Any:
    agent = create_deep_agent(model(), tools=[switch], middleware=[force])
    last = agent.invoke(asked("Switch the kitchen's light on."))["messages"][-1]
    return calls[0], last.text


def structured() -> Any:
    agent = create_deep_agent(model(), response_format=ProviderStrategy(Place))
    return agent.invoke(asked("What is Paris? Answer at once."))["structured_response"].model_dump()


def refused() -> Any:
    try:
        create_deep_agent(model("no-such-model")).invoke(asked("Hi"))
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
