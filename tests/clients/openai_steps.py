"""Take two of openai's four steps with a client of chat completions."""

from __future__ import annotations

import json
from typing import Any

from openai import APIStatusError, OpenAI
from outcomes import MODEL, SWITCH


def called(client: OpenAI) -> Any:
    messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
    choice: Any = {"type": "function", "function": {"name": "switch"}}
    asked: Any = {"model": MODEL, "messages": messages, "tools": [SWITCH], "max_tokens": 64}
    message = client.chat.completions.create(**asked, tool_choice=choice)
    answer = message.choices[0].message
    [call] = answer.tool_calls or []
    messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "Done. The receipt is 7261."}]
    last = client.chat.completions.create(**asked, tool_choice="none")
    return json.loads(call.function.arguments), last.choices[0].message.content


def refused(client: OpenAI) -> Any:
    try:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])
    except APIStatusError as error:
        return str(error)
