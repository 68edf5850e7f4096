"""A channel whose programs are played in this process: a queue, and the one thread that reads it.

Each call of the model has a thread of its own, up to a number of them. Knows threads and listeners; what is played, and
in which order, is the player's.
"""

from __future__ import annotations

import itertools
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...runtime.protocol import session
from ...runtime.protocol.errors import ErrorInfo, RuntimeFailed
from ...runtime.protocol.session import Close, ToFrontend
from .calls import Calls
from .model import Method, Model
from .player import Player

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener

_CLOSED = ErrorInfo.of(RuntimeFailed("the backend was closed"))


class LocalChannel:
    """`Channel` of a model. With `num_threads` 0 the model is called in the order in which operations arrive, one call
    at a time; otherwise that many at once."""

    def __init__(self, model: Model, num_threads: int) -> None:
        self._model = model
        self._numbers = itertools.count(1)
        self._listeners: dict[int, Listener] = {}
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._sending = threading.Lock()  # so that nothing is sent after the end, and waits for ever
        self._ended = False
        self._player = Player(model, Calls(model, num_threads, self._inbox.put), self._inbox.put, self._listeners)
        self._thread = threading.Thread(target=self._run, name="ramiform-backend", daemon=True)
        self._thread.start()

    # For every thread

    def attach(self, listener: Listener) -> int:
        number = next(self._numbers)
        self._listeners[number] = listener
        return number

    def detach(self, state: int) -> None:
        if self._listeners.pop(state, None) is not None:
            self._inbox.put(Close((state,)))  # takes no lock that could be held: garbage collection may call this

    def send(self, message: ToFrontend) -> None:
        with self._sending:
            if self._ended:
                raise _CLOSED.to_exception()
            self._inbox.put(message)

    def call(self, method: Method) -> session.Reply:
        return self._model.tell(method, next(self._numbers))

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
                self._player.take(message)
        except BaseException as bug:
            error = ErrorInfo.of(bug)
            raise
        finally:
            self._ended = True
            self._player.end_all()
            for listener in list(self._listeners.values()):
                listener.fail(error)


class LazyChannel:
    """The one channel of a model, made when it is first asked for."""

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
