"""Questions between the frontends of one core: their measures, and responses that only one of them holds.

Each frontend answers at a socket of its own in the common folder. Each kind of question has one handler (`on`); the
asking frontend knows the type of the answers.
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

PEER_TIMEOUT_SECONDS = 30.0  # for a frontend that is busy or stopped; one that has died ends the runtime

PeerQuestionKind = Literal[
    "measures",
    "abort",
    "find_response",
    "remove_response",
    "cancel_response",
    "response_events",
    "find_items",
    "conversation",
    "close_states",
    "session",
    "save_sessions",
    "drain",
    "move_programs",
    "record_rows",
    "record_view",
    "record_changes",
    "health",
]
T = TypeVar("T")


class PeerQuestion(msgspec.Struct, frozen=True):
    """A question to another frontend."""

    kind: PeerQuestionKind
    about: str | None = None


class FrontendPeers:
    """The peers of frontend `index` of `num`. Call `start` in the event loop; peers answer once they are ready."""

    def __init__(
        self, context: zmq.asyncio.Context, socket_dir: str, index: int, num: int, measures: FrontendMetrics
    ) -> None:
        self._context = context
        self._socket_dir = socket_dir
        self._index = index
        self._others = [other for other in range(num) if other != index]
        self._measures = measures
        self._questions = msgspec.msgpack.Decoder(PeerQuestion)
        self._handlers: dict[PeerQuestionKind, Callable[[str | None], Awaitable[Any]]] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def index(self) -> int:
        """The number of this frontend."""
        return self._index

    @property
    def is_first(self) -> bool:
        """True for the peers of the first frontend."""
        return self._index == 0

    def on(self, kind: PeerQuestionKind, handler: Callable[[str | None], Awaitable[Any]]) -> None:
        """Answer the peers' questions of that kind by `handler(about)`."""
        self._handlers[kind] = handler

    def start(self) -> None:
        if self._others:
            self._socket = self._context.socket(zmq.ROUTER)
            wire.set_options(self._socket)
            self._socket.bind(self._address(self._index))
            self._task = asyncio.create_task(self._answer_all(), name="frontend peers")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._socket.close(linger=0)

    async def total(self) -> FrontendMetrics:
        """Return the measures of all frontends together. Raises RuntimeFailed when one does not answer.

        Without the part of one frontend the sums would go down, which counters never do.
        """
        return sum_metrics([self._measures, *await self.ask("measures", None, FrontendMetrics)])

    async def ask(self, kind: PeerQuestionKind, about: str | None, answer_type: type[T]) -> list[T]:
        """Ask all peers and return their answers, those that are not None.

        Raises RuntimeFailed when one does not answer.
        """
        answers = await asyncio.gather(*(self._ask(other, PeerQuestion(kind, about)) for other in self._others))
        return [msgspec.convert(answer, answer_type) for answer in answers if answer is not None]

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
            identity, data = await self._socket.recv_multipart()
            try:
                question: PeerQuestion = wire.decode(self._questions, data)
                answer = await self._answer(question)
            except Exception:
                logger.exception("a question of another frontend failed on an internal error")
                continue
            await self._socket.send_multipart([identity, msgspec.msgpack.encode(answer)])

    async def _answer(self, question: PeerQuestion) -> Any:
        if question.kind == "measures":
            return self._measures
        handler = self._handlers.get(question.kind)
        return None if handler is None else await handler(question.about)

    def _address(self, index: int) -> str:
        return f"ipc://{self._socket_dir}/peer-{index}"
