"""A frontend: a client of the core, the server of programs, and the HTTP server.

It owns no process: the owner of the core calls `stop` when the core has died.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import zmq.asyncio

from ..processes.bounded_sleep import STEP_SECONDS, poll_until
from ..processes.memory import give_back_memory
from ..protocol.config import RuntimeConfig
from ..protocol.core import ModelInfo
from ..protocol.errors import ErrorInfo, RuntimeFailed
from ..tokenizer.interface import Tokenizer
from .core.client import CoreClient
from .core.frontend_peers import FrontendPeers
from .core.journal import Journal
from .core.opentelemetry import OpenTelemetryTracer
from .core.request_metrics import RequestObserver
from .http.transport.listener import listen
from .programs.server import ProgramServer, RemoteProgramServer
from .records.log import ProgramLog, Record
from .records.program import ProgramRecord
from .text.generation import Generator
from .text.pictures import pictures_of

if TYPE_CHECKING:
    from .batches.runner import BatchRunner
    from .http.dashboard.routes import Page
    from .http.transport.server import HttpServer

SHUT_DOWN_ERROR = ErrorInfo.of(RuntimeFailed("the runtime was shut down"))
DRAIN_IDLE_SECONDS = 0.5  # without a request, after which programs count as done: they compute between requests
FULL_COLLECTION_INTERVAL = 100  # collections of the middle generation, of some 7,000 new objects each
MEMORY_SECONDS = 30.0  # from one return of freed memory to the next
FAILURE_MESSAGE_SECONDS = 0.3  # the time that a core's last message may take after its process has ended


def begin_collections() -> None:
    """Collect, and make what exists now permanent: garbage collections between tokens need not walk it.

    A full collection walks all that thousands of connections hold, a tenth of a second during which no token is sent.
    So it comes after as many new objects as such a number of connections makes, not at each quarter more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION_INTERVAL)


async def return_memory(is_idle: Callable[[], bool], seconds: float = MEMORY_SECONDS) -> NoReturn:
    """Return freed memory to the system again and again. A process that is idle collects its garbage before."""
    while True:
        await asyncio.sleep(seconds)
        if is_idle() and gc.get_count()[2]:  # younger objects were collected since the last full collection
            gc.collect()
        await asyncio.to_thread(give_back_memory)


class Frontend:
    """Frontend number `index` of `config.serve.frontends`, in one event loop: `start`, `core_ready`, serve, `stop`.

    HTTP is accepted at `listener` if given; otherwise the first frontend listens where the configuration says.
    """

    def __init__(
        self, config: RuntimeConfig, tokenizer: Tokenizer, *, index: int = 0, listener: socket.socket | None = None
    ) -> None:
        self._config = config.serve
        self._core_config = config.core
        self._index = index
        self._listener = listener
        self._context = zmq.asyncio.Context()
        self._tracer = None
        if config.serve.otlp_endpoint is not None:
            self._tracer = OpenTelemetryTracer(config.serve.otlp_endpoint)
        self._observer = RequestObserver(self._tracer)
        self._core = CoreClient(self._context, config.serve.core_address, self._observer)
        # Records are looked at over HTTP: without it nobody would.
        has_http = config.serve.port is not None or config.serve.uds is not None
        self._log = ProgramLog(index, tokenizer.decode) if has_http or self._tracer is not None else None
        if self._log is not None and self._tracer is not None:
            self._log.trace_context = self._tracer.current_context
            self._log.on_end.append(self._export)
        pictures = pictures_of(config)
        self._generator = Generator(self._core, tokenizer, self._log, pictures)
        self._program_server = ProgramServer(
            self._context,
            config.serve.client_address_of(index),
            self._generator,
            others=[config.serve.client_address_of(other) for other in range(1, config.serve.frontends)]
            if index == 0
            else [],
        )
        self._remote_server = None
        if config.serve.bind is not None and index == 0:
            self._remote_server = RemoteProgramServer(
                self._context, config.serve.bind, config.serve.keys, self._generator
            )
        self._core.on_move_programs = self._move_programs
        self._peers = FrontendPeers(
            self._context, config.serve.socket_dir, index, config.serve.frontends, self._observer.measures
        )
        self._http: HttpServer | None = None
        self._page: Page | None = None
        self._batches: BatchRunner | None = None
        self._journal: Journal | None = None
        self._memory: asyncio.Task[NoReturn] | None = None
        self._closed = asyncio.Event()

    @property
    def http_port(self) -> int | None:
        """The port of HTTP, once started; None without HTTP or at a Unix socket."""
        return None if self._http is None else self._http.port

    @property
    def tcp_address(self) -> str | None:
        """The TCP address for programs of other machines, once started; None without one."""
        return None if self._remote_server is None else self._remote_server.server.address

    async def start(self) -> None:
        """Accept clients, which wait until the core is ready. Raises RamiformError when a socket cannot be bound."""
        self._core.start()
        self._program_server.start()
        if self._remote_server is not None:
            self._remote_server.start()
        self._peers.start()
        listener = listen(self._config) if self._listener is None and self._index == 0 else self._listener
        if listener is not None:
            from .http.app import create_app  # here: a script's runtime does not wait for the web framework
            from .http.transport.server import HttpServer

            app = create_app(self._generator, self._config, self._peers, self._tracer, core_config=self._core_config)
            self._page, self._batches, self._journal = app.state.page, app.state.batches, app.state.journal
            if self._journal is not None:
                self._journal.start()
            if self._index == 0:
                self._batches.start()
            if self._page is not None:
                self._page.start()
            self._http = HttpServer(app, listener, self._config)
            await self._http.start()

    async def core_ready(self) -> ModelInfo:
        """Wait until the model is loaded and return its facts. Raises RamiformError when the core could not start."""
        info = await self._core.ready()
        if self._tracer is not None:
            self._tracer.model = info.name
        return info

    async def wait_for_failure_message(self) -> None:
        """Wait for the error of a core whose process has ended: it may still be on its way."""
        await poll_until(lambda: self._core.has_failed, FAILURE_MESSAGE_SECONDS)

    def peers_ready(self) -> None:
        """Begin to send programs to the other frontends, which answer now."""
        self._program_server.share()

    def begin_collections(self) -> None:
        """Collect garbage and return memory as a process that is the frontend's alone does."""
        begin_collections()
        self._memory = asyncio.create_task(return_memory(lambda: not self._core.num_live), name="memory")

    def _move_programs(self, address: str | None) -> None:
        """Send clients with programs to another runtime's server, when their states wait."""
        self._program_server.move_clients(address)
        if self._remote_server is not None:
            self._remote_server.server.move_clients(address)

    async def drain(self, seconds: float) -> None:
        """Accept no new clients and wait until running requests have ended. After `seconds` the rest fails.

        Rows of batches stop at once: the next server in their folder answers them.
        """
        if self._batches is not None:
            await self._batches.stop()
        self._program_server.stop_accepting()
        if self._remote_server is not None:
            self._remote_server.server.stop_accepting()
        deadline = time.monotonic() + seconds
        if self._http is not None:
            self._http.close_door()
        num_idle = 0  # checks in a row, and no clock: a suspended process must not count as idle
        while time.monotonic() < deadline:
            num_idle = 0 if self._core.num_live else num_idle + 1
            if num_idle * STEP_SECONDS >= DRAIN_IDLE_SECONDS:
                break
            await asyncio.sleep(STEP_SECONDS)
        else:
            self._core.fail(SHUT_DOWN_ERROR)
        if self._http is not None:  # slow readers have the rest of the time
            from .http.transport.server import STOP_GRACE_SECONDS

            await self._http.stop(max(0.0, deadline - time.monotonic()) + STOP_GRACE_SECONDS)

    async def stop(self, error: ErrorInfo | None = None) -> None:
        """Fail all that still runs with `error`, then close. Calling it again does nothing."""
        if self._closed.is_set():
            return
        reason = SHUT_DOWN_ERROR if error is None else error
        if self._memory is not None:
            self._memory.cancel()
        if self._batches is not None:
            await self._batches.stop()
        self._core.fail(reason)
        await self._program_server.stop(reason)
        if self._remote_server is not None:
            await self._remote_server.stop(reason)
        if self._http is not None:
            await self._http.stop()
        if self._page is not None:
            await self._page.stop()
        if self._batches is not None:
            self._batches.store.close()
        if self._journal is not None:
            await self._journal.stop()
        await self._peers.stop()
        await self._core.close()
        self._context.term()
        if self._tracer is not None:
            if self._log is not None:
                self._log.close()
            await asyncio.to_thread(self._tracer.close)
        self._closed.set()

    def _export(self, record: Record) -> None:
        """Export the record of a program that has ended. Requests have spans of their own."""
        if isinstance(record, ProgramRecord):
            assert self._tracer is not None
            view = record.view(time.monotonic(), texts=True)
            self._tracer.export_program(view, record.traceparent, record.trace_context)

    async def wait_closed(self) -> None:
        await self._closed.wait()
