"""Where programs connect: a ROUTER socket, one session per client, and clients that fall silent forgotten.

Whatever arrives is answered or dropped; nothing that a client sends ends the service.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial

import msgspec
import zmq
import zmq.asyncio

from ..protocol import wire
from ..protocol.errors import BusyError, ErrorInfo, RamifyError, RequestError, RuntimeFailed
from ..protocol.session import (
    Append,
    Bye,
    Call,
    Close,
    Delta,
    Done,
    Failed,
    Fatal,
    FromFrontend,
    Hello,
    Malformed,
    Open,
    Ping,
    Reply,
    ToFrontend,
    Welcome,
)
from ..protocol.version import __version__
from .generation import Generator
from .session import Session

logger = logging.getLogger("ramify.frontend")

SILENCE = 15.0  # seconds after which a client that says nothing loses its states


class _Client:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_heard = time.monotonic()


class Service:
    """Serves from `start` to `stop`, on the event loop that `start` is called in."""

    def __init__(self, context: zmq.asyncio.Context, address: str, generator: Generator) -> None:
        self._socket = context.socket(zmq.ROUTER)
        wire.set_options(self._socket)
        self._address = address
        self._generator = generator
        self._core = generator.core
        self._decoder = msgspec.msgpack.Decoder(ToFrontend)
        self._clients: dict[bytes, _Client] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._questions: set[asyncio.Task[None]] = set()  # asked outside any state, being answered

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    def start(self) -> None:
        self._socket.bind(self._address)
        self._tasks = [
            asyncio.create_task(self._receive(), name="service"),
            asyncio.create_task(self._forget_regularly(), name="forget silent clients"),
        ]

    async def stop(self, error: ErrorInfo) -> None:
        """Tell every client that this is the end, and why."""
        for task in (*self._tasks, *self._questions):
            task.cancel()
        for identity, client in self._clients.items():
            client.session.close_all()
            self._send(identity, Fatal(error))
        self._clients.clear()
        # Lingers: what was said last must not be lost. Bounded, for clients that no longer listen.
        self._socket.close(linger=500)

    def forget_silent(self, now: float) -> None:
        """Close the states of clients not heard of for SILENCE seconds. `now` is on the monotonic clock."""
        for identity, client in list(self._clients.items()):
            if now - client.last_heard > SILENCE:
                num_states = client.session.num_states
                self._forget(identity)
                if num_states:  # without any, silence is as it should be
                    logger.warning("a client fell silent; closing its %d states", num_states)
                    silent = RuntimeFailed(f"the program was not heard of for {SILENCE:g} s; its states are closed")
                    self._send(identity, Fatal(ErrorInfo.of(silent)))  # should it be alive, it waits for answers

    def _forget(self, identity: bytes) -> None:
        client = self._clients.pop(identity, None)
        if client is not None:
            client.session.close_all()

    async def _forget_regularly(self) -> None:
        interval = SILENCE / 5
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)
            now = time.monotonic()
            for client in self._clients.values():
                client.last_heard += now - before - interval  # we were late: what they said may not be read yet
            self.forget_silent(now)

    async def _receive(self) -> None:
        while True:
            identity, *frames = await self._socket.recv_multipart()
            try:
                self._handle(identity, self._decode(frames))
            except (RequestError, BusyError) as error:
                self._send(identity, Malformed(ErrorInfo.of(error)))
            except Exception as error:
                logger.exception("a message failed on an error of ours")
                self._send(identity, Malformed(ErrorInfo.of(error)))

    def _decode(self, frames: list[bytes]) -> ToFrontend:
        if len(frames) != 1:
            raise RequestError(f"malformed message: {len(frames)} frames instead of one", code="malformed_message")
        message: ToFrontend = wire.decode(self._decoder, frames[0])
        return message

    def _handle(self, identity: bytes, message: ToFrontend) -> None:
        client = self._clients.get(identity)
        if isinstance(message, Bye):
            self._forget(identity)
            return
        if client is None:
            client = self._clients[identity] = _Client(
                Session(identity.hex(), self._generator, partial(self._send, identity))
            )
        client.last_heard = time.monotonic()
        match message:
            case Hello(version=version):
                self._ask(identity, self._welcome(version))
            case Call():
                self._ask(identity, self._answer(message))
            case Open():
                client.session.open(message)
            case Append():
                client.session.append(message)
            case Close():
                client.session.close(message)
            case Ping():
                pass  # heard: that was all it said

    def _ask(self, identity: bytes, question: Coroutine[None, None, FromFrontend]) -> None:
        async def answer() -> None:
            self._send(identity, await question)

        task = asyncio.create_task(answer())
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    async def _welcome(self, version: str) -> FromFrontend:
        if version != __version__:
            error = RequestError(
                f"the program uses ramify {version}, the runtime is {__version__}", param="version", code="version"
            )
            return Fatal(ErrorInfo.of(error))
        try:
            return Welcome(await self._core.ready())
        except RamifyError as error:
            return Fatal(ErrorInfo.of(error))

    async def _answer(self, call: Call) -> FromFrontend:
        try:
            match call.method:
                case "info":
                    return Reply(call.call, info=await self._core.ready())
                case "stats":
                    return Reply(call.call, stats=await self._core.stats())
                case "flush_cache":
                    await self._core.flush_cache()
                    return Reply(call.call)
        except RamifyError as error:
            return Reply(call.call, error=ErrorInfo.of(error))

    def _send(self, identity: bytes, message: FromFrontend) -> None:
        try:
            data = wire.encode(message)
        except RequestError as error:  # e.g. the log-probabilities of many samples
            assert isinstance(message, Done | Delta | Failed)
            data = wire.encode(Failed(message.state, message.op, ErrorInfo.of(error)))
        self._socket.send_multipart([identity, data])  # queued at once: no high-water mark
