"""anthropic: messages, a stream, tools, counts, errors and a typed answer, from `URL MODEL`; prints them as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import anthropic
from pydantic import BaseModel

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
GREEDY = {"temperature": 0}
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SWITCH: Any = {
    "name": "switch",
    "description": "Switch the light",
    "input_schema": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
        "required": ["on", "room"],
    },
}


class Person(BaseModel):
    sure: bool
    kind: Literal["city", "river"]


def error_of(**body: Any) -> str:
    try:
        client.messages.create(**{"model": model, "max_tokens": 8, "messages": QUESTION} | body)
    except anthropic.APIStatusError as error:
        return type(error).__name__
    return "none"


async def ask_async() -> str:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as other:
        message = await other.messages.create(model=model, max_tokens=24, messages=QUESTION, extra_body=GREEDY)
        return message.content[0].text


message = client.messages.create(model=model, max_tokens=24, messages=QUESTION, extra_body=GREEDY)
with client.messages.stream(model=model, max_tokens=24, messages=QUESTION, extra_body=GREEDY) as stream:
    streamed = "".join(stream.text_stream)
    assert stream.get_final_message().content[0].text == streamed
assert asyncio.run(ask_async()) == streamed
called = client.messages.create(
    model=model, max_tokens=200, messages=QUESTION, tools=[SWITCH], tool_choice={"type": "any"}
)
[use] = [block for block in called.content if block.type == "tool_use"]
answered = client.messages.create(
    model=model,
    max_tokens=24,
    tools=[SWITCH],
    messages=[
        *QUESTION,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "done"}]},
    ],
)
assert answered.stop_reason
with client.messages.stream(
    model=model, max_tokens=200, messages=QUESTION, tools=[SWITCH], tool_choice={"type": "tool", "name": "switch"}
) as stream:
    final = stream.get_final_message()
counted = client.messages.count_tokens(model=model, messages=QUESTION)
parsed = client.messages.parse(model=model, max_tokens=100, messages=QUESTION, output_format=Person)
[listed] = client.models.list().data
assert client.models.retrieve(model).id == listed.id == model
result = {
    "text": message.content[0].text,
    "streamed": streamed,
    "tool": final.content[-1].input,
    "counted": counted.input_tokens,
    "input": message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0),
    "errors": [error_of(model="claude"), error_of(max_tokens=0)],
    "parsed": parsed.parsed_output.model_dump(),
}
print(json.dumps(result))
