"""The HTTP server stops: no new connections, and a bounded time for running requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from ramiform.runtime.frontend.http.transport.listener import listen
from ramiform.runtime.frontend.http.transport.server import HttpServer
from ramiform.runtime.protocol.config import ServeConfig
from ramiform.tests.frontend.harness import run


class Desk:
    """A server with one route, whose answer waits until it may go on."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        app = FastAPI()

        @app.get("/")
        async def answer() -> str:
            self.asked.set()
            await self.go_on.wait()
            return "fine"

        config = ServeConfig(socket_dir="", port=0)
        listener = listen(config)
        assert listener is not None
        self.server = HttpServer(app, listener, config)


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[Desk, asyncio.Task[httpx.Response]]]:
    """A desk where somebody waits for an answer."""
    desk = Desk()
    await desk.server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{desk.server.port}", timeout=120) as client:
        asking = asyncio.create_task(client.get("/"))
        await desk.asked.wait()
        yield desk, asking


@pytest.mark.slow
def test_what_was_asked_is_answered_and_then_nobody_listens() -> None:
    async def main() -> None:
        async with asked() as (desk, asking):
            desk.server.close_door()
            desk.server.close_door()
            desk.go_on.set()
            await desk.server.stop(60)
            assert (await asking).json() == "fine"
            await desk.server.stop()
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", desk.server.port)

    run(main())


@pytest.mark.slow
def test_an_answer_that_does_not_end_is_cut_off() -> None:
    async def main() -> None:
        async with asked() as (desk, asking):
            await desk.server.stop(0.1)
            with contextlib.suppress(httpx.TransportError):
                assert (await asking).status_code == 500

    run(main())


def test_a_server_that_was_never_started_ends_too() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.server.stop()
        await desk.server.stop()

    run(main())
