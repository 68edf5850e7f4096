"""A real MCP server for tests: over standard input and output, or over HTTP at a free port that it prints."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from pydantic import BaseModel

server = MCPServer("test", log_level="CRITICAL")


class Place(BaseModel):
    """A place on the map."""

    name: str
    height: int


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers"""
    return a + b


@server.tool()
def get_weather(city: str) -> dict[str, Any]:
    """Get the weather of a city"""
    return {"weather": "sunny", "temperature": 4}


@server.tool()
def describe(place: Place) -> str:
    """Describe a place"""
    return f"{place.name} is {place.height} m high"


@server.tool()
def refuse(why: str) -> str:
    """Refuse to answer"""
    raise ValueError(why)


@server.tool()
def environment(name: str) -> str:
    """Read a variable"""
    return os.environ.get(name, "unset")


@server.tool()
def die() -> str:
    """End the server"""
    os._exit(3)


@server.tool()
def sleep() -> str:
    """Do not answer"""
    time.sleep(600)
    return "late"


@server.tool()
def fill(characters: int) -> str:
    """Return a long text"""
    return "x" * characters


async def serve_http() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(server.streamable_http_app(), log_level="critical", lifespan="on")
        print(listening.getsockname()[1], flush=True)
        await uvicorn.Server(config).serve([listening])


if __name__ == "__main__":
    if "http" in sys.argv:
        asyncio.run(serve_http())
    else:
        server.run()
