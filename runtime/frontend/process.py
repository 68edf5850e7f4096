"""The frontend as a whole: a client of the core, the service for programs, and HTTP when a port is set.

Owns no process: whoever starts the core says when it died, through `stop`.
"""

from __future__ import annotations

import asyncio

import zmq.asyncio

from ..protocol.config import RuntimeConfig
from ..protocol.core import ModelInfo
from ..protocol.errors import ErrorInfo, RuntimeFailed
from ..tokenizer.interface import Tokenizer
from .core_client import CoreClient
from .generation import Generator
from .http.app import create_app
from .http.server import HttpServer
from .service import Service

SHUT_DOWN = ErrorInfo.of(RuntimeFailed("the runtime was shut down"))


class Frontend:
    """`start`, then `core_ready`, then serve until `stop`: all in one event loop."""

    def __init__(self, config: RuntimeConfig, tokenizer: Tokenizer) -> None:
        self._config = config.serve
        self._context = zmq.asyncio.Context()
        self._core = CoreClient(self._context, config.serve.core_address)
        self._generator = Generator(self._core, tokenizer)
        self._service = Service(self._context, config.serve.client_address, self._generator)
        self._http: HttpServer | None = None
        self._closed = asyncio.Event()

    @property
    def http_port(self) -> int | None:
        """The port that HTTP is served at, once started; None when it is not."""
        return None if self._http is None else self._http.port

    async def start(self) -> None:
        """Accept clients, which wait until the core is ready. Raises RamifyError when the HTTP port cannot be had."""
        self._core.start()
        self._service.start()
        if self._config.port is not None:
            app = create_app(self._generator, self._config)
            self._http = HttpServer(
                app, self._config.host, self._config.port, max_message_bytes=self._config.max_body_mib << 20
            )
            await self._http.start()

    async def core_ready(self) -> ModelInfo:
        """What the core serves, once it does. Raises RamifyError when it could not start."""
        return await self._core.ready()

    async def stop(self, error: ErrorInfo | None = None) -> None:
        """Tell everybody who waits that it is over, and why, then close. Calling it again does nothing."""
        if self._closed.is_set():
            return
        reason = SHUT_DOWN if error is None else error
        self._core.fail(reason)
        await self._service.stop(reason)
        if self._http is not None:
            await self._http.stop()
        await self._core.close()
        self._context.term()
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()
