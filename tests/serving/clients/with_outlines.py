"""outlines: its vLLM and its OpenAI models' typed answers, a choice, a pattern and streams, from `URL MODEL`; prints
what came as JSON."""

from __future__ import annotations

import json
import re
import sys
from typing import Literal

import outlines
from openai import OpenAI
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


class Switch(BaseModel):
    on: bool
    room: Literal["kitchen", "hall"]


url, name = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
model, plain = outlines.from_vllm(client, name), outlines.from_openai(client, name)
place = Place.model_validate_json(model("What is Paris?", Place, temperature=1.2))
light = Switch.model_validate_json(plain("Light!", Switch, temperature=1.2))
assert model("Paris?", Literal["city", "river"], temperature=1.2) in ("city", "river")
assert re.fullmatch(r"-?[0-9]+", model("How many?", int, temperature=1.2, max_tokens=50) or "0")
assert re.fullmatch("[a-c]{3}", model("abc?", outlines.regex("[a-c]{3}"), temperature=1.2))
print(
    json.dumps(
        {
            "structured": place.model_dump(),
            "tool": light.model_dump(),
            "result": f"{light.room} {light.on}",
            "text": model("What is Paris?", Place, temperature=0),
            "streamed": "".join(model.stream("What is Paris?", Place, temperature=0)),
        }
    )
)
