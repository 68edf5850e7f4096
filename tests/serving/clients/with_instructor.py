"""instructor: seven usual ways to a typed answer, from `URL MODEL`; prints what came as JSON.

The models are written as its users write them: nothing in them forbids further members.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


class Switch(BaseModel):
    """Switch a room's light."""

    on: bool
    room: Literal["kitchen", "hall"]


class Leg(BaseModel):
    to: Place
    nights: int
    by: Literal["train", "bus"] | None = None


class Trip(BaseModel):
    """A trip of two legs."""

    first: Leg
    second: Leg | None = None
    days: Literal[1, 2, 3]


url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
by_schema = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
by_tool = instructor.from_openai(client, mode=instructor.Mode.TOOLS)  # forces a call of the one tool
by_strict_tool = instructor.from_openai(client, mode=instructor.Mode.TOOLS_STRICT)
by_response = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS)


def asked(kind: Any, text: str, **options: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": text}]
    return {
        "model": model,
        "response_model": kind,
        "messages": question,
        "max_retries": 0,
        "temperature": 1.2,
    } | options


place = by_schema.chat.completions.create(**asked(Place, "What is Paris?"))
light = by_tool.chat.completions.create(**asked(Switch, "Light!"))
by_strict_tool.chat.completions.create(**asked(Switch, "Light!"))
trips = [by.chat.completions.create(**asked(Trip, "Plan a trip.")) for by in (by_schema, by_tool)]
places = list(by_tool.chat.completions.create_iterable(**asked(Place, "Name places.", max_tokens=400)))
again = by_response.responses.create(**asked(Place, "What is Paris?"))
*_, partial = by_schema.chat.completions.create_partial(**asked(Place, "What is Paris?", seed=1))
whole = by_schema.chat.completions.create(**asked(Place, "What is Paris?", seed=1))
assert all(isinstance(trip.first.nights, int) for trip in trips), trips
assert isinstance(again, Place), again
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
