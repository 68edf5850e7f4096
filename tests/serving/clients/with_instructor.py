"""instructor: a structured answer by a schema and one by a tool, from `URL MODEL`; prints what came as JSON."""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")  # else a poor model may add properties without end
    kind: Literal["city", "river"]
    sure: bool


class Switch(BaseModel):
    """Switch a room's light."""

    model_config = ConfigDict(extra="forbid")
    on: bool
    room: Literal["kitchen", "hall"]


url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
by_schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
by_tool = instructor.from_openai(client, mode=instructor.Mode.TOOLS)  # forces a call of the one tool
place = by_schema.chat.completions.create(
    model=model,
    response_model=Place,
    max_retries=0,
    temperature=1.2,
    messages=[{"role": "user", "content": "What is Paris?"}],
)
light = by_tool.chat.completions.create(
    model=model,
    response_model=Switch,
    max_retries=0,
    temperature=1.2,
    messages=[{"role": "user", "content": "Light!"}],
)
*_, partial = by_schema.chat.completions.create_partial(
    model=model,
    response_model=Place,
    max_retries=0,
    seed=1,
    messages=[{"role": "user", "content": "What is Paris?"}],
)
whole = by_schema.chat.completions.create(
    model=model,
    response_model=Place,
    max_retries=0,
    seed=1,
    messages=[{"role": "user", "content": "What is Paris?"}],
)
print(
    json.dumps(
        {
            "structured": place.model_dump(),
            "tool": light.model_dump(),
            "result": f"{light.room} {light.on}",
            "text": whole.model_dump_json(),
            "streamed": partial.model_dump_json(),
        }
    )
)
