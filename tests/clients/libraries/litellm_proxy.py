"""litellm's proxy in front of the server, and the openai client in front of the proxy."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Literal

import httpx
from openai import APIStatusError, OpenAI
from outcomes import MODEL, URL, report
from pydantic import BaseModel

CONFIG = f"""\
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "{URL}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
"""
with socket.create_server(("127.0.0.1", 0)) as free:
    PORT = free.getsockname()[1]
client = OpenAI(base_url=f"http://127.0.0.1:{PORT}/v1", api_key="none", max_retries=0)


class Place(BaseModel):
    kind: Literal["city", "river"]
    sure: bool


SWITCH: Any = {
    "type": "function",
    "function": {
        "name": "switch",
        "description": "Switch a room's light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
            "required": ["on", "room"],
        },
    },
}


def streamed() -> Any:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    stream = client.chat.completions.create(model=MODEL, messages=question, max_tokens=32, stream=True)
    return [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]


def called() -> Any:
    messages: Any = [{"role": "user", "content": "Switch the kitchen's light on."}]
    choice: Any = {"type": "function", "function": {"name": "switch"}}
    asked: Any = {"model": MODEL, "messages": messages, "tools": [SWITCH], "max_tokens": 64}
    message = client.chat.completions.create(**asked, tool_choice=choice)
    answer = message.choices[0].message
    [call] = answer.tool_calls or []
    messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": "Done. The receipt is 7261."}]
    last = client.chat.completions.create(**asked, tool_choice="none")
    return json.loads(call.function.arguments), last.choices[0].message.content


def structured() -> Any:
    question: Any = [{"role": "user", "content": "What is Paris?"}]
    parsed = client.chat.completions.parse(model=MODEL, messages=question, response_format=Place)
    return parsed.choices[0].message.parsed.model_dump()


def refused() -> Any:
    try:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])
    except APIStatusError as error:
        return str(error)


Path("proxy.yaml").write_text(CONFIG)
command = ["litellm", "--config", "proxy.yaml", "--host", "127.0.0.1", "--port", str(PORT)]
proxy = subprocess.Popen(command, env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"})
try:
    while proxy.poll() is None:
        try:
            httpx.get(f"http://127.0.0.1:{PORT}/health/liveliness").raise_for_status()
            break
        except httpx.HTTPError:
            time.sleep(1)
    report(streamed=streamed, called=called, structured=structured, refused=refused)
finally:
    proxy.terminate()
