"""A channel whose programs run in this process: an inbox, and one thread that interprets its messages.

Each call of the model has a thread of its own, up to a number of them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...runtime.programs.interpreter import ProgramInterpreter
from ...runtime.programs.running_program import StateProgress
from ...runtime.protocol.errors import ErrorInfo, RuntimeFailed
from ...runtime.protocol.session import Answer, Append, Close, Lost, Open, Play, Reply, Supply, ToFrontend
from .calls import ModelCalls, call_later
from .executor import TranscriptExecutor
from .model import Method, Model
from .transcript import Transcript

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener

_CLOSED = ErrorInfo.of(RuntimeFailed("the backend was closed"))


class LocalChannel:
    """A `Channel` of a model.

    `num_threads` calls of the model run at once. With 0 it is called one call at a time, in the order in which
    operations arrive.
    """

    def __init__(self, model: Model, num_threads: int) -> None:
        self._model = model
        self._numbers = itertools.count(1)
        self._listeners: dict[int, Listener] = {}
        self._inbox: SimpleQueue[ToFrontend | Callable[[], None] | None] = SimpleQueue()  # None: the end
        self._sending = threading.Lock()  # no message may come after the end: it would wait for ever
        self._ended = False
        self._calls = ModelCalls(num_threads, self._inbox.put)
        self._interpreter = ProgramInterpreter(self._deliver, self._open_executor, call_later(self._inbox.put))
        self._thread = threading.Thread(target=self._run, name="ramiform-backend", daemon=True)
        self._thread.start()

    # For every thread

    def attach(self, listener: Listener) -> int:
        number = next(self._numbers)
        self._listeners[number] = listener
        return number

    def detach(self, state: int) -> None:
        if self._listeners.pop(state, None) is not None:
            self._inbox.put(Close((state,)))  # takes no lock: garbage collection may call this

    def send(self, message: ToFrontend) -> None:
        with self._sending:
            if self._ended:
                raise _CLOSED.to_exception()
            self._inbox.put(message)

    def call(self, method: Method) -> Reply:
        return self._model.answer_call(method, next(self._numbers))

    def close(self) -> None:
        """End every program. Calling it again does nothing."""
        with self._sending:
            if not self._ended:
                self._ended = True
                self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # On the channel's own thread

    def _run(self) -> None:
        error = _CLOSED
        try:
            while (message := self._inbox.get()) is not None:
                self._take(message)
        except BaseException as bug:
            error = ErrorInfo.of(bug)
            raise
        finally:
            self._ended = True
            self._interpreter.close_all()
            for listener in list(self._listeners.values()):
                listener.fail(error)

    def _take(self, message: ToFrontend | Callable[[], None]) -> None:
        match message:
            case Play(messages=messages):
                for part in messages:  # played one by one, so that answers are asked for in the order of the parts
                    self._take(part)
            case Open() | Append() | Supply() | Close():
                self._interpreter.receive(message)
            case _:
                assert callable(message), f"not a message of a program: {message!r}"
                message()
        self._interpreter.run()

    def _open_executor(self, state: StateProgress) -> TranscriptExecutor:
        return TranscriptExecutor(self._model, self._calls, state, Transcript())

    def _deliver(self, answer: Answer | Lost) -> None:
        if isinstance(answer, Lost):
            for number in answer.states:
                if (listener := self._listeners.pop(number, None)) is not None:
                    listener.fail(answer.error)
        elif (listener := self._listeners.get(answer.state)) is not None:
            listener.receive(answer)


class LazyChannel:
    """The one channel of a model, made on first use."""

    def __init__(self, model: Model, num_threads: int) -> None:
        self._model = model
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._channel: LocalChannel | None = None

    def get(self) -> LocalChannel:
        with self._lock:
            if self._channel is None:
                self._channel = LocalChannel(self._model, self._num_threads)
            return self._channel

    def close(self) -> None:
        """End every program that runs on it. Calling it again does nothing."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
