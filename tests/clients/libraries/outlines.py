"""outlines, over its vLLM model: it has no tools."""

from __future__ import annotations

from typing import Any, Literal

import outlines
from openai import OpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
model = outlines.from_vllm(client, MODEL)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def streamed() -> Any:
    return list(model.stream("What is the capital of France?", max_tokens=32))


def structured() -> Any:
    return Place.model_validate_json(model("What is Paris?", Place)).model_dump()


def refused() -> Any:
    try:
        outlines.from_vllm(client, "no-such-model")("Hi", max_tokens=8)
    except Exception as error:
        return str(error)


report(streamed=streamed, structured=structured, refused=refused)
