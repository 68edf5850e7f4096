"""Take litellm's four steps with one of its providers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches prices when imported

import litellm
from outcomes import MODEL, SWITCH
from pydantic import BaseModel


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


def steps(
    provider: str, server: Mapping[str, Any], forced: Mapping[str, Any], unforced: Mapping[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Return the steps. `forced` are the options of the call of a tool, `unforced` those of the answer after it."""

    def ask(messages: Any, model: str = MODEL, **options: Any) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return litellm.completion(model=f"{provider}/{model}", messages=messages, **server, **options)

    def streamed() -> Any:
        chunks = ask("What is the capital of France?", stream=True, max_tokens=32)
        return [chunk.choices[0].delta.content or "" for chunk in chunks]

    def called() -> Any:
        messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
        answer = ask(messages, tools=[SWITCH], **forced).choices[0].message
        [call] = answer.tool_calls
        messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "Done. The receipt is 7261."}]
        last = ask(messages, max_tokens=64, **unforced)
        return json.loads(call.function.arguments), last.choices[0].message.content

    def structured() -> Any:
        return json.loads(ask("What is Paris?", response_format=Place).choices[0].message.content)

    def refused() -> Any:
        try:
            ask("Hi", "no-such-model")
        except Exception as error:
            return str(error)

    return {"streamed": streamed, "called": called, "structured": structured, "refused": refused}
