"""Raw HTTP clients, byte by byte, and the server's view of their connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ramiform.tests.frontend.harness import House

HEAD = b"GET /version HTTP/1.1\r\nHost: a\r\n"
WHOLE = HEAD + b"\r\n"


class Peer:
    """Client side of a connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> bytes:
        """Return everything received until the end; a reset after the response counts as an end."""
        parts = []
        try:
            while part := await self.reader.read(65536):
                parts.append(part)
        except ConnectionError:
            pass
        return b"".join(parts)

    async def refusal(self) -> tuple[int, str]:
        """Return the status and code of the last response, after which the connection has ended."""
        head, _, body = (await self.until_closed()).rpartition(b"\r\n\r\n")
        last = head.rpartition(b"HTTP/1.1 ")[2]
        assert b"connection: close" in last
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return int(last[:3]), error["code"]

    async def answer(self) -> int:
        """Return the status of the next response, reading its body too."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await self.reader.readexactly(length)
        return int(head[9:12])


@asynccontextmanager
async def connected(built: House) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", built.frontend.http_port, limit=1 << 24)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


def connections(built: House) -> set[Any]:
    assert built.frontend._http is not None
    return built.frontend._http._server.server_state.connections


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)
