"""dspy: a signature, and its client of OpenAI's API; adapters send schemas only to models of its own catalogue."""

from __future__ import annotations

import json
from typing import Any, Literal

import dspy
from outcomes import MODEL, SWITCH, URL, report
from pydantic import BaseModel

server: Any = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0, "cache": False, "max_tokens": 200}
lm = dspy.LM(f"openai/{MODEL}", **server)
dspy.configure(lm=lm)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


async def streamed() -> Any:
    listen = [dspy.streaming.StreamListener(signature_field_name="story")]
    program = dspy.streamify(dspy.Predict("subject -> story"), stream_listeners=listen)
    return [part.chunk async for part in program(subject="A cat") if isinstance(part, dspy.streaming.StreamResponse)]


def called() -> Any:
    messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
    [answer] = lm(messages=messages, tools=[SWITCH], tool_choice="required")
    [call] = answer["tool_calls"]
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Done. The receipt is 7261."})
    [last] = lm(messages=messages, tools=[SWITCH], tool_choice="none")
    return json.loads(call["function"]["arguments"]), last


def structured() -> Any:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema()}}
    [answer] = lm("What is Paris?", response_format=form)
    return json.loads(answer)


def refused() -> Any:
    try:
        dspy.LM("openai/no-such-model", **server)("Hi")
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
