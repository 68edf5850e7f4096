"""uvicorn inside an event loop that others use too: it starts and stops when asked, and leaves signals alone."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

from ...protocol.config import ServeConfig
from ...protocol.errors import RamifyError, RequestError
from .listening import BACKLOG

GRACE = 1  # seconds that running answers may take to end, unless more are granted


class HttpServer:
    """Accepts at `listener`, and closes this process's hold on it. Raises RequestError when the TLS settings do not
    fit."""

    def __init__(self, app: FastAPI, listener: socket.socket, config: ServeConfig) -> None:
        if config.ssl_keyfile is not None and config.ssl_certfile is None:
            raise RequestError("ssl_keyfile without ssl_certfile", param="ssl_certfile")
        self._listener = listener
        # None at a Unix socket.
        self.port: int | None = None if listener.family == socket.AF_UNIX else int(listener.getsockname()[1])
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,  # logging is the process's to set up
                access_log=False,
                lifespan="off",
                ws="websockets-sansio",
                ws_max_size=config.max_body_mib << 20,
                timeout_graceful_shutdown=GRACE,
                # Also how many connections are taken at once: of a burst, others who accept shall have their share.
                backlog=BACKLOG if config.frontends == 1 else 1,
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections from now on. Raises RamifyError when the certificate cannot be used."""
        # What Server.serve does, but for its signal handlers.
        config = self._server.config
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            raise RamifyError(f"cannot use the TLS certificate {config.ssl_certfile}: {error}") from None
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._listener])
        self._listener.listen(BACKLOG)
        self._task = asyncio.create_task(self._server.main_loop(), name="http server")

    async def stop(self, grace: float = GRACE) -> None:
        """Accept no more, give running answers `grace` seconds to end, and close. Calling it again does nothing."""
        if self._task is None:
            self._listener.close()
            return
        task, self._task = self._task, None
        self._server.config.timeout_graceful_shutdown = grace  # type: ignore[assignment]  # a float will do
        self._server.should_exit = True
        await task
        await self._server.shutdown()
