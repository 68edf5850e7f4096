"""`/v1/files` and `/v1/batches` through the official client, on the model that ships."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Batch, FileObject

from .test_client_libraries import python as python
from .test_client_libraries import run as run_client

CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 4, "temperature": 0}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0},
    "/v1/responses": {"input": "What is the capital of France?", "max_output_tokens": 4, "temperature": 0},
    "/v1/embeddings": {"input": "A cat sat on the mat."},
    "/v1/score": {"prompt": "The capital of France is", "continuations": [" Paris", " Rome"]},
}
VARIES = ("id", "created", "created_at", "completed_at", "timings", "usage")


def run(client: OpenAI, lines: list[dict[str, Any]], endpoint: Any, **fields: Any) -> Batch:
    """Upload, create, and wait until the batch is over."""
    data = b"\n".join(json.dumps(line).encode() for line in lines)
    file = client.files.create(file=("requests.jsonl", data), purpose="batch")
    assert client.files.content(file.id).read() == data
    batch = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **fields)
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def without(value: Any) -> Any:
    """Return an answer without what differs from one request to the next."""
    if isinstance(value, dict):
        return {name: without(item) for name, item in value.items() if name not in VARIES}
    if isinstance(value, float):
        return round(value, 4)  # sums in another order, beside other rows
    return [without(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_row_has_the_answer_of_its_route(client: OpenAI, http: httpx.Client, endpoint: str) -> None:
    body = BODIES[endpoint]
    lines = [{"custom_id": name, "method": "POST", "url": endpoint, "body": body} for name in "ab"]
    batch = run(client, lines, endpoint, metadata={"night": "1"})
    assert (batch.status, batch.metadata) == ("completed", {"night": "1"})
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    assert batch.output_file_id is not None
    assert batch.error_file_id is None
    results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(result["custom_id"] for result in results) == ["a", "b"]
    alone = http.post(endpoint, json=body).json()
    assert [without(result["response"]["body"]) for result in results] == [without(alone)] * 2
    shown = http.get(f"/v1/batches/{batch.id}").json()
    assert Batch.model_validate(shown, strict=True) == batch


def test_files_and_batches_are_listed_in_pages_and_deleted(client: OpenAI, http: httpx.Client) -> None:
    lines = [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}]
    batches = [run(client, lines, "/v1/chat/completions") for _ in range(3)]
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:3] == [batch.id for batch in reversed(batches)]
    files = list(client.files.list(limit=2, purpose="batch_output"))
    assert {batch.output_file_id for batch in batches} <= {file.id for file in files}
    assert {file.purpose for file in files} == {"batch_output"}
    shown = http.get(f"/v1/files/{files[0].id}").json()
    assert FileObject.model_validate(shown, strict=True) == client.files.retrieve(files[0].id)
    for batch in batches:
        for name in (batch.input_file_id, batch.output_file_id):
            assert name is not None
            assert client.files.delete(name).deleted
            for ask in (client.files.retrieve, client.files.content, client.files.delete):
                with pytest.raises(NotFoundError):
                    ask(name)
    with pytest.raises(NotFoundError):
        client.batches.create(input_file_id=batches[0].input_file_id, endpoint="/v1/responses", completion_window="24h")


def test_what_a_file_has_wrong_is_told_by_line(client: OpenAI) -> None:
    batch = run(client, [{"custom_id": "a", "method": "GET", "url": "/v1/responses", "body": {}}], "/v1/responses")
    assert batch.status == "failed"
    assert batch.errors is not None
    [error] = batch.errors.data or []
    assert (error.code, error.line, error.param) == ("invalid_method", 1, "method")
    with pytest.raises(BadRequestError, match="purpose must be batch"):
        client.files.create(file=b"{}", purpose="assistants")
    assert client.batches.cancel(batch.id).status == "failed"


def test_lines_may_name_their_routes(client: OpenAI, http: httpx.Client) -> None:
    message = {"model": "", "max_tokens": 4, "messages": CHAT["messages"]}
    routes = BODIES | {"/v1/messages": message}
    lines = [{"custom_id": url, "method": "POST", "url": url, "body": body} for url, body in routes.items()]
    batch = run(client, lines, "*")
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.endpoint) == (len(lines), "*")


@pytest.mark.exhaustive
def test_anthropics_client_is_served(python: Path, url: str, model: str) -> None:
    got = json.loads(run_client("anthropic_batches.py", python, url, model).splitlines()[-1])
    assert got == {
        "counts": {"processing": 0, "succeeded": 2, "errored": 0, "canceled": 0, "expired": 0},
        "texts": {"a": got["alone"], "b": got["alone"]},
        "alone": got["alone"],
        "error": "invalid_request_error",
        "stopped": 0,
        "newest": True,
        "deleted": "message_batch_deleted",
        "gone": "NotFoundError",
    }
