"""litellm's proxy in front of the server, and the openai client in front of the proxy."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
from openai import OpenAI
from openai_steps import called, refused
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


def streamed() -> Any:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    stream = client.chat.completions.create(model=MODEL, messages=question, max_tokens=32, stream=True)
    return [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]


def structured() -> Any:
    question: Any = [{"role": "user", "content": "What is Paris?"}]
    parsed = client.chat.completions.parse(model=MODEL, messages=question, response_format=Place)
    return parsed.choices[0].message.parsed.model_dump()


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
    report(streamed=streamed, called=partial(called, client), structured=structured, refused=partial(refused, client))
finally:
    proxy.terminate()
