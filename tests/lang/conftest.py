"""A scripted frontend in a thread, over the real protocol, that records every message of a program."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

import ramiform
from ramiform.runtime.protocol import decisions, session, wire
from ramiform.runtime.protocol.client import Connection
from ramiform.runtime.protocol.core import CoreStats, Finish, ModelInfo
from ramiform.runtime.protocol.errors import ErrorInfo
from ramiform.runtime.protocol.sampling import TokenLogprob

INFO = ModelInfo(
    name="fake",
    path="/fake",
    architecture="Fake",
    num_parameters=1,
    vocab_size=256,
    context_length=1024,
    dtype="float32",
    device="cpu",
    page_size=16,
    num_pages=64,
    version="0",
)
HOLD = object()  # an answer that waits until the script is changed and `play_on` called


@dataclass
class State:
    """One client's state: its text, and the operations that are not played yet."""

    client: bytes
    number: int
    text: str = ""
    start: int = 0  # how much of the text was there at the fork
    born: bool = False
    failed: ErrorInfo | None = None
    waiting: deque[tuple[int, session.Operation]] = field(default_factory=deque)
    supplied: dict[int, session.Supply] = field(default_factory=dict)
    program: int = 0
    streamed: int = 0  # pieces of the waiting Gen sent already


class FakeFrontend:
    """Plays operations as a runtime does; `script(text so far, operation)` gives what is generated.

    A script's answer is a str, a list of str (samples; or the pieces of a streamed Gen, where HOLD may stand), an
    ErrorInfo, or HOLD. A Select is answered by the index of its choice.
    """

    HOLD = HOLD

    def __init__(self, address: str) -> None:
        self.address = address
        self.info = INFO
        self.script: Callable[[str, Any], Any] = lambda text, operation: (
            0 if isinstance(operation, session.Select) else f"<{len(text)}>"
        )
        self.received: list[Any] = []
        self.changed = threading.Condition()
        self._states: dict[tuple[bytes, int], State] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._bell, self._ring = socket.socketpair()
        self._clients: set[bytes] = set()
        self._ended = False
        self.welcomes = True
        self._decoder = msgspec.msgpack.Decoder(session.ToFrontend)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        wire.set_options(self._socket)
        self._socket.bind(address)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    # What tests call

    def operations(self, kind: type[Any] = object) -> list[Any]:
        with self.changed:
            parts = [part for one in self.received for part in getattr(one, "messages", [one])]
            appends = [message for message in parts if isinstance(message, session.Append)]
        return [operation for append in appends for operation in append.operations if isinstance(operation, kind)]

    def messages(self, kind: type[Any]) -> list[Any]:
        with self.changed:
            return [message for message in self.received if isinstance(message, kind)]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout=120)

    def do(self, command: Callable[[], None]) -> None:
        """Run on the frontend's thread."""
        self._commands.append(command)
        self._ring.send(b"\0")

    def play_on(self, script: Callable[[str, Any], Any]) -> None:
        def command() -> None:
            self.script = script
            self._play_all()

        self.do(command)

    def say(self, message: Any) -> None:
        """Send to every client."""
        self.do(lambda: [self._send(client, message) for client in self._clients] and None)

    def die(self) -> None:
        """As a killed process does: the sockets close and nothing is said."""
        if self._thread.is_alive():
            self.do(lambda: setattr(self, "_ended", True))
            self._thread.join()

    # The thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        while not self._ended:
            ready = dict(poller.poll())
            if self._socket in ready:
                client, data = self._socket.recv_multipart()
                self._handle(client, wire.decode(self._decoder, data))
            if self._bell.fileno() in ready:
                self._bell.recv(1)
                self._commands.popleft()()
        self._socket.close(linger=100)
        self._context.term()
        self._bell.close()
        self._ring.close()

    def _handle(self, client: bytes, message: Any) -> None:
        with self.changed:
            self.received.append(message)
            self.changed.notify_all()
        match message:
            case session.Hello():
                self._clients.add(client)
                if self.welcomes:
                    self._send(client, session.Welcome(self.info))
            case session.Play(messages=messages):
                for part in messages:
                    self._take(client, part)
            case session.Supply(state=number, op=op):
                self._state(client, number).supplied[op] = message
                self._play_all()
            case _:
                self._take(client, message)

    def _take(self, client: bytes, message: Any) -> None:
        match message:
            case session.Open(state=number, program=program):
                self._state(client, number).born = True
                self._state(client, number).program = program
            case session.Append(state=number, first=first, operations=operations):
                state = self._state(client, number)
                state.waiting.extend((first + index, operation) for index, operation in enumerate(operations))
                self._play_all()
            case session.Close(states=numbers, programs=programs):
                for number in numbers:
                    self._states.pop((client, number), None)
                for key in [key for key, state in self._states.items() if state.program in programs]:
                    del self._states[key]
            case session.Call(call=number, method=method):
                stats = CoreStats(**{own.name: 0 for own in msgspec.structs.fields(CoreStats) if own.required})
                reply = session.Reply(
                    number, info=self.info if method == "info" else None, stats=stats if method == "stats" else None
                )
                self._send(client, reply)

    def _state(self, client: bytes, number: int) -> State:
        return self._states.setdefault((client, number), State(client, number))

    def _send(self, client: bytes, message: Any) -> None:
        self._socket.send_multipart([client, wire.encode(message)])

    def _play_all(self) -> None:
        further = True
        while further:
            # Every state in turn, until none gets any further: one may wait for another.
            further = sum(self._play(state) for state in list(self._states.values()) if state.born) > 0

    def _play(self, state: State) -> bool:
        """Play the next operation; return whether there was one that could be played."""
        further = False
        while state.waiting:
            op, operation = state.waiting[0]
            answer = state.failed or self._answer(state, op, operation)
            if answer is HOLD:
                break
            state.waiting.popleft()
            state.streamed = 0
            further = True
            if isinstance(answer, ErrorInfo):
                state.failed = answer
                self._send(state.client, session.Failed(state.number, op, answer))
                continue
            state.text += answer.text
            self._send(state.client, answer)
        return further

    def _answer(self, state: State, op: int, operation: Any) -> Any:
        done = session.Done(state.number, op, "")
        match operation:
            case session.Text(text=text):
                return msgspec.structs.replace(done, text=text)
            case session.RoleBegin(role=role):
                return msgspec.structs.replace(done, text=f"<|{role}|>")
            case session.RoleEnd():
                return msgspec.structs.replace(done, text="<|end|>")
            case session.Fork(children=children):
                for number in children:
                    child = self._state(state.client, number)
                    child.text, child.start, child.born = state.text, len(state.text), True
                    child.program = state.program
                return done
            case session.Concatenate(children=children):
                parts = [self._states[state.client, number] for number in children]
                if any(part.waiting for part in parts):
                    return HOLD
                failed = next((part.failed for part in parts if part.failed), None)
                return failed or msgspec.structs.replace(done, text="".join(part.text[part.start :] for part in parts))
            case session.Ask():
                if (supplied := state.supplied.get(op)) is None:
                    return HOLD
                return supplied.error or msgspec.structs.replace(done, text=supplied.text)
            case session.Decide(questions=questions):
                answers = [
                    decisions.answer(question, [-float(len(label)) for label in decisions.labels(question)])
                    for question in questions
                ]
                return msgspec.structs.replace(done, answers=answers)
            case session.Gen():
                return self._generate(state, op, operation, self.script(state.text, operation))
            case session.Select():
                index = self.script(state.text, operation)
                if not isinstance(index, int):
                    return index
                means = [-float(position) for position in range(len(operation.choices))]
                choice = session.Choice(
                    index=index,
                    text=operation.choices[index],
                    scores=means,
                    normalized_prompt_logprobs=means,
                    token_logprobs=[[TokenLogprob(mean, 7)] for mean in means],
                )
                return msgspec.structs.replace(done, text=choice.text if operation.append else "", choice=choice)

    def _generate(self, state: State, op: int, gen: session.Gen, answer: Any) -> Any:
        if answer is HOLD or isinstance(answer, ErrorInfo):
            return answer
        samples = answer if isinstance(answer, list) else [answer]
        if gen.stream and gen.n == 1:
            for piece in samples[state.streamed :]:
                if piece is HOLD or isinstance(piece, ErrorInfo):
                    return piece
                state.streamed += 1
                self._send(state.client, session.Delta(state.number, op, piece, [0]))
            samples = ["".join(samples)]
        sequences = [
            session.Sequence(
                text=text,
                ids=list(text.encode()),
                prompt_tokens=len(state.text),
                completion_tokens=len(text),
                cached_tokens=0,
                finish=Finish("stop", None if gen.sampling.constraint is not None else "\n"),
                logprobs=None if gen.logprobs is None else [TokenLogprob(-0.5, byte) for byte in text.encode()],
                token_texts={byte: chr(byte) for byte in text.encode()} if gen.token_texts else None,
            )
            for text in samples
        ]
        return session.Done(state.number, op, samples[0], sequences=sequences)


@pytest.fixture
def start_frontend() -> Iterator[Callable[[], FakeFrontend]]:
    started: list[FakeFrontend] = []
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:

        def start() -> FakeFrontend:
            started.append(FakeFrontend(f"ipc://{Path(folder, str(len(started)))}"))
            return started[-1]

        yield start
        for frontend in started:
            frontend.die()


@pytest.fixture
def frontend(start_frontend: Callable[[], FakeFrontend]) -> FakeFrontend:
    return start_frontend()


@pytest.fixture
def connection(frontend: FakeFrontend) -> Iterator[Connection]:
    with Connection(frontend.address) as made:
        yield made


@pytest.fixture
def endpoint(frontend: FakeFrontend) -> Iterator[ramiform.RuntimeEndpoint]:
    """The fake frontend as the default backend."""
    with ramiform.RuntimeEndpoint(frontend.address) as made:
        ramiform.set_default_backend(made)
        yield made
        ramiform.set_default_backend(None)
