"""Images sent by the clients of OpenAI, Anthropic and Ollama, from `URL KEY IMAGE`; prints what they got as JSON."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai

url, key, path = sys.argv[1:]
QUESTION, NUM_NEW = "What is it?", 6
data = base64.b64encode(Path(path).read_bytes()).decode()
data_url = f"data:image/png;base64,{data}"
endless: Any = {"ignore_eos": True}

of_openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
model = of_openai.models.list().data[0].id
parts: Any = [{"type": "image_url", "image_url": {"url": data_url}}, {"type": "text", "text": QUESTION}]
chat = of_openai.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": parts}],
    max_tokens=NUM_NEW,
    temperature=0,
    extra_body=endless,
)
items: Any = [{"type": "input_image", "image_url": data_url}, {"type": "input_text", "text": QUESTION}]
response = of_openai.responses.create(
    model=model,
    input=[{"role": "user", "content": items}],
    max_output_tokens=NUM_NEW,
    temperature=0,
    extra_body=endless,
)
try:
    broken: Any = [{"type": "image_url", "image_url": {"url": data_url[:-60]}}]
    of_openai.chat.completions.create(model=model, messages=[{"role": "user", "content": broken}])
    param = None
except openai.BadRequestError as error:
    param = error.param

source: Any = {"type": "base64", "media_type": "image/png", "data": data}
blocks: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
of_anthropic = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
message = of_anthropic.messages.create(
    model=model, max_tokens=NUM_NEW, messages=[{"role": "user", "content": blocks}], extra_body={"temperature": 0}
)

told = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"}).chat(
    model, [ollama.Message(role="user", content=QUESTION, images=[ollama.Image(value=path)])],
    options={"num_predict": NUM_NEW, "temperature": 0},
)  # fmt: skip

assert chat.usage is not None
print(
    json.dumps(
        {
            "chat": chat.choices[0].message.content,
            "response": response.output_text,
            "message": "".join(block.text for block in message.content if block.type == "text"),
            "ollama": told.message.content,
            "prompt_tokens": chat.usage.prompt_tokens,
            "image_tokens": (chat.usage.prompt_tokens_details.model_extra or {})["image_tokens"]
            if chat.usage.prompt_tokens_details
            else None,
            "param": param,
        }
    )
)
