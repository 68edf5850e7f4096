"""llm: its command and its Python API, with the server as one of `extra-openai-models.yaml`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import llm
from outcomes import MODEL, URL, report
from pydantic import BaseModel

os.environ["LLM_USER_PATH"] = str(Path.cwd())

ENTRY = """\
- {{model_id: {name}, model_name: {name}, api_base: "{url}/v1", supports_tools: true, supports_schema: true}}
"""
names = (MODEL, "no-such-model")
Path("extra-openai-models.yaml").write_text("".join(ENTRY.format(name=name, url=URL) for name in names))
model = llm.get_model(MODEL)
model.key = "none"
calls: list[Any] = []


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def switch(on: bool, room: str) -> str:
    """Switch a room's light. The rooms are kitchen and hall."""
    calls.append({"on": on, "room": room})
    return "Done. The receipt is 7261."


def streamed() -> Any:
    return list(model.prompt("What is the capital of France?", max_tokens=32))


def called() -> Any:
    """The client has no tool_choice: the model may answer without a call."""
    answer = model.chain(
        "Call switch for the kitchen.", tools=[switch], options={"temperature": 0, "max_tokens": 64}
    ).text()
    return calls[0], answer


def structured() -> Any:
    return json.loads(model.prompt("What is Paris?", schema=Place).text())


def refused() -> Any:
    try:
        llm.get_model("no-such-model").prompt("Hi", key="none").text()
    except Exception as error:
        return str(error)


report(streamed=streamed, called=called, structured=structured, refused=refused)
