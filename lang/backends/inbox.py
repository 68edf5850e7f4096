"""The base of channels with a thread of their own, which takes what other threads put into an inbox."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...runtime.programs.interpreter import ProgramInterpreter
from ...runtime.protocol.errors import ErrorInfo, RuntimeFailed
from ...runtime.protocol.session import Answer, Append, Close, Lost, Open, Play, Supply, ToFrontend

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener

InboxItem = ToFrontend | Callable[[], None]


class InboxChannel:
    """The part of a `Channel` that numbers states, and delivers answers on the thread `name`.

    The thread calls `take` with each message and function. At the end it calls `end_programs` and fails every listener.
    """

    def __init__(self, name: str, closed: str = "the backend was closed") -> None:
        """`closed` is the error of programs after `close`. Call `start` once the channel is complete."""
        self.listeners: dict[int, Listener] = {}
        self.inbox: SimpleQueue[InboxItem | None] = SimpleQueue()  # None: the end
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()  # no message may come after the end: it would wait for ever
        self._ended = False
        self._closed = ErrorInfo.of(RuntimeFailed(closed))
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    # For every thread

    def attach(self, listener: Listener) -> int:
        number = next(self._numbers)
        self.listeners[number] = listener
        return number

    def detach(self, state: int) -> None:
        if self.listeners.pop(state, None) is not None:
            self.inbox.put(Close((state,)))  # takes no lock: garbage collection may call this

    def send(self, message: ToFrontend) -> None:
        with self._sending:
            if self._ended:
                raise self._closed.to_exception()
            self.inbox.put(message)

    def close(self) -> None:
        """End every program. Calling it again does nothing."""
        with self._sending:
            if not self._ended:
                self._ended = True
                self.inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # On the channel's own thread

    def take(self, item: InboxItem) -> None:
        raise NotImplementedError

    def end_programs(self) -> None:
        raise NotImplementedError

    def next_item(self) -> InboxItem | None:
        """Wait for the next item of the inbox. None: the end."""
        return self.inbox.get()

    def deliver(self, answer: Answer | Lost) -> None:
        """Pass an answer to its state's listener."""
        if isinstance(answer, Lost):
            self.lose(answer.states, answer.error)
        elif (listener := self.listeners.get(answer.state)) is not None:
            listener.receive(answer)

    def lose(self, states: Iterable[int], error: ErrorInfo) -> None:
        """Tell the listeners of states that these are lost."""
        for number in states:
            if (listener := self.listeners.pop(number, None)) is not None:
                listener.fail(error)

    def _run(self) -> None:
        error = self._closed
        try:
            while (item := self.next_item()) is not None:
                self.take(item)
        except BaseException as bug:
            error = ErrorInfo.of(bug)
            raise
        finally:
            self._ended = True
            self.end_programs()
            self.lose(list(self.listeners), error)


class InterpretingChannel(InboxChannel):
    """Base of channels whose thread interprets programs; `interpreter` is set before `start`."""

    interpreter: ProgramInterpreter

    def take(self, item: InboxItem) -> None:
        match item:
            case Play() | Open() | Append() | Supply() | Close():
                self.interpreter.receive(item)
            case _:
                assert callable(item), f"not a message of a program: {item!r}"
                item()
        self.interpreter.run()

    def end_programs(self) -> None:
        self.interpreter.close_all()
