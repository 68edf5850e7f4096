"""litellm: a structured answer and a tool, from `URL MODEL`; prints what came as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches prices when imported

import litellm
from pydantic import BaseModel

litellm.telemetry = False


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


SWITCH = {
    "type": "function",
    "function": {
        "name": "switch",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
            "required": ["on", "room"],
        },
    },
}
url, model = sys.argv[1:]


def ask(text: str, **options: Any) -> Any:
    return litellm.completion(
        model=f"openai/{model}",
        api_base=f"{url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": text}],
        num_retries=0,
        **options,
    )


structured = ask("What is Paris?", response_format=Place, temperature=1.2).choices[0].message.content
[call] = ask("Light!", tools=[SWITCH], tool_choice="required", parallel_tool_calls=False).choices[0].message.tool_calls
arguments = json.loads(call.function.arguments)
print(
    json.dumps(
        {
            "structured": Place.model_validate_json(structured).model_dump(),
            "tool": arguments,
            "result": f"{arguments['room']} {arguments['on']}",
            "text": ask("Hello!", temperature=0).choices[0].message.content,
            "streamed": "".join(
                chunk.choices[0].delta.content or "" for chunk in ask("Hello!", temperature=0, stream=True)
            ),
        }
    )
)
