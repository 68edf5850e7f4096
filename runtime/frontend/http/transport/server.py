"""uvicorn inside an event loop that others use too: it starts and stops when asked, and leaves signals alone."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

from ....processes.bounded_sleep import poll_until
from ....protocol.config import ServeConfig
from ....protocol.errors import RamiformError, RequestError
from .acceptor import Acceptor
from .connection_limits import ConnectionSlot, free_descriptors, resolve_limits
from .http_protocol import HttpProtocol, WebSocketProtocol

STOP_GRACE_SECONDS = 1.0  # seconds that running answers may take to end, unless more are granted
KEEP_ALIVE_SECONDS = (
    75  # seconds that a connection may be unused: longer than balancers and clients keep theirs, who then close it
)
ACCEPT_BATCH = 64  # connections that are accepted in a row by a frontend that is alone


class HttpServer:
    """Accepts at `listener`, and closes this process's hold on it. Raises RequestError when the TLS settings do not
    fit, or more connections are asked for than the process may open."""

    def __init__(self, app: FastAPI, listener: socket.socket, config: ServeConfig) -> None:
        if config.ssl_keyfile is not None and config.ssl_certfile is None:
            raise RequestError("ssl_keyfile without ssl_certfile", param="ssl_certfile")
        self._listener = listener
        self._bounds = resolve_limits(config, free_descriptors())
        # With several frontends a burst of connections is shared by all that accept.
        self._at_once = ACCEPT_BATCH if config.frontends == 1 else 1
        # None at a Unix socket.
        self.port: int | None = None if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,  # logging is the process's to set up
                access_log=False,
                lifespan="off",
                ws=WebSocketProtocol,
                ws_max_size=config.max_body_mib << 20,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
            )
        )
        self._acceptor: Acceptor | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections from now on. Raises RamiformError when the certificate cannot be used."""
        # What Server.serve does, but for its signal handlers and its way of accepting.
        config = self._server.config
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise RamiformError(f"cannot use the TLS certificate {config.ssl_certfile}: {error}") from None
        self._server.lifespan = config.lifespan_class(config)
        self._server.servers = []
        self._server.started = True
        self._acceptor = Acceptor(self._listener, self._protocol, self._bounds, ssl=config.ssl, at_once=self._at_once)
        self._acceptor.start()
        self._task = asyncio.create_task(self._server.main_loop(), name="http server")

    def close_door(self) -> None:
        """Accept no more; what runs goes on. Calling it again does nothing."""
        if self._acceptor is not None and self._task is not None and self._closing is None:
            self._acceptor.close()
            self._closing = asyncio.create_task(self._close(self._task), name="http server's end")

    async def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Accept no more, give running answers `grace` seconds to end, and close. Calling it again does nothing."""
        self.close_door()
        if self._closing is None:
            self._listener.close()
            return
        if not await poll_until(self._closing.done, grace):
            self._server.force_exit = True  # wait for nobody any more
            for task in list(self._server.server_state.tasks):
                task.cancel()
            await asyncio.sleep(0)  # they take leave
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
        await self._closing

    def _protocol(self, slot: ConnectionSlot, is_spare: bool) -> HttpProtocol:
        return HttpProtocol(self._server.config, self._server.server_state, slot, is_spare=is_spare)

    async def _close(self, serving: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        await serving
        await self._server.shutdown()
