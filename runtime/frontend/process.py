"""The frontend as a whole: a client of the core, the service for programs, and HTTP when there is a listener.

Owns no process: whoever starts the core says when it died, through `stop`.
"""

from __future__ import annotations

import asyncio
import socket
import time

import zmq.asyncio

from ..processes.bounded_sleep import STEP_SECONDS, poll_until
from ..protocol.config import RuntimeConfig
from ..protocol.core import ModelInfo
from ..protocol.errors import ErrorInfo, RuntimeFailed
from ..tokenizer.interface import Tokenizer
from .core import opentelemetry as tracing
from .core.client import CoreClient
from .core.frontend_peers import FrontendPeers
from .core.request_metrics import RequestObserver
from .http.app import create_app
from .http.transport.listener import listen
from .http.transport.server import STOP_GRACE_SECONDS, HttpServer
from .programs.server import ProgramServer, RemoteProgramServer
from .text.generation import Generator

SHUT_DOWN_ERROR = ErrorInfo.of(RuntimeFailed("the runtime was shut down"))
DRAIN_IDLE_SECONDS = 0.5  # seconds without a request after which programs count as done: they compute between requests
FAILURE_MESSAGE_SECONDS = 0.3  # seconds that the core's may take to come after the news of its end


class Frontend:
    """`start`, then `core_ready`, then serve until `stop`: all in one event loop.

    One of `config.serve.frontends`, number `index`. HTTP is accepted at `listener`, when given; else, by a frontend
    that is alone, where the configuration says.
    """

    def __init__(
        self, config: RuntimeConfig, tokenizer: Tokenizer, *, index: int = 0, listener: socket.socket | None = None
    ) -> None:
        self._config = config.serve
        self._index = index
        self._listener = listener
        self._context = zmq.asyncio.Context()
        self._traces = None
        if config.serve.otlp_endpoint is not None:
            self._traces = tracing.OpenTelemetryTracer(config.serve.otlp_endpoint)
        self._watcher = RequestObserver(self._traces)
        self._core = CoreClient(self._context, config.serve.core_address, self._watcher)
        self._generator = Generator(self._core, tokenizer)
        self._service = ProgramServer(
            self._context,
            config.serve.client_address_of(index),
            self._generator,
            others=[config.serve.client_address_of(other) for other in range(1, config.serve.frontends)]
            if index == 0
            else [],
        )
        self._remote = None
        if config.serve.bind is not None and index == 0:
            self._remote = RemoteProgramServer(self._context, config.serve.bind, config.serve.keys, self._generator)
        self._siblings = FrontendPeers(
            self._context, config.serve.socket_dir, index, config.serve.frontends, self._watcher.measures
        )
        self._http: HttpServer | None = None
        self._closed = asyncio.Event()

    @property
    def http_port(self) -> int | None:
        """The port that HTTP is served at, once started; None when it is not, or at a Unix socket."""
        return None if self._http is None else self._http.port

    @property
    def tcp_address(self) -> str | None:
        """Where programs of other machines come, once started; None when they may not."""
        return None if self._remote is None else self._remote.server.address

    async def start(self) -> None:
        """Accept clients, which wait until the core is ready. Raises RamiformError when HTTP cannot be served."""
        self._core.start()
        self._service.start()
        if self._remote is not None:
            self._remote.start()
        self._siblings.start()
        listener = listen(self._config) if self._listener is None and self._index == 0 else self._listener
        if listener is not None:
            app = create_app(self._generator, self._config, self._siblings, self._traces)
            self._http = HttpServer(app, listener, self._config)
            await self._http.start()

    async def core_ready(self) -> ModelInfo:
        """What the core serves, once it does. Raises RamiformError when it could not start."""
        return await self._core.ready()

    async def wait_for_failure_message(self) -> None:
        """The core has ended: why it did may still be on its way."""
        await poll_until(lambda: self._core.has_failed, FAILURE_MESSAGE_SECONDS)

    def peers_ready(self) -> None:
        """The other frontends answer: programs may be sent on to them."""
        self._service.share()

    async def drain(self, seconds: float) -> None:
        """Accept nobody new; return when what runs has ended. After `seconds` the rest is told that it is over."""
        self._service.stop_accepting()
        if self._remote is not None:
            self._remote.server.stop_accepting()
        deadline = time.monotonic() + seconds
        if self._http is not None:
            self._http.close_door()
        num_quiet = 0  # looks in a row: time may go on while everything stands still
        while time.monotonic() < deadline:
            num_quiet = 0 if self._core.num_live else num_quiet + 1
            if num_quiet * STEP_SECONDS >= DRAIN_IDLE_SECONDS:
                break
            await asyncio.sleep(STEP_SECONDS)
        else:
            self._core.fail(SHUT_DOWN_ERROR)
        if self._http is not None:  # who reads slowly may do so for the rest of the time
            await self._http.stop(max(0.0, deadline - time.monotonic()) + STOP_GRACE_SECONDS)

    async def stop(self, error: ErrorInfo | None = None) -> None:
        """Tell everybody who waits that it is over, and why, then close. Calling it again does nothing."""
        if self._closed.is_set():
            return
        reason = SHUT_DOWN_ERROR if error is None else error
        self._core.fail(reason)
        await self._service.stop(reason)
        if self._remote is not None:
            await self._remote.stop(reason)
        if self._http is not None:
            await self._http.stop()
        await self._siblings.stop()
        await self._core.close()
        self._context.term()
        if self._traces is not None:
            await asyncio.to_thread(self._traces.close)
        self._closed.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()
