"""A batch outlasts its servers: killed ones, and those of which one is too many."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from .servers import RAMIFORM, serving

pytestmark = pytest.mark.slow

NUM = 200
URL = "/v1/completions"


def begin(client: httpx.Client) -> str:
    body = {"max_tokens": 24, "ignore_eos": True, "temperature": 0}
    rows = [
        {"custom_id": f"row {n}", "method": "POST", "url": URL, "body": body | {"prompt": f"{n % 7} is a number. {n}"}}
        for n in range(NUM)
    ]
    data = b"\n".join(json.dumps(row).encode() for row in rows)
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("requests.jsonl", data)}}
    file = client.post("/v1/files", **form).json()["id"]
    batch = {"input_file_id": file, "endpoint": URL, "completion_window": "24h"}
    return str(client.post("/v1/batches", json=batch).json()["id"])


def wait_for(client: httpx.Client, name: str, least: int) -> Any:
    while (batch := client.get(f"/v1/batches/{name}").json())["request_counts"]["completed"] < least:
        time.sleep(0.02)
    return batch


def test_a_killed_server_loses_no_row_and_the_next_one_goes_on(tmp_path: Path) -> None:
    folder = ("--batch-dir", str(tmp_path / "batches"))
    with serving(*folder) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        name = begin(client)
        wait_for(client, name, 5)
        server.process.kill()
        server.process.wait()
    # Either frontend answers for the folder; the first one runs the batch.
    limits = httpx.Limits(max_keepalive_connections=0)
    with (
        serving(*folder, "--frontends", "2") as server,
        httpx.Client(base_url=server.url, timeout=120, limits=limits) as client,
    ):
        wait_for(client, name, NUM)
        while (batch := client.get(f"/v1/batches/{name}").json())["status"] != "completed":
            time.sleep(0.02)
        lines = client.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
        assert sorted(json.loads(line)["custom_id"] for line in lines) == sorted(f"row {n}" for n in range(NUM))
        ended = begin(client)
        assert client.post(f"/v1/batches/{ended}/cancel").json()["status"] in ("cancelling", "cancelled")
        while client.get(f"/v1/batches/{ended}").json()["status"] != "cancelled":
            time.sleep(0.02)
        command = [RAMIFORM, "serve", "--port", "0", "--num-pages", "512", *folder]
        second = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert second.returncode == 1
        assert f"another server, process {server.pid}, uses the batches of" in " ".join(second.stderr.split())
