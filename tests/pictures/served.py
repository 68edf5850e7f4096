"""A server of the small checkpoint that reads pictures, with a chat template of SmolVLM's form."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from ramiform.runtime.processes.launch import Runtime

from .checkpoint import Made, make_checkpoint

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize ~ ': ' }}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_pages": 512, "picture_bytes": 1 << 20}


def make_chat_checkpoint(path: Path) -> Made:
    """Write a SmolVLM checkpoint with tokenizer and chat template to the folder `path`."""
    made = make_checkpoint(path, "SmolVLM")
    made.tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return made


def serve(made: Made, **settings: Any) -> Runtime:
    """Start a runtime with HTTP that reads pictures."""
    return Runtime(str(made.path), **SETTINGS | {"port": 0} | settings)


def png(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the file of an image."""
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def base64_of(image: Image.Image) -> str:
    return base64.b64encode(png(image)).decode()


def url_of(image: Image.Image) -> str:
    """Return an image as a data URL."""
    return f"data:image/png;base64,{base64_of(image)}"
