"""Streams at the byte level, and many of them at once."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from .prompts import CHAT

BODY = {"messages": CHAT, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
DEADLINE = 120.0  # seconds; far more than it takes


def raw(url: str, path: str, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """The head and the body of an answer, as the socket has them."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    with socket.create_connection((parts.hostname, parts.port), timeout=120) as connection:
        connection.sendall(
            b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
            b"Connection: close\r\nX-Request-Id: mine\r\n\r\n" % (path.encode(), len(data)) + data
        )
        received = b""
        while piece := connection.recv(65536):
            received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.lower(), rest


def unchunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert data == b"\r\n"
            break
        parts.append(data[:length])
        assert data[length : length + 2] == b"\r\n"
        data = data[length + 2 :]
    return b"".join(parts)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_is_data_lines_parted_by_empty_ones_and_ends_with_done(url: str, model: str, path: str) -> None:
    prompt = {"prompt": "Ada", "temperature": 0, "stream": True} if path.endswith("/completions") else {}
    body = {"model": model, **(BODY if "chat" in path else prompt)}
    head, data = raw(url, path, body)
    assert b"200 ok" in head.split(b"\r\n")[0]
    for line in (b"content-type: text/event-stream", b"cache-control: no-cache", b"x-request-id: mine"):
        assert line in head
    events = unchunked(data).split(b"\n\n")
    assert events[-1] == b""
    assert events[-2] == b"data: [DONE]"
    for event in events[:-2]:
        assert event.startswith(b"data: {")
        assert b"\n" not in event
        json.loads(event.removeprefix(b"data: "))


def test_the_events_of_a_response_have_names(url: str, model: str) -> None:
    _, data = raw(url, "/v1/responses", {"model": model, "input": "Hello!", "stream": True})
    events = unchunked(data).split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    for event in events[:-2]:
        name, line = event.split(b"\n")
        assert name == b"event: " + json.loads(line.removeprefix(b"data: "))["type"].encode()


@pytest.mark.slow
def test_half_of_many_streams_are_dropped_and_the_rest_are_whole(url: str, model: str) -> None:
    num = 64

    def body(seed: int) -> dict[str, Any]:
        sampling = {"temperature": 1.0, "seed": seed, "max_tokens": 24, "ignore_eos": True}
        return {"model": model, "messages": CHAT, **sampling, "stream": True}

    async def read(client: httpx.AsyncClient, seed: int, most: int | None) -> str:
        """The text of a stream; left after `most` events."""
        text = ""
        num_events = 0
        async with client.stream("POST", "/v1/chat/completions", json=body(seed)) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
                    num_events += 1
                if num_events == most:
                    return text
        assert most is None
        return text

    async def main() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
            alone = [await read(client, seed, None) for seed in (1, 3)]
            texts = await asyncio.gather(*(read(client, seed, None if seed % 2 else 3) for seed in range(num)))
            assert [texts[1], texts[3]] == alone
            assert all(texts[1::2])
            deadline = time.monotonic() + DEADLINE
            while True:
                load = (await client.get("/get_server_info")).json()
                free = load["num_free_pages"] + load["num_cached_pages"]
                if not load["num_running"] and not load["num_waiting"] and free == load["num_pages"]:
                    break
                assert time.monotonic() < deadline, load

    asyncio.run(main())
