"""langchain-openai: structured answers in each of its ways and a tool, strict and not, from `URL MODEL`; prints what
came as JSON."""

from __future__ import annotations

import json
import sys
from typing import Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


@tool
def switch(on: bool, room: Literal["kitchen", "hall"]) -> str:
    """Switch a room's light."""
    return f"{room} {on}"


url, model = sys.argv[1:]
chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, temperature=1.2, max_retries=0)
place = chat.with_structured_output(Place, method="json_schema").invoke("What is Paris?")
for method, strict in (("json_schema", True), ("function_calling", None), ("function_calling", True)):
    again = chat.with_structured_output(Place, method=method, strict=strict).invoke("What is Paris?")
    assert isinstance(again, Place), (method, strict, again)
message = chat.bind_tools([switch], tool_choice="required", parallel_tool_calls=False).invoke("Light!")
strictly = chat.bind_tools([switch], tool_choice="switch", strict=True).invoke("Light!")
assert switch.invoke(strictly.tool_calls[0]).content.startswith(("kitchen", "hall")), strictly
call = message.tool_calls[0]
streamed = "".join(chunk.text for chunk in chat.stream("Hello!", temperature=0))
print(
    json.dumps(
        {
            "structured": place.model_dump(),
            "tool": call["args"],
            "result": switch.invoke(call).content,
            "text": chat.invoke("Hello!", temperature=0).text,
            "streamed": streamed,
        }
    )
)
