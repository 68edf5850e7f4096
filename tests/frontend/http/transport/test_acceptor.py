"""Connections are accepted up to the limits, and again after file descriptors have run out."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from fastapi import FastAPI

from ramiform.runtime.frontend.http.transport import acceptor, connection_limits
from ramiform.runtime.frontend.http.transport.acceptor import RateLimitedLog
from ramiform.runtime.frontend.http.transport.listener import listen
from ramiform.runtime.frontend.http.transport.server import HttpServer
from ramiform.runtime.protocol.config import ServeConfig
from ramiform.tests.frontend.harness import house, run

from .peers import HEAD, WHOLE, Peer, connected, connections, until


class Desk:
    """A server whose answers wait until they may go on, but for /health's."""

    def __init__(self, listener: socket.socket | None = None, **settings: Any) -> None:
        self.num_asked, self.go_on = 0, asyncio.Event()
        app = FastAPI()

        @app.get("/")
        async def answer() -> str:
            self.num_asked += 1
            await self.go_on.wait()
            return "fine"

        @app.get("/health")
        async def health() -> str:
            return "fine"

        config = ServeConfig(socket_dir="", port=0, **settings)
        listener = listen(config) if listener is None else listener
        assert listener is not None
        self.server = HttpServer(app, listener, config)

    async def connect(self, data: bytes = b"") -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.server.port))
        await peer.send(data)
        return peer

    async def ask(self) -> Peer:
        """A client whose answer waits."""
        num = self.num_asked
        peer = await self.connect(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: self.num_asked > num)
        return peer


HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


async def stop(desk: Desk, *peers: Peer) -> None:
    desk.go_on.set()
    for peer in peers:
        peer.writer.close()
    await desk.server.stop(60)


@pytest.fixture
def nobody_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "MIN_IDLE_SECONDS", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"max_connections": 2, "max_connections_per_address": 2}, {"max_connections": 4}])
def test_a_connection_beyond_the_bounds_is_told_so_and_health_is_answered(settings: dict[str, int]) -> None:
    """Two of one address: all that there are, or half of four."""

    async def main() -> None:
        desk = Desk(**settings)
        await desk.server.start()
        served = [await desk.ask() for _ in range(2)]
        over = await desk.connect(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        head, _, body = (await over.until_closed()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in head
        assert b'"code":"too_many_connections"' in body
        probe = await desk.connect(HEALTH)
        head = await probe.until_closed()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in head
        desk.go_on.set()
        for peer in served:
            assert await peer.answer() == 200
        for peer in (*served, over, probe):
            peer.writer.close()
        await until(lambda: not desk.server._server.server_state.connections)
        again = await desk.connect(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")  # there is room again
        assert await again.answer() == 200
        await stop(desk, *served, over, probe, again)

    run(main())


@pytest.mark.slow
@pytest.mark.usefixtures("nobody_settles")
@pytest.mark.parametrize("beginning", [b"", HEAD, HEALTH], ids=["silent", "half a head", "answered"])
def test_a_connection_that_is_idle_gives_way(beginning: bytes) -> None:
    async def main() -> None:
        desk = Desk(max_connections=2, max_connections_per_address=2)
        await desk.server.start()
        served = await desk.ask()
        idle = await desk.connect(beginning)
        if beginning == HEALTH:
            assert await idle.answer() == 200
        await until(lambda: len(desk.server._server.server_state.connections) == 2)
        later = await desk.ask()
        assert await idle.until_closed() == b""
        await stop(desk, served, idle, later)

    run(main())


@pytest.mark.slow
def test_beyond_the_spare_places_connections_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "SPARE_CONNECTIONS", 4)  # one of each address

    async def main() -> None:
        desk = Desk(max_connections=1)
        await desk.server.start()
        served = await desk.ask()
        spare = await desk.connect()
        await until(lambda: len(desk.server._server.server_state.connections) == 2)
        over = await desk.connect()
        assert await over.until_closed() == b""
        await spare.send(HEALTH)
        assert b" 200 " in await spare.until_closed()
        await stop(desk, served, spare, over)

    run(main())


@pytest.mark.slow
def test_a_websocket_keeps_its_place_until_it_ends() -> None:
    async def main() -> None:
        async with house(http=True, max_connections=1) as built:
            url = built.url.replace("http", "ws") + "/v1/responses"
            async with websockets.connect(url, proxy=None, open_timeout=120):
                with pytest.raises(websockets.InvalidStatus) as refused:
                    await websockets.connect(url, proxy=None, open_timeout=120)
                assert refused.value.response.status_code == 503
            await until(lambda: not connections(built))
            async with connected(built) as peer:
                await peer.send(WHOLE)
                assert await peer.answer() == 200

    run(main())


@pytest.mark.slow
def test_clients_of_a_unix_socket_are_bounded_in_all_only(tmp_path: Path) -> None:
    async def main() -> None:
        path = str(tmp_path / "s")
        async with house(http=True, uds=path, max_connections=8, max_connections_per_address=1):
            for _ in range(2):
                transport = httpx.AsyncHTTPTransport(uds=path)
                async with httpx.AsyncClient(transport=transport, base_url="http://a", timeout=120) as client:
                    answers = await asyncio.gather(*(client.get("/version") for _ in range(4)))
                    assert [answer.status_code for answer in answers] == [200] * 4

    run(main())


@pytest.mark.slow
def test_many_connections_at_once_are_all_served() -> None:
    async def main() -> None:
        async with house(http=True) as built, asyncio.TaskGroup() as group:

            async def ask() -> None:
                async with connected(built) as peer:
                    await peer.send(WHOLE)
                    assert await peer.answer() == 200

            for _ in range(200):
                group.create_task(ask())

    run(main())


class FullListener(socket.socket):
    """One that accepts nothing while the process has no more file descriptors."""

    num_failures = 0
    is_full = True

    def accept(self) -> Any:
        if self.is_full:
            self.num_failures += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.mark.slow
def test_without_file_descriptors_clients_wait_and_the_log_stays_short(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "RETRY_SECONDS", 0.01)

    async def main() -> None:
        bound = listen(ServeConfig(socket_dir="", port=0))
        assert bound is not None
        listener = FullListener(fileno=bound.detach())
        desk = Desk(listener)
        desk.go_on.set()
        await desk.server.start()
        waiting = [await desk.connect(HEALTH) for _ in range(3)]
        await until(lambda: listener.num_failures > 20)
        listener.is_full = False
        for peer in waiting:
            assert await peer.answer() == 200
        await stop(desk, *waiting)

    with caplog.at_level(logging.WARNING):
        run(main())
    (record,) = caplog.records
    assert "Too many open files" in record.getMessage()


def test_an_accept_that_fails_is_not_tried_again_at_once() -> None:
    async def main() -> None:
        bound = listen(ServeConfig(socket_dir="", port=0))
        assert bound is not None
        listener = FullListener(fileno=bound.detach())
        desk = Desk(listener)
        await desk.server.start()
        peer = await desk.connect()
        await until(lambda: listener.num_failures > 0)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert listener.num_failures == 1
        await stop(desk, peer)

    run(main())


@pytest.mark.slow
def test_one_of_several_frontends_leaves_others_their_part_of_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "SHARE_SECONDS", 3600.0)

    async def main() -> None:
        bound = listen(ServeConfig(socket_dir="", port=0))
        assert bound is not None
        desks = [Desk(bound.dup(), frontends=2) for _ in range(2)]
        address = bound.getsockname()
        burst = [socket.create_connection(address) for _ in range(10)]  # all wait before anybody accepts
        for desk in desks:
            await desk.server.start()
        taken = [desk.server._server.server_state.connections for desk in desks]
        await until(lambda: [len(each) for each in taken] == [4, 4])
        for _ in range(100):
            await asyncio.sleep(0)
        assert [len(each) for each in taken] == [4, 4]  # the last two wait for whoever comes first
        for client in burst:
            client.close()
        for desk in desks:
            await stop(desk)
        bound.close()

    run(main())


def test_a_rare_log_counts_what_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    times = [0.0, 1.0, 59.0, 60.0, 61.0, 200.0]
    log = RateLimitedLog(clock=iter(times).__next__)
    for _ in times:
        log.warn("full")
    assert [record.getMessage() for record in caplog.records] == [
        "full",
        "full (2 more times since the last such message)",
        "full (1 more times since the last such message)",
    ]


@pytest.mark.slow
def test_a_client_that_does_not_begin_tls_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 0.2)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)

    async def main() -> None:
        desk = Desk(ssl_certfile=str(cert), ssl_keyfile=str(key))
        await desk.server.start()
        silent, loud = await desk.connect(), await desk.connect(b"GET / HTTP/1.1\r\n\r\n")
        for peer in (silent, loud):
            await peer.until_closed()
        assert desk.server._acceptor is not None
        await until(lambda: not desk.server._acceptor._limiter._slots)  # type: ignore[union-attr]
        monkeypatch.setattr(acceptor, "HANDSHAKE_SECONDS", 60.0)
        trust = ssl.create_default_context(cafile=str(cert))
        async with httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{desk.server.port}", verify=trust, timeout=120
        ) as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/health", headers={"x": "a" * 1_000_000})).status_code == 431
        await stop(desk, silent, loud)

    run(main())
