"""Kill a server with batches at random moments, many times: no row is lost, none has two results, no line is torn.

    python -P tests/chaos/batch_kills.py --kills 200 --seed 1

The server is a real frontend before a fake core that answers at once: a life is short, and most kills hit a write.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

URL = "/v1/completions"
NUM_ROWS = 400
MAX_SECONDS = 1.5  # of a life, since the server listens


async def serve(folder: str) -> None:
    from ramiform.tests.frontend.harness import house, says

    async with house(says(" ok"), http=True, batch_dir=folder) as built:
        print(built.url, flush=True)
        await asyncio.Event().wait()


@contextlib.contextmanager
def server(folder: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """A server, which is killed at the end of the block."""
    command = [sys.executable, "-P", __file__, "--serve", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, "the server did not start"
            with httpx.Client(base_url=url, timeout=60) as client:
                yield process, client
        finally:
            process.kill()


def begin(client: httpx.Client, known: dict[str, set[str]]) -> None:
    """Begin a batch; one that was answered must be there in each life to come."""
    body = {"max_tokens": 2}
    rows = [
        {
            "custom_id": f"{n}",
            "method": "POST",
            "url": URL,
            "body": body | {"prompt": f"{n % 9} {n}", "top_p": 1 + n % 5 // 4},
        }
        for n in range(NUM_ROWS)
    ]
    form: dict[str, Any] = {
        "files": {"file": ("in.jsonl", "\n".join(map(json.dumps, rows)))},
        "data": {"purpose": "batch"},
    }
    file = client.post("/v1/files", **form).json()["id"]
    batch = {"input_file_id": file, "endpoint": URL, "completion_window": "24h"}
    known[client.post("/v1/batches", json=batch).json()["id"]] = {row["custom_id"] for row in rows}


def check(client: httpx.Client, name: str, rows: set[str]) -> bool:
    """Check a batch. Returns False while it runs."""
    batch = client.get(f"/v1/batches/{name}").raise_for_status().json()
    if batch["status"] != "completed":
        assert batch["status"] in ("validating", "in_progress", "finalizing"), batch
        return False
    found = []
    for file in (batch["output_file_id"], batch["error_file_id"]):
        text = client.get(f"/v1/files/{file}/content").raise_for_status().text
        assert text.endswith("\n")
        found.append([json.loads(line)["custom_id"] for line in text.splitlines()])
    assert sorted(found[0] + found[1]) == sorted(rows), f"{name}: rows are lost or doubled"
    assert batch["request_counts"] == {"total": len(rows), "completed": len(found[0]), "failed": len(found[1])}
    return True


def forget_whole(client: httpx.Client, known: dict[str, set[str]]) -> int:
    """Check batches and forget those that are whole; return how many."""
    whole = [name for name, rows in known.items() if check(client, name, rows)]
    for name in whole:
        del known[name]
    return len(whole)


def soak(kills: int, seed: int) -> None:
    dice = random.Random(seed)
    known: dict[str, set[str]] = {}
    num_done = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, kills + 1):
            with server(folder) as (process, client), contextlib.suppress(httpx.TransportError):
                killing = threading.Timer(dice.uniform(0, MAX_SECONDS), process.kill)
                killing.start()
                while killing.is_alive():  # then an answer does not come
                    num_done += forget_whole(client, known)
                    if len(known) < 2:
                        begin(client, known)
                    time.sleep(dice.uniform(0, 0.2))
            if number % 10 == 0:
                print(f"{number} kills, {num_done} batches whole, {len(known)} on their way", flush=True)
        with server(folder) as (_, client):
            while known:
                num_done += forget_whole(client, known)
                time.sleep(0.1)
    print(f"{kills} kills: {num_done} batches of {NUM_ROWS} rows, none lost, none doubled")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    else:
        soak(options.kills, options.seed)
