"""uvicorn inside an event loop that others use too: it starts and stops when asked, and leaves signals alone."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

from ...protocol.errors import RamifyError

GRACE = 1  # seconds that running answers may take to end


class HttpServer:
    def __init__(self, app: FastAPI, host: str, port: int, *, max_message_bytes: int = 16 << 20) -> None:
        """Binds at once, so that the port is known. Raises RamifyError when it cannot be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it. Without, an answer's second part waits 40 ms for an acknowledgement.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise RamifyError(f"cannot serve HTTP at {host}:{port}: {error.strerror or error}") from None
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,  # logging is the process's to set up
                access_log=False,
                lifespan="off",
                ws="websockets-sansio",
                ws_max_size=max_message_bytes,
                timeout_graceful_shutdown=GRACE,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections from now on."""
        # What Server.serve does, but for its signal handlers.
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])
        self._task = asyncio.create_task(self._server.main_loop(), name="http server")

    async def stop(self) -> None:
        """Accept no more, give running answers a moment to end, and close."""
        if self._task is None:
            self._socket.close()
            return
        self._server.should_exit = True
        await self._task
        await self._server.shutdown(sockets=[self._socket])
