"""ollama: its own API, which has no tool_choice: the model may answer without a call."""

from typing import Any, Literal

import ollama
from outcomes import MODEL, URL, report
from pydantic import BaseModel

client = ollama.Client(host=URL)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light.

    Args:
        on: Whether the light is to be on
        room: Which room
    """
    return "Done. The receipt is 7261."


def streamed() -> Any:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    parts = client.chat(model=MODEL, messages=question, stream=True, options={"num_predict": 32})
    return [part.message.content for part in parts]


def called() -> Any:
    messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
    answer = client.chat(model=MODEL, messages=messages, tools=[switch], options={"temperature": 0})
    call = answer.message.tool_calls[0].function
    messages += [answer.message, {"role": "tool", "tool_name": call.name, "content": switch(**call.arguments)}]
    last = client.chat(model=MODEL, messages=messages, options={"num_predict": 64})
    return dict(call.arguments), last.message.content


def structured() -> Any:
    question = [{"role": "user", "content": "What is Paris?"}]
    answer = client.chat(model=MODEL, messages=question, format=Place.model_json_schema())
    return Place.model_validate_json(answer.message.content or "").model_dump()


def refused() -> Any:
    try:
        client.chat(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])
    except ollama.ResponseError as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
