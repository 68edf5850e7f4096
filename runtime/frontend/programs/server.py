"""Serves programs over ZMQ: a ROUTER socket with one `ProgramInterpreter` per client, and CURVE keys over TCP.

Every message is answered or dropped; no message ends the server. Clients that are gone or silent lose their states.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from ...programs.interpreter import ProgramInterpreter
from ...programs.running_program import StateProgress
from ...protocol import wire
from ...protocol.errors import BusyError, ErrorInfo, RamiformError, RequestError, RuntimeFailed
from ...protocol.keys import ServerKeys, server_keys
from ...protocol.session import (
    Answer,
    AnswerBatch,
    Append,
    Attempted,
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
from ...protocol.transport import check_bind, secure_server_socket
from ...protocol.version import __version__
from ..core.loop_socket import LoopSocket
from ..records.log import Owner
from ..records.recorder import ProgramRecorder
from ..text.generation import Generator
from .content import TokenContent
from .executor import TokenExecutor

logger = logging.getLogger("ramiform.frontend")

MAX_CLIENT_STATES = 100_000  # per client
DISCONNECT_SETTLE_SECONDS = 0.05  # from the event of a disconnection until sending to that client fails
MOVE_INTERVAL = 0.05  # seconds between two looks at clients that are to be moved
CLIENT_SILENCE_SECONDS = 15.0  # a client that sends nothing for so long loses its states

_BATCHED_ANSWERS = (Done, Delta, Attempted, Failed)  # those of one turn of the event loop are sent as one message


class _Client:
    """A connected program: its interpreter, which `run` lets play what was received."""

    def __init__(self, name: str, generator: Generator, send: Callable[[Answer | Lost], None], owner: Owner) -> None:
        self.last_received = time.monotonic()
        self.can_move = False
        self._name = name
        self._generator = generator
        self._will_run = False
        self._recorder = (
            None if generator.log is None else ProgramRecorder(generator.log, owner, name_of=self._program_name)
        )
        self._send = send
        self.interpreter = ProgramInterpreter(
            send if self._recorder is None else self._send_recorded,
            self._open_executor,
            asyncio.get_running_loop().call_later,
            states_ended=self._end_states,
            max_states=MAX_CLIENT_STATES,
        )

    @property
    def is_playing(self) -> bool:
        """True while an operation is played, or is about to be."""
        return self._will_run or self.interpreter.is_playing

    def receive(self, message: Open | Append | Play | Supply | Close) -> None:
        """Handle a program's message. Raises RequestError, as the interpreter does."""
        self._will_run = True
        if self._recorder is not None:
            self._recorder.receive(message)
        self.interpreter.receive(message)

    def run(self) -> None:
        """Play the states, if anything was received since the last call."""
        if self._will_run:
            self._will_run = False
            self.interpreter.run()

    def _send_recorded(self, answer: Answer | Lost) -> None:
        assert self._recorder is not None
        self._recorder.sent(answer)
        self._send(answer)

    def _open_executor(self, state: StateProgress) -> TokenExecutor:
        content = TokenContent(self._generator.tokenizer, self._generator.encoder)
        return TokenExecutor(self._generator, state, self._program_name(state.program.whole.number), content)

    def _end_states(self, program: int, states: list[int] | None) -> None:
        self._generator.core.end_states(self._program_name(program), states)
        if self._recorder is not None:
            self._recorder.ended(program, states)

    def _program_name(self, program: int) -> str:
        """Return the program's name for the core, where programs of all clients meet."""
        return f"{self._name}:{program}"


class ProgramServer:
    """Serves programs from `start` to `stop`, on the event loop that `start` is called in.

    `others` are the addresses of the other frontends' servers. Once they answer (`share`), new clients are sent to them
    in turn; a client and its states stay where it is welcomed. With `keys` only clients that the context's
    authenticator accepts are served.
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
        self._socket = LoopSocket(context, zmq.ROUTER, self._receive, self._run_clients)
        if keys is not None:
            secure_server_socket(self._socket.raw, keys)
        self._socket.raw.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to a client that is gone fails, which shows it
        self._monitor = self._socket.raw.get_monitor_socket(zmq.Event.DISCONNECTED)
        self._address = address
        self._generator = generator
        self._owner = Owner("local" if keys is None else "remote")
        self._core = generator.core
        self._decoder = msgspec.msgpack.Decoder(ToFrontend)
        self._clients: dict[bytes, _Client] = {}
        self._received: list[_Client] = []  # whose messages have come since `_run_clients`
        self._outgoing: dict[bytes, list[Answer]] = {}  # sent at the end of this turn of the loop
        self._tasks: list[asyncio.Task[None]] = []
        self._others = others
        self._sharing = asyncio.Event()
        if not others:
            self._sharing.set()
        self._next_server = itertools.cycle([None, *others])
        self._closing = False
        self._moving_to: str | None = None
        self._call_tasks: set[asyncio.Task[None]] = set()  # calls outside any state, being answered

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    @property
    def address(self) -> str:
        """The address it is bound to, with the port that the system chose."""
        return self._socket.raw.getsockopt_string(zmq.LAST_ENDPOINT)

    def start(self) -> None:
        """Bind the address. Raises RamiformError when that fails."""
        try:
            self._socket.raw.bind(self._address)
        except zmq.ZMQError as error:
            raise RamiformError(f"programs cannot be served at {self._address}: {error}") from None
        self._socket.start()
        self._tasks = [
            asyncio.create_task(self._forget_regularly(), name="forget silent clients"),
            asyncio.create_task(self._forget_disconnected(), name="forget clients that are gone"),
            asyncio.create_task(self._move_idle(), name="move clients"),
        ]

    def share(self) -> None:
        """Begin to send new clients to the other servers, which answer now."""
        self._sharing.set()

    def stop_accepting(self) -> None:
        """Refuse new clients."""
        self._closing = True

    def move_clients(self, address: str | None) -> None:
        """Send clients that can move to the server of another runtime, each when its states all wait; None: no more."""
        self._moving_to = address

    async def _move_idle(self) -> None:
        while True:
            await asyncio.sleep(MOVE_INTERVAL)
            for identity in list(self._clients) if self._moving_to is not None else ():
                self._move_if_idle(identity)

    def _move_if_idle(self, identity: bytes) -> None:
        """Send a client elsewhere if that is due and all its states wait. It has the answers so far."""
        client = self._clients.get(identity)
        if self._moving_to is None or client is None or not client.can_move or client.is_playing:
            return
        reason = f"the runtime has moved its programs to {self._moving_to}"
        self._send(identity, Fatal(ErrorInfo(kind="runtime", message=reason, param=self._moving_to, code="moved")))
        self._forget(identity)

    async def stop(self, error: ErrorInfo) -> None:
        """Send `error` to every client and close the socket."""
        for task in (*self._tasks, *self._call_tasks):
            task.cancel()
        for identity, client in list(self._clients.items()):  # sending forgets a client that is gone
            client.interpreter.close_all()
            self._send(identity, Fatal(error))
        self._flush()
        self._clients.clear()
        self._socket.raw.disable_monitor()
        self._monitor.close(linger=0)
        # Lingers, so that the errors arrive; bounded, for clients that no longer read.
        self._socket.close(linger=500)

    def forget_silent(self, now: float) -> None:
        """Close the states of clients silent for CLIENT_SILENCE_SECONDS. `now` is on the monotonic clock."""
        for identity, client in list(self._clients.items()):
            if now - client.last_received > CLIENT_SILENCE_SECONDS and (states := self._forget(identity)):
                logger.warning("a client fell silent; its %d states are closed", len(states))
                silent = RuntimeFailed(
                    f"the program was not heard of for {CLIENT_SILENCE_SECONDS:g} s; its states are closed"
                )
                self._send(identity, Lost(states, ErrorInfo.of(silent)))  # if it is alive, it waits for answers

    def _forget(self, identity: bytes) -> tuple[int, ...]:
        """Close a client; return the numbers of its states."""
        self._outgoing.pop(identity, None)
        client = self._clients.pop(identity, None)
        return () if client is None else client.interpreter.close_all()

    async def _forget_regularly(self) -> None:
        interval = CLIENT_SILENCE_SECONDS / 5
        while True:
            before = time.monotonic()
            await asyncio.sleep(interval)
            now = time.monotonic()
            for client in self._clients.values():
                client.last_received += now - before - interval  # this process was late: messages may be unread
            self.forget_silent(now)

    async def _forget_disconnected(self) -> None:
        """Forget clients that are gone. The monitor does not name them: sending to them fails."""
        while True:
            await self._monitor.recv_multipart()
            notified = True
            while notified:
                await asyncio.sleep(DISCONNECT_SETTLE_SECONDS)
                for identity in list(self._clients):
                    self._send(identity, AnswerBatch([]))
                # Disconnections during the pause have not settled: wait once more for all of them. Read one at a time
                # their events would pile up, and a full monitor blocks the thread that moves all messages.
                notified = False
                while await self._monitor.poll(0):
                    await self._monitor.recv_multipart()
                    notified = True

    def _receive(self, message: list[bytes]) -> None:
        identity, *frames = message
        try:
            self._handle(identity, self._decode(frames))
        except (RequestError, BusyError) as error:
            self._send(identity, Malformed(ErrorInfo.of(error)))
        except Exception as error:
            logger.exception("a message failed on an internal error")
            self._send(identity, Malformed(ErrorInfo.of(error)))

    def _run_clients(self) -> None:
        """Play the states after the messages that have arrived already: one of them may close what another opened."""
        received, self._received = self._received, []
        for client in received:
            try:
                client.run()
            except Exception:
                logger.exception("a program failed on an internal error")

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
                identity.hex(), self._generator, partial(self._send, identity), self._owner
            )
        client.last_received = time.monotonic()
        match message:
            case Hello(version=version):
                client.can_move = message.can_move
                self._send_later(identity, self._welcome(version))
            case Call():
                self._send_later(identity, self._answer(message))
            case Ping():
                pass  # it only resets the client's silence
            case _:
                self._received.append(client)
                client.receive(message)

    def _send_later(self, identity: bytes, answer: Coroutine[None, None, FromFrontend]) -> None:
        async def send() -> None:
            self._send(identity, await answer)

        task = asyncio.create_task(send())
        self._call_tasks.add(task)
        task.add_done_callback(self._call_tasks.discard)

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
            return Welcome(info, next(self._next_server), wants_notes=self._generator.log is not None)
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
            self._move_if_idle(identity)  # before its program has read them and goes on

    def _send_answers(self, identity: bytes, answers: list[Answer]) -> None:
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
        try:
            self._socket.send(identity, data)
        except zmq.ZMQError:  # it is gone
            self._forget(identity)


class RemoteProgramServer:
    """Serves programs of other machines: a `ProgramServer` at a TCP address, for clients whose public keys are known.

    Raises RequestError for an invalid address or key file, before anything is bound.
    """

    def __init__(self, context: zmq.asyncio.Context, bind: str, keys: str | None, generator: Generator) -> None:
        check_bind(bind, keys)
        assert keys is not None
        self._keys = server_keys(Path(keys))
        self._authenticator = AsyncioAuthenticator(context, log=logging.getLogger("ramiform.keys"))
        self._authenticator.configure_curve_callback("*", credentials_provider=self)
        self.server = ProgramServer(context, bind, generator, keys=self._keys)

    def start(self) -> None:
        """Bind the address. Raises RamiformError when that fails."""
        self._authenticator.start()
        self.server.start()

    async def stop(self, error: ErrorInfo) -> None:
        await self.server.stop(error)
        self._authenticator.stop()

    def callback(self, domain: str, key: bytes) -> bool:
        """Return True if the client with this public key is known. The authenticator calls it."""
        name = self._keys.programs.get(key)
        if name is None:
            logger.warning("a program with an unknown key was refused: %s", key.decode())
        return name is not None
