"""A channel that answers operations from a store, and sends those that the store lacks to a backend's channel."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from ...runtime.programs.interpreter import ProgramInterpreter
from ...runtime.programs.running_program import StateProgress
from ...runtime.protocol.errors import ErrorInfo, RuntimeFailed
from ...runtime.protocol.session import (
    Append,
    Attempted,
    Close,
    Delta,
    Done,
    Failed,
    Lost,
    Open,
    Play,
    Reply,
    Supply,
    ToFrontend,
)
from ..backends.backend import Channel
from ..backends.calls import call_later
from .answers import AnswerStore, StoredRun
from .executor import StoredExecutor
from .remote import Remotes

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener

_ENDED = ErrorInfo.of(RuntimeFailed("the store's channel has ended"))
Inbox = SimpleQueue[ToFrontend | Callable[[], None] | None]  # None: the end


class StoredPrograms:
    """Interprets programs on a thread of its own, which ends when None comes from the inbox."""

    def __init__(self, store: AnswerStore, channel: Channel) -> None:
        self.inbox: Inbox = SimpleQueue()
        self.listeners: dict[int, Listener] = {}
        self.runs: dict[int, StoredRun] = {}  # by program
        self.executors: weakref.WeakValueDictionary[int, StoredExecutor] = weakref.WeakValueDictionary()  # by state
        self._store = store
        self._remotes = Remotes(channel, self.inbox.put)
        self._interpreter = ProgramInterpreter(
            self._deliver, self._open_executor, call_later(self.inbox.put), states_ended=self._states_ended
        )
        self._thread = threading.Thread(target=self._run, name="ramiform-store", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error = _ENDED
        try:
            while (message := self.inbox.get()) is not None:
                self._take(message)
        except BaseException as bug:
            error = ErrorInfo.of(bug)
            raise
        finally:
            self._interpreter.close_all()
            for listener in list(self.listeners.values()):
                listener.fail(error)

    def _take(self, message: ToFrontend | Callable[[], None]) -> None:
        match message:
            case Play() | Open() | Append() | Supply() | Close():
                self._interpreter.receive(message)
            case _:
                assert callable(message), f"not a message of a program: {message!r}"
                message()
        self._interpreter.run()

    def _open_executor(self, state: StateProgress) -> StoredExecutor:
        run = self.runs.setdefault(state.program.number, StoredRun())
        return StoredExecutor(state, self._store, self._remotes, self.inbox.put, run, executors=self.executors)

    def _states_ended(self, program: int, states: list[int] | None) -> None:
        if states is None:
            self._remotes.end(program)
            self.runs.pop(program, None)

    def _deliver(self, answer: Done | Failed | Delta | Attempted | Lost) -> None:
        if isinstance(answer, Lost):
            for number in answer.states:
                if (listener := self.listeners.pop(number, None)) is not None:
                    listener.fail(answer.error)
        elif (listener := self.listeners.get(answer.state)) is not None:
            listener.receive(answer)


class StoredChannel:
    """A `Channel` of a store before another channel.

    Programs hold it, and its thread ends once it is collected. A generation that is not kept takes a round trip of its
    own, since what comes after it is looked up first.
    """

    def __init__(self, store: AnswerStore, channel: Channel) -> None:
        self._channel = channel
        self._programs = StoredPrograms(store, channel)
        self._numbers = itertools.count(1)
        self._end = weakref.finalize(self, self._programs.inbox.put, None)
        self._end.atexit = False

    def attach(self, listener: Listener) -> int:
        return self.attach_run(listener, None)

    def attach_run(self, listener: Listener, run: StoredRun | None) -> int:
        """Attach a state as `attach` does; `run` is its program's, if it is the program's first state."""
        number = next(self._numbers)
        self._programs.listeners[number] = listener
        if run is not None:
            self._programs.runs[number] = run
        return number

    def detach(self, state: int) -> None:
        if self._programs.listeners.pop(state, None) is not None:
            self._programs.inbox.put(Close((state,)))  # takes no lock: garbage collection may call this

    def send(self, message: ToFrontend) -> None:
        if not self._end.alive:
            raise _ENDED.to_exception()
        self._programs.inbox.put(message)

    def call(self, method: Literal["info", "stats", "flush_cache"]) -> Reply:
        return self._channel.call(method)

    def place_of(self, state: int) -> tuple[str, int] | None:
        """Return the path of a state that waits for the client, and the index of the operation that waits."""
        executor = self._programs.executors.get(state)
        return None if executor is None else (executor.path, executor.index)

    def close(self) -> None:
        """End every program that runs on it. Calling it again does nothing."""
        self._end()
