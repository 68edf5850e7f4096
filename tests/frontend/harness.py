"""A real frontend on sockets in a folder of its own, with a fake core behind it and bare clients before it."""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ramiform.runtime.frontend.process import Frontend
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol import wire
from ramiform.runtime.protocol.config import CoreConfig, RuntimeConfig, ServeConfig
from ramiform.runtime.protocol.session import (
    AnswerBatch,
    Append,
    Done,
    Failed,
    FromFrontend,
    Open,
    Operation,
    ToFrontend,
)
from ramiform.runtime.tokenizer import Tokenizer, load_tokenizer

from .fake_core import FakeCore, Script


@cache
def shipped_tokenizer() -> Tokenizer:
    return load_tokenizer(SHIPPED_MODEL)


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await main

    asyncio.run(bounded())


def says(text: str) -> Script:
    """A model that always says this, then ends."""
    ids = shipped_tokenizer().encode(text, parse_special=False, continues=True)
    return lambda request: ids


class Client:
    """A program's end of the wire, by hand."""

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        self.socket: zmq.asyncio.Socket = context.socket(zmq.DEALER)
        wire.set_options(self.socket)
        self.socket.connect(address)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromFrontend)
        self._next: dict[int, int] = {}
        self._received: deque[Any] = deque()

    async def send(self, *messages: ToFrontend) -> None:
        for message in messages:
            await self.socket.send(wire.encode(message))

    async def receive(self) -> Any:
        """The next message; what came together one by one."""
        while not self._received:
            async with asyncio.timeout(60):
                message = wire.decode(self._decoder, await self.socket.recv())
            self._received.extend(message.answers if isinstance(message, AnswerBatch) else [message])
        return self._received.popleft()

    async def open(self, *states: int) -> None:
        await self.send(*(Open(state, 0) for state in states))

    async def append(self, state: int, *operations: Operation) -> None:
        first = self._next.get(state, 0)
        self._next[state] = first + len(operations)
        await self.send(Append(state, first, list(operations)))

    async def answers(self, num: int) -> dict[tuple[int, int], Done | Failed]:
        """The next `num` Dones and Faileds, by state and operation."""
        found: dict[tuple[int, int], Done | Failed] = {}
        while len(found) < num:
            message = await self.receive()
            if isinstance(message, Done | Failed):
                assert (message.state, message.op) not in found
                found[message.state, message.op] = message
        return found

    async def play(self, state: int, *operations: Operation) -> list[Done | Failed]:
        """Append and wait for all the answers; nothing else may be going on."""
        first = self._next.get(state, 0)
        await self.append(state, *operations)
        found = await self.answers(len(operations))
        return [found[state, first + index] for index in range(len(operations))]


@dataclass
class House:
    frontend: Frontend
    core: FakeCore
    context: zmq.asyncio.Context
    config: RuntimeConfig
    clients: list[Client] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.frontend.http_port}"

    def client(self) -> Client:
        self.clients.append(Client(self.context, self.config.serve.client_address))
        return self.clients[-1]


@asynccontextmanager
async def house(
    script: Script | None = None,
    *,
    http: bool = False,
    ready: bool = True,
    tokenizer: Tokenizer | None = None,
    **settings: Any,
) -> AsyncIterator[House]:
    tokenizer = tokenizer or shipped_tokenizer()
    with tempfile.TemporaryDirectory(prefix="rf") as folder:
        serve = ServeConfig(socket_dir=folder, port=0 if http else None, **settings)
        config = RuntimeConfig(core=CoreConfig(), serve=serve)
        context = zmq.asyncio.Context()
        core = FakeCore(context, config.serve.core_address, tokenizer, script or says(" fine."))
        if not ready:
            core.loaded.clear()
        frontend = Frontend(config, tokenizer)
        built = House(frontend, core, context, config)
        try:
            await frontend.start()
            if ready:
                await frontend.core_ready()
            yield built
        finally:
            await frontend.stop(None)
            await core.close()
            for client in built.clients:
                client.socket.close(linger=0)
            context.term()
