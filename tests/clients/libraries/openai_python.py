"""openai: chat completions, and a typed answer of the Responses API."""

from __future__ import annotations

import json
from typing import Any, Literal

from openai import APIStatusError, OpenAI
from outcomes import MODEL, SWITCH, URL, report
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def streamed() -> Any:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    with client.chat.completions.stream(model=MODEL, messages=question, max_tokens=32) as stream:
        return [event.delta for event in stream if event.type == "content.delta"]


def called() -> Any:
    messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
    choice: Any = {"type": "function", "function": {"name": "switch"}}
    asked: Any = {"model": MODEL, "messages": messages, "tools": [SWITCH], "max_tokens": 64}
    message = client.chat.completions.create(**asked, tool_choice=choice)
    answer = message.choices[0].message
    [call] = answer.tool_calls or []
    messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "Done. The receipt is 7261."}]
    last = client.chat.completions.create(**asked, tool_choice="none")
    return json.loads(call.function.arguments), last.choices[0].message.content


def structured() -> Any:
    return client.responses.parse(model=MODEL, input="What is Paris?", text_format=Place).output_parsed.model_dump()


def refused() -> Any:
    try:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])
    except APIStatusError as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
