"""openai: chat completions, and a typed answer of the Responses API."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from openai import OpenAI
from openai_steps import called, refused
from outcomes import MODEL, URL, report
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def streamed() -> Any:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    with client.chat.completions.stream(model=MODEL, messages=question, max_tokens=32) as stream:
        return [event.delta for event in stream if event.type == "content.delta"]


def structured() -> Any:
    return client.responses.parse(model=MODEL, input="What is Paris?", text_format=Place).output_parsed.model_dump()


report(streamed=streamed, called=partial(called, client), structured=structured, refused=partial(refused, client))
