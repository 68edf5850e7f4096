"""anthropic: the Messages API; the tool is run by its tool runner."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
from outcomes import MODEL, URL, report
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@anthropic.beta_tool
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    calls.append({"on": on, "room": room})
    runner.set_messages_params(lambda params: params | {"tool_choice": {"type": "none"}})
    return "Done. The receipt is 7261."


def streamed() -> Any:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    with client.messages.stream(model=MODEL, max_tokens=32, messages=question) as stream:
        return list(stream.text_stream)


def called() -> Any:
    global runner
    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": "Switch the kitchen's light on."}],
        tools=[switch],
        tool_choice={"type": "tool", "name": "switch"},
    )
    last = runner.until_done()
    return calls[0], last.content[-1].text


def structured() -> Any:
    question: Any = [{"role": "user", "content": "What is Paris?"}]
    parsed = client.messages.parse(model=MODEL, max_tokens=60, messages=question, output_format=Place)
    return parsed.parsed_output.model_dump()


def refused() -> Any:
    try:
        client.messages.create(model="no-such-model", max_tokens=8, messages=[{"role": "user", "content": "Hi"}])
    except anthropic.APIStatusError as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
