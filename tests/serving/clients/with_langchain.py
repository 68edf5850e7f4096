"""langchain-openai: a structured answer and a tool, from `URL MODEL`; prints what came as JSON."""

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
place = chat.with_structured_output(Place, method="json_schema", strict=True).invoke("What is Paris?")
message = chat.bind_tools([switch], tool_choice="required", strict=True, parallel_tool_calls=False).invoke("Light!")
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
