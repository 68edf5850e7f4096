"""instructor, over the openai client: an answer that grows, a tool, a schema."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from openai import OpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel

openai = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
by_tool = instructor.from_openai(openai, mode=instructor.Mode.TOOLS)  # forces a call of the one tool
by_schema = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


class Switch(BaseModel):
    """Switch a room's light."""

    on: bool
    room: Literal["kitchen", "hall"]


def asked(kind: Any, text: str, model: str = MODEL) -> dict[str, Any]:
    return {
        "model": model,
        "response_model": kind,
        "messages": [{"role": "user", "content": text}],
        "max_retries": 0,
    }


def streamed() -> Any:
    return [str(part) for part in by_schema.chat.completions.create_partial(**asked(Place, "What is Paris?"))]


def called() -> Any:
    """The call is the answer: instructor sends no results back."""
    return by_tool.chat.completions.create(**asked(Switch, "Switch the kitchen's light on.")).model_dump(), None


def structured() -> Any:
    return by_schema.chat.completions.create(**asked(Place, "What is Paris?")).model_dump()


def refused() -> Any:
    try:
        by_schema.chat.completions.create(**asked(Place, "What is Paris?", "no-such-model"))
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
