"""The client's connection to a frontend: numbers states, sends messages, and delivers answers to their listeners.

When the runtime dies, every listener and every open call fails at once.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from queue import SimpleQueue
from types import TracebackType
from typing import Literal, Protocol

import msgspec

from . import wire
from .core import ModelInfo
from .errors import ErrorInfo, RequestError, RuntimeFailed
from .keys import ProgramKeys
from .link import FrontendLink, LinkDown
from .session import (
    Answer,
    AnswerBatch,
    Attempted,
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
    Reply,
    ToFrontend,
    Welcome,
)
from .version import __version__

WELCOME_SECONDS = 1.0


class Listener(Protocol):
    """Receives the answers of one state. Called on the connection's thread, so it must neither block nor raise."""

    def receive(self, message: Answer) -> None: ...

    def fail(self, error: ErrorInfo) -> None:
        """The state is lost; nothing more will come."""


class Connection:
    """A client's connection to a frontend, shared by all of a process's programs. Any thread may use it.

    The constructor does not block; `connect` does. It raises RequestError for an invalid address, or one of TCP without
    keys. The connection ends by `close`, a `with` block, or the process's end; after that, and once the runtime is
    gone, `connect`, `send` and `call` raise RuntimeFailed.
    """

    def __init__(self, address: str, keys: ProgramKeys | None = None, *, can_move: bool = False) -> None:
        """`can_move`: the runtime may end the connection with an error of code "moved", after which `moved` has it."""
        self.address = address
        self._hello = wire.encode(Hello(__version__, can_move))
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._listeners: dict[int, Listener] = {}
        self._calls: dict[int, SimpleQueue[Reply | ErrorInfo]] = {}
        self._error: ErrorInfo | None = None
        self._info: ModelInfo | None = None
        self._wants_notes = False
        self._answered = threading.Event()  # Welcome has come, or the connection failed
        self._decoder: msgspec.msgpack.Decoder[FromFrontend] = msgspec.msgpack.Decoder(FromFrontend)
        self._link = FrontendLink(
            address,
            self._hello,
            keys=keys,
            on_message=self._receive,
            is_busy=lambda: bool(self._listeners),
            on_end=self._fail,
        )
        self._link.start()
        atexit.register(self.close)

    # For every thread

    def connect(self, timeout: float | None = None) -> ModelInfo:
        """Wait until the runtime's model is loaded and it accepts this client.

        Raises RuntimeFailed when nothing listens at the address, the runtime ends, or after `timeout` seconds.
        """
        if not self._answered.wait(timeout):
            raise RuntimeFailed(f"the runtime at {self.address} did not answer within {timeout} s")
        self._raise_if_down()
        assert self._info is not None
        return self._info

    @property
    def wants_notes(self) -> bool:
        """Return whether the runtime keeps records of programs. Waits for its answer, but not long: it may be loading
        its model, and does without notes then."""
        self._answered.wait(WELCOME_SECONDS)
        return self._wants_notes

    @property
    def moved(self) -> ErrorInfo | None:
        """The error that tells, in its `param`, the address that the client's programs were moved to, if they were."""
        return self._error if self._error is not None and self._error.code == "moved" else None

    def attach(self, listener: Listener) -> int:
        """Return a new state number, whose answers go to `listener` until it is detached."""
        number = next(self._numbers)
        self._listeners[number] = listener
        return number

    def attach_as(self, number: int, listener: Listener) -> None:
        """Let the answers of a state that the caller has numbered go to `listener` until it is detached."""
        self._listeners[number] = listener

    def detach(self, state: int) -> None:
        """Forget a state, here and in the runtime. Never raises and takes no lock: garbage collection may call it."""
        if self._listeners.pop(state, None) is not None and self._error is None:
            self._link.post(wire.encode(Close((state,))))

    def send(self, message: ToFrontend) -> None:
        """Queue a message without waiting. Messages arrive in the order of these calls.

        Raises RuntimeFailed when the runtime is gone, RequestError when the message cannot be encoded or is too long.
        """
        self._raise_if_down()
        if os.getpid() != self._pid:
            raise RuntimeFailed("a connection does not survive os.fork(); make one in the new process")
        self._link.post(wire.encode(message))

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> Reply:
        """Call a method of the runtime and wait for the reply.

        Raises the error that the reply carries, RuntimeFailed when none can come.
        """
        number = next(self._numbers)
        self._calls[number] = answers = SimpleQueue[Reply | ErrorInfo]()
        try:
            self.send(Call(number, method))
            answer = answers.get()
        finally:
            self._calls.pop(number, None)
        error = answer if isinstance(answer, ErrorInfo) else answer.error
        if error is not None:
            raise error.to_exception()
        assert isinstance(answer, Reply)
        return answer

    def close(self) -> None:
        """Send `Bye` and end the thread. Open calls and operations fail. Calling it again does nothing."""
        self._link.stop()
        atexit.unregister(self.close)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _raise_if_down(self) -> None:
        if self._error is not None:
            raise self._error.to_exception()

    # On the link's thread

    def _receive(self, data: bytes) -> None:
        try:
            message: FromFrontend = wire.decode(self._decoder, data)
        except RequestError as error:
            raise LinkDown(f"the runtime sent a message that cannot be read: {error}") from None
        match message:
            case Delta() | Attempted() | Done() | Failed():
                self._deliver(message)
            case AnswerBatch(answers=answers):
                for answer in answers:
                    self._deliver(answer)
            case Lost(states=states, error=reason):
                for state in states:
                    if (listener := self._listeners.pop(state, None)) is not None:
                        listener.fail(reason)
            case Reply():
                if (waiting := self._calls.get(message.call)) is not None:
                    waiting.put(message)
            case Welcome(move_to=str(address)):
                self._link.move(address, self._hello)
            case Welcome():
                self._info = message.info
                self._wants_notes = message.wants_notes
                self._link.allow_sending()
                self._answered.set()
            case Fatal():
                down = LinkDown(message.error.message)
                down.error = message.error if message.error.code == "moved" else down.error
                raise down
            case Malformed():
                # Some operation was not understood and will not be answered; which one is unknown.
                raise LinkDown(f"the runtime could not read a message: {message.error.message}")

    def _deliver(self, answer: Answer) -> None:
        if (listener := self._listeners.get(answer.state)) is not None:
            listener.receive(answer)

    def _fail(self, error: ErrorInfo) -> None:
        # Set first: listeners registered later fail in `send`, those registered earlier are found below.
        self._error = error
        self._answered.set()
        for listener in list(self._listeners.values()):
            listener.fail(error)
        for answers in list(self._calls.values()):
            answers.put(error)
