"""guidance: its model of SGLang's servers. (That of vLLM's sends grammars in the dialect of llguidance.)"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, Literal

import guidance
from guidance.models.experimental import SglangModel
from outcomes import MODEL, URL, report
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def model(name: str = MODEL) -> Any:
    return SglangModel(name, base_url=f"{URL}/v1", api_key="none", echo=False)


def asked(lm: Any, text: str) -> Any:
    with guidance.user():
        lm += text
    return lm


@guidance.guidance
def answer(lm: Any) -> Any:
    with guidance.assistant():
        lm += guidance.gen("answer", max_tokens=32)
    return lm


def streamed() -> Any:
    seen = [str(part) for part in asked(model(), "What is the capital of France?").stream() + answer()]
    return [later[len(before) :] for before, later in pairwise(["", *seen])]


def structured() -> Any:
    lm = asked(model(), "What is Paris?")
    with guidance.assistant():
        lm += guidance.json("place", schema=Place)
    return json.loads(lm["place"])


def refused() -> Any:
    try:
        lm = asked(model("no-such-model"), "Hi")
        with guidance.assistant():
            lm += guidance.gen(max_tokens=8)
    except Exception as error:
        return str(error)


report(streamed=streamed, structured=structured, refused=refused)
