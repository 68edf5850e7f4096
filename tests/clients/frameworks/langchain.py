"""langchain-openai: a chat model, its tools and a typed answer."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel

chat = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=MODEL, max_retries=0, max_tokens=100)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    return "Done. The receipt is 7261."


def streamed() -> Any:
    return [chunk.text for chunk in chat.stream("What is the capital of France?")]


def called() -> Any:
    question = HumanMessage("Switch the kitchen's light on.")
    message = chat.bind_tools([switch], tool_choice="switch").invoke([question])
    [call] = message.tool_calls
    last = chat.bind_tools([switch], tool_choice="none").invoke([question, message, switch.invoke(call)])
    return call["args"], last.text


def structured() -> Any:
    return chat.with_structured_output(Place).invoke("What is Paris?").model_dump()


def refused() -> Any:
    try:
        chat.model_copy(update={"model_name": "no-such-model"}).invoke("Hi")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
