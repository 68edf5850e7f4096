"""Requests that a runtime of several processes must answer like a runtime of one."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHECKED = {"dtype": "float32", "num_pages": 512, "port": 0, "log_level": "error"}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 30},
    {"max_new_tokens": 20, "temperature": 1.0, "sampling_seed": 3, "top_p": 0.9},
    {"max_new_tokens": 20, "n": 3, "temperature": 1.0, "sampling_seed": 5},
    {"max_new_tokens": 60, "json_schema": json.dumps(SCHEMA)},
    {"max_new_tokens": 20, "regex": r"( [a-z]{2,7}){3}\.", "frequency_penalty": 0.5},
]


def ask(url: str | None, **params: Any) -> Any:
    assert url is not None
    body = {
        "text": "Question: What is the capital of France?\nAnswer:",
        "sampling_params": {"temperature": 0.0, **params},
        "return_logprob": True,
    }
    answer = httpx.post(f"{url}/generate", json=body, timeout=120)
    answer.raise_for_status()
    answers = answer.json()
    return [(one["text"], one["output_ids"]) for one in (answers if isinstance(answers, list) else [answers])]
