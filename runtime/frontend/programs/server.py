"""Where programs connect: a ROUTER socket, one session per client, and clients that are gone or silent forgotten.

Whatever arrives is answered or dropped; nothing that a client sends ends the service.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Coroutine, Sequence
from functools import partial

import msgspec
import zmq
import zmq.asyncio

from ...protocol import wire
from ...protocol.errors import BusyError, ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ...protocol.keys import ServerKeys
from ...protocol.session import (
    AnswerBatch,
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
    Lost,
    Malformed,
    Open,
    Ping,
    Play,
    Reply,
    Supply,
    ToFrontend,
    Welcome,
)
from ...protocol.transport import secure_server_socket
from ...protocol.version import __version__
from ..text.generation import Generator
from .session import Session

logger = logging.getLogger("ramiform.frontend")

DISCONNECT_SETTLE_SECONDS = 0.05  # seconds after a disconnection is told until the socket behaves accordingly
CLIENT_SILENCE_SECONDS = 15.0  # seconds after which a client that says nothing loses its states


_BATCHED_ANSWERS = (
    Done,
    Delta,
    Failed,
)  # answers to operations: what comes of one turn of the event loop goes together


class _Client:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.last_heard = time.monotonic()


class ProgramServer:
    """Serves from `start` to `stop`, on the event loop that `start` is called in.

    `others` are addresses of services like this one. Once they answer (`share`), new clients are sent on to them in
    turn: a client stays where it is welcomed, and its states with it. With `keys` it answers whom the context's
    authenticator lets in.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        address: str,
        generator: Generator,
        *,
        others: Sequence[str] = (),
        keys: ServerKeys | None = None,
    ) -> None:
        self._socket = context.socket(zmq.ROUTER)
        wire.set_options(self._socket)
        if keys is not None:
            secure_server_socket(self._socket, keys)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to who is gone is an error: so we learn of it
        self._monitor = self._socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        self._address = address
        self._generator = generator
        self._core = generator.core
        self._decoder = msgspec.msgpack.Decoder(ToFrontend)
        self._clients: dict[bytes, _Client] = {}
        self._outgoing: dict[bytes, list[Done | Delta | Failed]] = {}  # to be sent before this turn is over
        self._tasks: list[asyncio.Task[None]] = []
        self._others = others
        self._sharing = asyncio.Event()
        if not others:
            self._sharing.set()
        self._turns = itertools.cycle([None, *others])
        self._closing = False
        self._questions: set[asyncio.Task[None]] = set()  # asked outside any state, being answered

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    @property
    def address(self) -> str:
        """Where it is bound, the port included that the system chose."""
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def start(self) -> None:
        """Raises RamiformError when the address cannot be had."""
        try:
            self._socket.bind(self._address)
        except zmq.ZMQError as error:
            raise RamiformError(f"programs cannot be served at {self._address}: {error}") from None
        self._tasks = [
            asyncio.create_task(self._receive(), name="service"),
            asyncio.create_task(self._forget_regularly(), name="forget silent clients"),
            asyncio.create_task(self._forget_disconnected(), name="forget clients that are gone"),
        ]

    def share(self) -> None:
        """The others answer."""
        self._sharing.set()

    def close_door(self) -> None:
        """Welcome nobody any more."""
        self._closing = True

    async def stop(self, error: ErrorInfo) -> None:
        """Tell every client that this is the end, and why."""
        for task in (*self._tasks, *self._questions):
            task.cancel()
        for identity, client in list(self._clients.items()):  # one that is gone is forgotten meanwhile
            client.session.close_all()
            self._send(identity, Fatal(error))
        self._flush()
        self._clients.clear()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        # Lingers: what was said last must not be lost. Bounded, for clients that no longer listen.
        self._socket.close(linger=500)

    def forget_silent(self, now: float) -> None:
        """Close the states of clients not heard of for SILENCE seconds. `now` is on the monotonic clock."""
        for identity, client in list(self._clients.items()):
            if now - client.last_heard > CLIENT_SILENCE_SECONDS and (states := self._forget(identity)):
                logger.warning("a client fell silent; its %d states are closed", len(states))
                silent = RuntimeFailed(
                    f"the program was not heard of for {CLIENT_SILENCE_SECONDS:g} s; its states are closed"
                )
                self._send(identity, Lost(states, ErrorInfo.of(silent)))  # should it be alive, it waits for answers

    def _forget(self, identity: bytes) -> tuple[int, ...]:
        """The states that it had."""
        self._outgoing.pop(identity, None)
        client = self._clients.pop(identity, None)
        return () if client is None else client.session.close_all()

    async def _forget_regularly(self) -> None:
        interval = CLIENT_SILENCE_SECONDS / 5
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)
            now = time.monotonic()
            for client in self._clients.values():
                client.last_heard += now - before - interval  # we were late: what they said may not be read yet
            self.forget_silent(now)

    async def _forget_disconnected(self) -> None:
        """The socket tells that somebody has gone, not who: whom nothing can be sent to."""
        while True:
            await self._monitor.recv_multipart()
            told = True
            while told:
                await asyncio.sleep(DISCONNECT_SETTLE_SECONDS)
                for identity in list(self._clients):
                    self._send(identity, AnswerBatch([]))
                # What was told meanwhile has not settled: once more for all of it. Taken one at a time it would pile
                # up, and a full monitor stops the thread that moves everybody's messages.
                told = False
                while await self._monitor.poll(0):
                    await self._monitor.recv_multipart()
                    told = True

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
            case Play():
                client.session.play(message)
            case Supply():
                client.session.supply(message)
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
                f"the program uses ramiform {version}, the runtime is {__version__}", param="version", code="version"
            )
            return Fatal(ErrorInfo.of(error))
        if self._closing:
            return Fatal(ErrorInfo.of(RuntimeFailed("the runtime is shutting down")))
        try:
            info = await self._core.ready()
            await self._sharing.wait()
            return Welcome(info, move_to=next(self._turns))
        except RamiformError as error:
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
        except RamiformError as error:
            return Reply(call.call, error=ErrorInfo.of(error))

    def _send(self, identity: bytes, message: FromFrontend) -> None:
        if isinstance(message, _BATCHED_ANSWERS):
            if not self._outgoing:
                asyncio.get_running_loop().call_soon(self._flush)
            self._outgoing.setdefault(identity, []).append(message)
            return
        if answers := self._outgoing.pop(identity, None):
            self._send_answers(identity, answers)
        self._send_bytes(identity, wire.encode(message))

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for identity, answers in outgoing.items():
            self._send_answers(identity, answers)

    def _send_answers(self, identity: bytes, answers: list[Done | Delta | Failed]) -> None:
        try:
            self._send_bytes(identity, wire.encode(answers[0] if len(answers) == 1 else AnswerBatch(answers)))
            return
        except RequestError as error:  # too long, e.g. the log-probabilities of many samples
            if len(answers) == 1:
                [answer] = answers
                self._send_bytes(identity, wire.encode(Failed(answer.state, answer.op, ErrorInfo.of(error))))
                return
        for answer in answers:
            self._send_answers(identity, [answer])

    def _send_bytes(self, identity: bytes, data: bytes) -> None:
        sent: asyncio.Future[object]
        sent = self._socket.send_multipart([identity, data])  # type: ignore[assignment]  # queued: no high-water mark
        if sent.done() and (error := sent.exception()) is not None:
            assert isinstance(error, zmq.ZMQError), error
            self._forget(identity)
