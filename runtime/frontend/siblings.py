"""What the frontends of one core tell each other: their measures, each over a socket of its own in the common folder."""

from __future__ import annotations

import asyncio

import msgspec
import zmq
import zmq.asyncio

from ..protocol import wire
from ..protocol.measures import FrontendMeasures, total

PATIENCE = 2.0  # seconds for a sibling that is busy; without its part the sums would go down, which counters never do


class Siblings:
    """Frontend `index` of `num`. `start` in the event loop; `total` asks the others."""

    def __init__(
        self, context: zmq.asyncio.Context, socket_dir: str, index: int, num: int, measures: FrontendMeasures
    ) -> None:
        self._context = context
        self._socket_dir = socket_dir
        self._index = index
        self._num = num
        self._measures = measures
        self._decoder = msgspec.msgpack.Decoder(FrontendMeasures)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._num > 1:
            self._socket = self._context.socket(zmq.ROUTER)
            wire.set_options(self._socket)
            self._socket.bind(self._address(self._index))
            self._task = asyncio.create_task(self._answer(), name="siblings")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._socket.close(linger=0)

    async def total(self) -> FrontendMeasures:
        """Of all frontends. Raises TimeoutError when one of them does not answer."""
        others = [self._ask(index) for index in range(self._num) if index != self._index]
        return total([self._measures, *await asyncio.gather(*others)])

    async def _ask(self, index: int) -> FrontendMeasures:
        socket = self._context.socket(zmq.DEALER)
        wire.set_options(socket)
        try:
            socket.connect(self._address(index))
            await socket.send(b"")
            async with asyncio.timeout(PATIENCE):
                measures: FrontendMeasures = wire.decode(self._decoder, await socket.recv())
            return measures
        finally:
            socket.close(linger=0)

    async def _answer(self) -> None:
        while True:
            asker, _ = await self._socket.recv_multipart()
            await self._socket.send_multipart([asker, wire.encode(self._measures)])

    def _address(self, index: int) -> str:
        return f"ipc://{self._socket_dir}/measures-{index}"
