"""Processes of a runtime, by their ids, and questions that a runtime of several must answer as one of one does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
from pathlib import Path
from typing import Any

import httpx

SOON = 60.0  # seconds; far more than it takes
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


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_children(pid: int) -> list[int]:
    """Of any thread of the process: whoever starts a child is its parent by thread."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def wait_until_dead(pid: int, timeout: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout)[0])
    finally:
        os.close(descriptor)


def free_port() -> int:
    """Below those that the system gives to whoever asks for any: until it is used nobody else comes upon it."""
    for port in itertools.chain(range(20_000 + os.getpid() % 9_000, 30_000), range(20_000, 30_000)):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


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
