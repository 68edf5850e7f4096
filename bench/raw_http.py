"""The cheapest HTTP client that can load a server: one connection, one request at a time, bodies by length or chunks.

A benchmark's client competes with the server for the processor; a comfortable client takes more of it than the server.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit


class RawClient:
    """`async with RawClient(url) as client`: keeps its connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80

    async def __aenter__(self) -> RawClient:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body."""
        status, chunks = await self._ask(path, body)
        return status, b"".join([chunk async for chunk in chunks])

    async def stream(self, path: str, body: dict[str, Any]) -> tuple[list[float], bytes]:
        """When each part of the answer came (seconds since the request was sent), and all of it.

        Raises RuntimeError for any status but 200.
        """
        start = time.perf_counter()
        status, chunks = await self._ask(path, body)
        times, parts = [], []
        async for chunk in chunks:
            times.append(time.perf_counter() - start)
            parts.append(chunk)
        if status != 200:
            raise RuntimeError(f"{status}: {b''.join(parts)[:300]!r}")
        return times, b"".join(parts)

    async def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        self._writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        status = int(lines[0].split()[1])
        if headers.get("transfer-encoding") == "chunked":
            return status, self._chunks()
        return status, self._exactly(int(headers["content-length"]))

    async def _chunks(self) -> Any:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)

    async def _exactly(self, length: int) -> Any:
        yield await self._reader.readexactly(length)
