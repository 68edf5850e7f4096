"""The HTTP server stops: no new connections, and a bounded time for running requests."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from ramiform.runtime.frontend.http.transport.listener import check_certificate, listen
from ramiform.runtime.frontend.http.transport.server import HttpServer
from ramiform.runtime.processes.launch import make_config
from ramiform.runtime.protocol.config import ServeConfig
from ramiform.runtime.protocol.errors import RequestError
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


@pytest.mark.slow
def test_tls_files_that_cannot_be_used_are_refused_by_name(tmp_path: Path) -> None:
    openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=a"]
    for name, option in (("a", ["-nodes"]), ("b", ["-nodes"]), ("locked", ["-passout", "pass:secret"])):
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run([*openssl, *option, *files], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "no.pem").write_text("none")
    for certificate, key, param, message in (
        (None, "a.key", "ssl_certfile", "ssl_keyfile without ssl_certfile"),
        ("gone.pem", None, "ssl_certfile", "cannot read ssl_certfile .*gone.pem: No such file"),
        ("a.pem", "gone.key", "ssl_keyfile", "cannot read ssl_keyfile .*gone.key: No such file"),
        ("a.pem", ".", "ssl_keyfile", "Is a directory"),
        ("no.pem", "a.key", "ssl_certfile", "no.pem with the key .*a.key.* PEM files of one pair"),
        ("a.pem", None, "ssl_certfile", "PEM files of one pair"),
        ("a.pem", "b.key", "ssl_certfile", "KEY_VALUES_MISMATCH.* PEM files of one pair"),
        ("locked.pem", "locked.key", "ssl_keyfile", "has a password.*openssl pkey -in .*locked.key -out"),
    ):
        paths = [None if file is None else str(tmp_path / file) for file in (certificate, key)]
        with pytest.raises(RequestError, match=message) as caught:
            check_certificate(*paths)
        assert caught.value.param == param
    check_certificate(str(tmp_path / "a.pem"), str(tmp_path / "a.key"))
    # Before a process starts.
    with pytest.raises(RequestError, match="cannot read ssl_certfile gone"):
        make_config(None, {"ssl_certfile": "gone"})
