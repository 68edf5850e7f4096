"""Run uvicorn inside a shared event loop, without its signal handlers."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

from ....processes.bounded_sleep import poll_until
from ....protocol.config import ServeConfig
from ....protocol.errors import RamiformError
from .acceptor import Acceptor
from .connection_limits import ConnectionSlot, free_descriptors, resolve_limits
from .http_protocol import HttpProtocol, WebSocketProtocol

STOP_GRACE_SECONDS = 1.0  # for running responses, unless the caller grants more
KEEP_ALIVE_SECONDS = 75  # longer than load balancers and clients keep idle connections, so that they close first


class HttpServer:
    """Serves `app` on `listener`, and closes this process's copy of the listener at the end.

    Raises RequestError for more connections than the process may open.
    """

    def __init__(self, app: FastAPI, listener: socket.socket, config: ServeConfig) -> None:
        self._listener = listener
        self._limits = resolve_limits(config, free_descriptors())
        # Several frontends share a burst of connections.
        self._shares = config.frontends > 1
        # None at a Unix socket.
        self.port: int | None = None if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,  # the process configures logging
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
        self._shutdown: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start accepting connections. Raises RamiformError for an unusable certificate."""
        # As Server.serve, without its signal handlers and listeners.
        config = self._server.config
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise RamiformError(f"cannot use the TLS certificate {config.ssl_certfile}: {error}") from None
        self._server.lifespan = config.lifespan_class(config)
        self._server.servers = []
        self._server.started = True
        self._acceptor = Acceptor(self._listener, self._protocol, self._limits, ssl=config.ssl, shares=self._shares)
        self._acceptor.start()
        self._task = asyncio.create_task(self._server.main_loop(), name="http server")

    def close_door(self) -> None:
        """Stop accepting; running requests continue. Idempotent."""
        if self._acceptor is not None and self._task is not None and self._shutdown is None:
            self._acceptor.close()
            self._shutdown = asyncio.create_task(self._finish(self._task), name="http server's end")

    async def stop(self, grace: float = STOP_GRACE_SECONDS) -> None:
        """Stop accepting, give running responses `grace` seconds, then close. Idempotent."""
        self.close_door()
        if self._shutdown is None:
            self._listener.close()
            return
        if not await poll_until(self._shutdown.done, grace):
            self._server.force_exit = True  # stop waiting for connections
            for task in list(self._server.server_state.tasks):
                task.cancel()
            await asyncio.sleep(0)  # let the tasks handle the cancellation
            for connection in list(self._server.server_state.connections):
                connection.transport.abort()
        await self._shutdown

    def _protocol(self, slot: ConnectionSlot, is_spare: bool) -> HttpProtocol:
        return HttpProtocol(self._server.config, self._server.server_state, slot, is_spare=is_spare)

    async def _finish(self, serving: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        await serving
        await self._server.shutdown()
