"""What the frontends of one core ask each other: their measures, and what only the one that made it knows.

Each answers at a socket of its own in the common folder. A kind of question has one who answers it (`on`); the asker
knows the type of the answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec
import zmq
import zmq.asyncio

from ...protocol import wire
from ...protocol.errors import RuntimeFailed
from ...protocol.metrics import FrontendMetrics, sum_metrics

logger = logging.getLogger("ramiform.frontend")

PEER_TIMEOUT_SECONDS = 30.0  # seconds for a sibling that is busy, or stands still; one that has died ends the runtime

PeerQuestionKind = Literal["measures", "abort", "find_response", "remove_response", "cancel_response"]
T = TypeVar("T")


class PeerQuestion(msgspec.Struct, frozen=True):
    kind: PeerQuestionKind
    about: str | None = None


class FrontendPeers:
    """Frontend `index` of `num`. `start` in the event loop; the others may be asked once they are ready."""

    def __init__(
        self, context: zmq.asyncio.Context, socket_dir: str, index: int, num: int, measures: FrontendMetrics
    ) -> None:
        self._context = context
        self._socket_dir = socket_dir
        self._index = index
        self._others = [other for other in range(num) if other != index]
        self._measures = measures
        self._questions = msgspec.msgpack.Decoder(PeerQuestion)
        self._answerers: dict[PeerQuestionKind, Callable[[str | None], Awaitable[Any]]] = {}
        self._task: asyncio.Task[None] | None = None

    def on(self, kind: PeerQuestionKind, answerer: Callable[[str | None], Awaitable[Any]]) -> None:
        """`answerer(about)` answers the others' questions of that kind."""
        self._answerers[kind] = answerer

    def start(self) -> None:
        if self._others:
            self._socket = self._context.socket(zmq.ROUTER)
            wire.set_options(self._socket)
            self._socket.bind(self._address(self._index))
            self._task = asyncio.create_task(self._answer_all(), name="siblings")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._socket.close(linger=0)

    async def total(self) -> FrontendMetrics:
        """Of all frontends: without one's part the sums would go down, which counters never do. Raises RuntimeFailed
        when one does not answer."""
        return sum_metrics([self._measures, *await self.ask("measures", None, FrontendMetrics)])

    async def ask(self, kind: PeerQuestionKind, about: str | None, kind_of_answer: type[T]) -> list[T]:
        """The others' answers; those who have none are left out. Raises RuntimeFailed when one does not answer."""
        answers = await asyncio.gather(*(self._ask(other, PeerQuestion(kind, about)) for other in self._others))
        return [msgspec.convert(answer, kind_of_answer) for answer in answers if answer is not None]

    async def _ask(self, other: int, question: PeerQuestion) -> Any:
        socket = self._context.socket(zmq.DEALER)
        wire.set_options(socket)
        try:
            socket.connect(self._address(other))
            await socket.send(wire.encode(question))
            async with asyncio.timeout(PEER_TIMEOUT_SECONDS):
                return msgspec.msgpack.decode(await socket.recv())
        except TimeoutError:
            raise RuntimeFailed(f"frontend {other} did not answer within {PEER_TIMEOUT_SECONDS:g} s") from None
        finally:
            socket.close(linger=0)

    async def _answer_all(self) -> None:
        while True:
            asker, data = await self._socket.recv_multipart()
            try:
                question: PeerQuestion = wire.decode(self._questions, data)
                answer = await self._answer(question)
            except Exception:
                logger.exception("a question of another frontend failed on an error of ours")
                continue
            await self._socket.send_multipart([asker, msgspec.msgpack.encode(answer)])

    async def _answer(self, question: PeerQuestion) -> Any:
        if question.kind == "measures":
            return self._measures
        answerer = self._answerers.get(question.kind)
        return None if answerer is None else await answerer(question.about)

    def _address(self, index: int) -> str:
        return f"ipc://{self._socket_dir}/sibling-{index}"
